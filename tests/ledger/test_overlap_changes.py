"""Edits of a job's overlap: what it has already is under the new rule, and none starts beside what was live before."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import pytest

from ledger.completions import Completion, Failure
from ledger.connection import session
from ledger.jobs import NewJob, Policies
from ledger.leases import HeldLease, LeasedRun
from ledger.runs import PendingRun, find_due
from ledger.slots import forget_slotless
from tests.ledger.owned_partition import NOW, OwnedPartition, ids, later, names

ALLOW, SKIP, REPLACE = Policies(), Policies(overlap=1), Policies(overlap=2)
IN_TURN = 3
RACES = 100


async def job_with_manual_runs(
    owned: OwnedPartition, count: int, policies: Policies = ALLOW
) -> tuple[NewJob, list[UUID]]:
    """A job whose schedule comes later, and due runs beside it."""
    job = await owned.job_with_run(due_at=later(600), policies=policies)
    return job, [await owned.trigger(job.job_id) for _ in range(count)]


async def edit(owned: OwnedPartition, job: NewJob, policies: Policies) -> list[PendingRun]:
    return await owned.update(owned.edit_of(job, later(600), policies=policies))


@pytest.mark.parametrize("policies", [SKIP, REPLACE])
async def test_nothing_starts_before_all_that_were_live_at_the_edit_have_ended(
    owned: OwnedPartition, policies: Policies
) -> None:
    job, [one, two, three] = await job_with_manual_runs(owned, 3)
    first, second = sorted(await owned.lease(one, two), key=lambda run: run.run_id != one)
    await edit(owned, job, policies)
    assert await owned.lease(three) == []
    await owned.complete(Completion(first.run_id, first.lease_token))
    assert await owned.lease(three) == []
    [end] = await owned.fail(Failure(second.run_id, second.lease_token, "boom", permanent=True))
    assert end.outcome == "dead"
    assert ids(await owned.lease(three)) == {three}
    assert await owned.slots() == {job.job_id: three}


async def test_a_poll_finds_none_that_waits_for_what_was_live_at_the_edit(owned: OwnedPartition) -> None:
    job, [one, two] = await job_with_manual_runs(owned, 2)
    [leased] = await owned.lease(one)
    await edit(owned, job, SKIP)
    async with session(owned.pool) as conn:
        assert await find_due(conn, [("acme", "mail")], 10, now=NOW) == []
    await owned.complete(Completion(one, leased.lease_token))
    async with session(owned.pool) as conn:
        assert [run.run_id for run in await find_due(conn, [("acme", "mail")], 10, now=NOW)] == [two]


async def test_one_that_was_live_at_the_edit_and_came_back_takes_its_turn(owned: OwnedPartition) -> None:
    job, [one, two] = await job_with_manual_runs(owned, 2)
    [leased] = await owned.lease(one)
    await edit(owned, job, SKIP)
    await owned.release(HeldLease(one, leased.lease_token))
    assert ids(await owned.lease(one)) == {one}
    assert await owned.lease(two) == []
    assert await owned.slots() == {job.job_id: one}


async def test_what_waits_is_gated_from_the_edit_on_and_its_owner_is_told(owned: OwnedPartition) -> None:
    job, [retried, manual] = await job_with_manual_runs(owned, 2)
    [leased] = await owned.lease(retried)
    await owned.fail(Failure(retried, leased.lease_token, "boom", retry_after_s=0))
    waits = await edit(owned, job, SKIP)
    assert {run.run_id: run.overlap for run in waits} == {retried: 1, manual: IN_TURN, job.run_id: 1}
    told = await owned.events_of(manual)
    assert [(each.event, each.fields["gated"], each.fields["reasons"]) for each in told] == [
        ("run_scheduled", False, "triggered"),
        ("run_scheduled", True, "edited"),
    ]
    assert ids(await owned.lease(retried, manual)) == {retried}


async def test_a_held_run_follows_too_and_stays_held(owned: OwnedPartition) -> None:
    job, [manual] = await job_with_manual_runs(owned, 1)
    await owned.pause(job.job_id)
    assert await edit(owned, job, SKIP) == []
    run = await owned.run(manual)
    assert run is not None
    assert (run.state, run.overlap) == ("held", IN_TURN)
    assert names(await owned.events_of(manual)) == ["run_scheduled", "run_held", "run_held"]


async def test_an_edit_to_allow_frees_the_slot_and_the_end_of_its_holder_frees_no_other(owned: OwnedPartition) -> None:
    job, [one, two, three] = await job_with_manual_runs(owned, 3, SKIP)
    [leased] = await owned.lease(one)
    await edit(owned, job, ALLOW)
    assert await owned.slots() == {}
    [beside] = await owned.lease(two)
    await edit(owned, job, SKIP)
    await owned.complete(Completion(one, leased.lease_token))
    assert await owned.lease(three) == []
    await owned.complete(Completion(two, beside.lease_token))
    assert ids(await owned.lease(three)) == {three}


async def test_between_skip_and_replace_the_slot_stays_with_its_run(owned: OwnedPartition) -> None:
    job, [one, two] = await job_with_manual_runs(owned, 2, SKIP)
    [leased] = await owned.lease(one)
    await edit(owned, job, REPLACE)
    assert await owned.slots() == {job.job_id: one}
    assert await owned.lease(two) == []
    await owned.complete(Completion(one, leased.lease_token))
    assert await owned.slots() == {}


async def test_rows_of_runs_that_have_ended_are_dropped(owned: OwnedPartition) -> None:
    job, [one, two] = await job_with_manual_runs(owned, 2)
    first, _ = sorted(await owned.lease(one, two), key=lambda run: run.run_id != one)
    await edit(owned, job, SKIP)
    await owned.complete(Completion(one, first.lease_token))
    async with session(owned.pool) as conn:
        await forget_slotless(conn)
        assert await (await conn.execute("SELECT job_id, run_id FROM slotless_runs")).fetchall() == [(job.job_id, two)]


@pytest.mark.parametrize("policies", [SKIP, REPLACE])
async def test_in_a_race_with_leases_none_starts_beside_one_that_an_edit_found_live(
    owned: OwnedPartition, policies: Policies
) -> None:
    """Whatever the edit let pass counts; afterwards the others are asked for until all is over, and go one by one."""
    dice, found_live = random.Random(policies.overlap), 0
    for _ in range(RACES):
        job, run_ids = await job_with_manual_runs(owned, 3)

        async def lease(run_id: UUID) -> list[LeasedRun]:
            await asyncio.sleep(dice.random() * 0.003)
            return await owned.lease(run_id)

        async def edit_it(job: NewJob = job) -> None:
            await asyncio.sleep(dice.random() * 0.003)
            await edit(owned, job, policies)

        *leases, _ = await asyncio.gather(*map(lease, run_ids), edit_it())
        live = [run for each in leases or () for run in each or ()]
        found_live += len(live)
        for run in live:
            waiting = [run_id for run_id in run_ids if await owned.state_of(run_id) == "pending"]
            assert await owned.lease(*waiting) == []
            await owned.complete(Completion(run.run_id, run.lease_token))
        for _ in range(3 - len(live)):
            waiting = [run_id for run_id in run_ids if await owned.state_of(run_id) == "pending"]
            [run] = await owned.lease(*waiting)
            await owned.complete(Completion(run.run_id, run.lease_token))
        assert await owned.slots() == {}
    assert RACES < found_live < 3 * RACES
