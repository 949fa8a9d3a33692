"""Jobs: what commands make of them, and the cursor that decides each occurrence once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest

from ledger.advances import Advance, advance_jobs
from ledger.commands import APPLIED, UNCHANGED, Outcome, forget_outcomes, read_outcomes, record_outcomes
from ledger.completions import Failure, fail_runs
from ledger.connection import Connection, Pool, session
from ledger.fence import Fence, api_transaction, hold_job_states, owner_transaction
from ledger.jobs import NewJob, Resumption, pause_jobs, read_partition_jobs, resume_jobs
from ledger.leases import LeasedRun
from ledger.runs import (
    DueRun,
    ManualRun,
    PendingRun,
    find_due,
    read_partition_runs,
    read_runs,
    trigger_jobs,
)
from schemas.ids import run_id_for
from tests.ledger.owned_partition import NOW, OwnedPartition, later, names, until_someone_waits_for_a_lock

T = TypeVar("T")


def next_advance(owned: OwnedPartition, job: NewJob, *, version: int = 1, seconds: float = 60) -> Advance:
    """From the job's first occurrence to the one after `seconds`."""
    fire = later(seconds)
    assert job.next_fire_at
    run_id = run_id_for(job.job_id, fire, owned.fence.partition)
    return Advance(job.job_id, version, job.next_fire_at, fire, run_id, fire)


async def advance(owned: OwnedPartition, *advances: Advance) -> list[PendingRun]:
    async with owner_transaction(owned.pool, owned.fence) as tx:
        return await advance_jobs(tx, advances, now=NOW)


async def resume(owned: OwnedPartition, resumption: Resumption) -> list[PendingRun]:
    async with owner_transaction(owned.pool, owned.fence) as tx:
        return await resume_jobs(tx, [resumption], now=NOW)


async def trigger(owned: OwnedPartition, run: ManualRun) -> list[PendingRun]:
    async with owner_transaction(owned.pool, owned.fence) as tx:
        return await trigger_jobs(tx, [run], now=NOW)


async def test_a_new_job_has_its_first_run_pending(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=later(5))
    assert job.run_id
    run = await owned.run(job.run_id)
    assert run is not None
    assert (run.state, run.scheduled_for, run.due_at, run.max_attempts) == ("pending", later(5), later(5), 3)
    kept = await owned.job(job.job_id)
    assert (kept.state, kept.version, kept.next_fire_at, kept.created_at) == ("active", 1, later(5), NOW)
    assert names((await owned.told())[job.job_id]) == ["job_created"]
    assert names(await owned.events_of(job.run_id)) == ["run_scheduled"]


async def test_a_job_without_an_occurrence_has_no_run(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=None)
    assert set(await owned.told()) == {job.job_id}
    assert (await owned.job(job.job_id)).next_fire_at is None


async def test_creating_a_job_again_changes_nothing(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    told = await owned.told()
    await owned.create(job._replace(queue="sms", payload="{}"))
    assert (await owned.job(job.job_id)).queue == "mail"
    assert await owned.told() == told


async def test_pausing_holds_the_waiting_runs_and_lets_the_leased_go_on(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    [retry] = await trigger(owned, manual(owned, leased.job_id))
    [other] = await owned.runs(1)
    assert await owned.pause(leased.job_id) == [retry.run_id]
    assert [await owned.state_of(run_id) for run_id in (leased.run_id, retry.run_id, other)] == [
        "leased",
        "held",
        "pending",
    ]
    job = await owned.job(leased.job_id)
    assert (job.state, job.version, job.paused_at) == ("paused", 2, NOW)


def manual(owned: OwnedPartition, job_id: UUID, payload: str | None = None) -> ManualRun:
    run_id = run_id_for(job_id, NOW, owned.fence.partition, nonce=uuid4().bytes)
    return ManualRun(job_id, run_id, NOW, payload)


async def test_pausing_twice_changes_nothing_more(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    await owned.pause(job.job_id)
    told = await owned.told()
    assert await owned.pause(job.job_id) == []
    assert await owned.told() == told


async def test_resuming_a_recurring_job_skips_what_passed_and_goes_on_from_the_next(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=later(5))
    await owned.pause(job.job_id)
    fire = later(65)
    run_id = run_id_for(job.job_id, fire, owned.fence.partition)
    [waits] = await resume(owned, Resumption(job.job_id, fire, job.run_id, run_id, fire))
    assert (waits.run_id, waits.due_at) == (run_id, fire)
    assert job.run_id
    assert await owned.run(job.run_id) is None
    skipped = (await owned.events_of(job.run_id))[-1]
    assert (skipped.event, skipped.fields["reasons"]) == ("run_skipped", "paused")
    resumed = await owned.job(job.job_id)
    assert (resumed.state, resumed.version, resumed.next_fire_at, resumed.paused_at) == ("active", 3, fire, None)


async def test_resuming_keeps_a_one_off_that_became_due_meanwhile(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=later(5))
    await owned.pause(job.job_id)
    [waits] = await resume(owned, Resumption(job.job_id, job.next_fire_at, None, None, None))
    assert (waits.run_id, waits.due_at) == (job.run_id, later(5))
    assert job.run_id
    assert names(await owned.events_of(job.run_id)) == ["run_scheduled", "run_held", "run_scheduled"]


async def test_resuming_lets_a_held_retry_go_on(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    await owned.pause(leased.job_id)
    await owned.fail(Failure(leased.run_id, leased.lease_token, "boom", retry_after_s=1))
    [waits] = await resume(owned, Resumption(leased.job_id, None, None, None, None))
    assert waits.run_id == leased.run_id
    [again] = await owned.lease(leased.run_id, now=later(1))
    assert again.attempt == 2


async def test_resuming_leaves_a_job_alone_that_is_not_paused(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    told = await owned.told()
    assert await resume(owned, Resumption(job.job_id, later(99), job.run_id, None, None)) == []
    assert await owned.told() == told


async def test_deleting_drops_every_run_that_nobody_has_leased(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    [waiting] = await trigger(owned, manual(owned, leased.job_id))
    assert await owned.delete(leased.job_id) == [waiting.run_id]
    assert await owned.state_of(leased.run_id) == "leased"
    assert names(await owned.events_of(waiting.run_id)) == ["run_scheduled", "run_cancelled"]


async def test_deleting_drops_held_runs_too(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    await owned.pause(job.job_id)
    assert await owned.delete(job.job_id) == [job.run_id]
    deleted = await owned.job(job.job_id)
    assert (deleted.state, deleted.next_fire_at, deleted.paused_at) == ("deleted", None, None)


async def test_a_deleted_job_stays_as_a_tombstone_that_nothing_brings_back(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    await owned.delete(job.job_id)
    told = await owned.told()
    await owned.create(job)
    assert await owned.delete(job.job_id) == []
    assert await owned.pause(job.job_id) == []
    assert await advance(owned, next_advance(owned, job, version=2)) == []
    assert (await owned.job(job.job_id)).state == "deleted"
    assert await owned.told() == told


async def test_a_triggered_run_is_due_at_once_with_the_job_s_payload_or_its_own(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=later(3600))
    plain, own = manual(owned, job.job_id), manual(owned, job.job_id, '{"n":2}')
    await trigger(owned, plain)
    await trigger(owned, own)
    leases = await owned.lease(plain.run_id, own.run_id)
    assert {run.run_id: run.payload for run in leases} == {plain.run_id: '{"n":1}', own.run_id: '{"n":2}'}
    assert (await owned.job(job.job_id)).next_fire_at == later(3600)


async def test_a_trigger_that_was_issued_ahead_of_the_ledger_s_clock_is_due_now(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=None)
    [made] = await trigger(owned, manual(owned, job.job_id)._replace(scheduled_for=later(10)))
    assert made.due_at == NOW


async def test_triggering_twice_makes_one_run(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=None)
    once = manual(owned, job.job_id)
    assert len(await trigger(owned, once)) == 1
    assert await trigger(owned, once) == []


async def test_advancing_moves_the_cursor_and_makes_the_next_run(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    [made] = await advance(owned, next_advance(owned, job))
    assert (made.scheduled_for, made.due_at) == (later(60), later(60))
    moved = await owned.job(job.job_id)
    assert (moved.next_fire_at, moved.version) == (later(60), 1)


async def test_advancing_past_the_last_occurrence_leaves_the_job_without_one(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    assert job.next_fire_at
    assert await advance(owned, Advance(job.job_id, 1, job.next_fire_at, None, None, None)) == []
    assert (await owned.job(job.job_id)).next_fire_at is None


async def test_only_one_of_two_deciders_moves_the_cursor(owned: OwnedPartition) -> None:
    """Even with different ideas of what comes next, as after an edit or another tzdata."""
    job = await owned.job_with_run()
    made = await asyncio.gather(
        *(advance(owned, next_advance(owned, job, seconds=60 + decider)) for decider in range(5))
    )
    [won] = [run for runs in made for run in runs]
    assert (await owned.job(job.job_id)).next_fire_at == won.scheduled_for
    async with session(owned.pool) as conn:
        rows = await (await conn.execute("SELECT count(*) FROM runs WHERE job_id = %s", (job.job_id,))).fetchall()
    assert rows == [(2,)]


async def test_a_decision_about_an_older_version_of_the_job_is_void(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    await owned.pause(job.job_id)
    await resume(owned, Resumption(job.job_id, job.next_fire_at, None, None, None))
    assert await advance(owned, next_advance(owned, job, version=1)) == []
    assert len(await advance(owned, next_advance(owned, job, version=3))) == 1


async def test_a_paused_job_is_not_advanced(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    await owned.pause(job.job_id)
    assert await advance(owned, next_advance(owned, job, version=2)) == []


# -- a job's state changes while something of it is on its way


async def begin(owned: OwnedPartition, later_one: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start it, and return when it waits for the transaction that is open."""
    task = asyncio.create_task(later_one)
    async with session(owned.pool) as conn:
        await until_someone_waits_for_a_lock(conn)
    return task


async def fail_in(conn: Connection, leased: LeasedRun) -> None:
    assert len(await fail_runs(conn, [Failure(leased.run_id, leased.lease_token, "boom")], now=NOW)) == 1


async def test_a_pause_does_not_miss_a_run_that_is_failing_at_that_moment(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    async with api_transaction(owned.pool, [leased.run_id]) as conn:
        await fail_in(conn, leased)
        pause = await begin(owned, owned.pause(leased.job_id))
    assert await pause == [leased.run_id]
    assert await owned.state_of(leased.run_id) == "held"


async def test_a_failing_run_does_not_miss_a_pause_at_that_moment(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    async with owner_transaction(owned.pool, owned.fence) as tx:
        await pause_jobs(tx, [leased.job_id], now=NOW)
        fail = await begin(owned, owned.fail(Failure(leased.run_id, leased.lease_token, "boom")))
    [ended] = await fail
    assert ended.outcome == "held"


async def test_a_deletion_does_not_miss_a_run_that_is_failing_at_that_moment(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    async with api_transaction(owned.pool, [leased.run_id]) as conn:
        await fail_in(conn, leased)
        deletion = await begin(owned, owned.delete(leased.job_id))
    assert await deletion == [leased.run_id]


async def test_a_run_that_comes_back_during_a_resumption_is_not_held_for_ever(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    await owned.pause(leased.job_id)
    async with api_transaction(owned.pool, [leased.run_id]) as conn:
        await fail_in(conn, leased)
        resumption = await begin(owned, resume(owned, Resumption(leased.job_id, None, None, None, None)))
    assert [run.run_id for run in await resumption] == [leased.run_id]


async def test_a_pause_does_not_miss_an_occurrence_that_is_decided_at_that_moment(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    async with owner_transaction(owned.pool, owned.fence) as tx:
        [made] = await advance_jobs(tx, [next_advance(owned, job)], now=NOW)
        pause = await begin(owned, owned.pause(job.job_id))
    assert set(await pause) == {job.run_id, made.run_id}


async def test_job_states_are_held_for_one_partition_only(owned: OwnedPartition) -> None:
    elsewhere = run_id_for(uuid4(), NOW, owned.fence.partition + 1)
    job = await owned.job_with_run()
    async with api_transaction(owned.pool, [elsewhere]) as conn:
        await hold_job_states(conn, [elsewhere])
        assert await owned.pause(job.job_id) == [job.run_id]


# -- looking things up


async def test_an_owner_reads_back_its_partition_s_jobs_and_live_runs(ledger_pool: Pool, owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    [waiting] = await owned.runs(1)
    paused, deleted = await owned.job_with_run(), await owned.job_with_run()
    await owned.pause(paused.job_id)
    await owned.delete(deleted.job_id)
    elsewhere = await OwnedPartition.take(ledger_pool, partition=4)
    await elsewhere.runs(1)
    async with session(ledger_pool) as conn:
        runs = {run.run_id: run async for batch in read_partition_runs(conn, owned.fence.partition) for run in batch}
        jobs = {job.job_id async for batch in read_partition_jobs(conn, owned.fence.partition) for job in batch}
        some = {run.run_id for run in await read_runs(conn, [leased.run_id, paused.run_id or waiting])}
    assert {run_id: run.state for run_id, run in runs.items()} == {leased.run_id: "leased", waiting: "pending"}
    assert runs[leased.run_id].lease_expires_at == leased.lease_expires_at
    assert leased.job_id in jobs
    assert not jobs & {paused.job_id, deleted.job_id}
    assert some == {leased.run_id}


async def test_due_runs_are_found_oldest_first_by_tenant_queue_and_lane(owned: OwnedPartition) -> None:
    oldest, older = await owned.runs(1, due_at=later(-20)), await owned.runs(1, due_at=later(-10))
    await owned.runs(1, due_at=later(1))
    await owned.runs(1, queue="sms")
    await owned.runs(1, tenant="other")
    [high] = await owned.runs(1, lane=0)
    await owned.leased_run()
    async with session(owned.pool) as conn:
        found = await find_due(conn, [("acme", "mail")], 10, now=NOW)
        one_each = await find_due(conn, [("acme", "mail")], 1, now=NOW)
    epoch = owned.fence.epoch
    assert [due.run_id for due in found if due.lane == 1] == [*oldest, *older]
    assert [due for due in found if due.lane == 0] == [DueRun("acme", "mail", 0, high, epoch)]
    assert {due.run_id for due in one_each} == {high, *oldest}


# -- what became of commands


async def test_the_first_outcome_of_a_command_stands(owned: OwnedPartition) -> None:
    applied, rejected = uuid4(), uuid4()
    first = [Outcome(applied, APPLIED), Outcome(rejected, "invalid", "no such zone", "schedule.zone")]
    await record(owned.pool, owned.fence, *first)
    await record(owned.pool, owned.fence, Outcome(applied, UNCHANGED), Outcome(rejected, APPLIED))
    async with session(owned.pool) as conn:
        assert await read_outcomes(conn, [applied, rejected, uuid4()]) == {each.command_id: each for each in first}


async def record(pool: Pool, fence: Fence, *outcomes: Outcome) -> None:
    async with owner_transaction(pool, fence) as tx:
        await record_outcomes(tx, outcomes)


async def test_outcomes_are_forgotten_after_a_day(owned: OwnedPartition) -> None:
    old, young = uuid4(), uuid4()
    await record(owned.pool, owned.fence, Outcome(old, APPLIED))
    async with session(owned.pool) as conn:
        await conn.execute("UPDATE applied_commands SET applied_at = applied_at - interval '25 hours'")
        await record(owned.pool, owned.fence, Outcome(young, APPLIED))
        await forget_outcomes(conn)
        assert set(await read_outcomes(conn, [old, young])) == {young}


@pytest.mark.parametrize("nothing", [[], [uuid4()]])
async def test_asking_of_jobs_that_are_not_there_changes_nothing(owned: OwnedPartition, nothing: list[UUID]) -> None:
    assert await owned.pause(*nothing) == []
    assert await owned.delete(*nothing) == []
    assert await owned.told() == {}
