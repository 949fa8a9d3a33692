"""Admissions: what a job's overlap rule and the deadline for a start make of runs that have come due."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from ledger.admissions import Admission
from ledger.completions import Completion, Failure
from ledger.connection import session
from ledger.fence import api_transaction
from ledger.jobs import Policies
from ledger.leases import Beat, HeldLease, lease_runs
from tests.ledger.owned_partition import NOW, OwnedPartition, ids, later, names, until_someone_waits_for_a_lock

SKIP, REPLACE = Policies(overlap=1), Policies(overlap=2)


def ready(*run_ids: UUID) -> Admission:
    return Admission(list(run_ids), [], [])


def waiting(*run_ids: UUID) -> Admission:
    return Admission([], list(run_ids), [])


def over(*run_ids: UUID) -> Admission:
    return Admission([], [], list(run_ids))


async def reason_of(owned: OwnedPartition, run_id: UUID) -> tuple[str, str]:
    told = (await owned.events_of(run_id))[-1]
    return told.event, told.fields["reasons"]


@pytest.mark.parametrize("policies", [SKIP, REPLACE])
async def test_a_run_whose_job_does_nothing_else_is_ready(owned: OwnedPartition, policies: Policies) -> None:
    [run_id] = await owned.runs(1, policies=policies)
    assert await owned.admit(run_id) == ready(run_id)


async def test_skip_skips_a_run_while_another_is_leased(owned: OwnedPartition) -> None:
    leased = await owned.leased_run(policies=SKIP)
    run_id = await owned.trigger(leased.job_id, later(1))
    assert await owned.admit(run_id, now=later(1)) == over(run_id)
    assert await reason_of(owned, run_id) == ("run_skipped", f"overlap: run {leased.run_id} is active")


async def test_skip_skips_a_run_while_another_waits_for_its_first_lease(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(policies=SKIP)
    assert job.run_id
    later_ones = [await owned.trigger(job.job_id, later(second)) for second in range(1, 31)]
    assert (await owned.admit(job.run_id, *later_ones, now=later(30))).ready == [job.run_id]
    assert {(await reason_of(owned, run_id))[0] for run_id in later_ones} == {"run_skipped"}


async def test_skip_skips_a_run_while_another_waits_for_its_retry(owned: OwnedPartition) -> None:
    leased = await owned.leased_run(policies=SKIP)
    await owned.fail(Failure(leased.run_id, leased.lease_token, "boom", retry_after_s=600))
    run_id = await owned.trigger(leased.job_id, later(1))
    assert await owned.admit(run_id, now=later(1)) == over(run_id)


async def test_the_next_occurrence_does_not_count_before_it_is_due(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=later(60), policies=SKIP)
    run_id = await owned.trigger(job.job_id)
    assert await owned.admit(run_id) == ready(run_id)


async def test_a_paused_job_s_held_occurrence_does_not_stop_a_manual_run(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(policies=SKIP)
    await owned.pause(job.job_id)
    run_id = await owned.trigger(job.job_id, later(1))
    assert await owned.admit(run_id, now=later(1)) == ready(run_id)


async def test_a_retry_waits_for_its_turn_instead_of_being_skipped(owned: OwnedPartition) -> None:
    first = await owned.leased_run(policies=SKIP)
    second = await owned.trigger(first.job_id, later(1))  # asked for by a poll, which knows no owner's decision
    await owned.fail(Failure(first.run_id, first.lease_token, "boom", retry_after_s=5))
    [taken] = await owned.lease(second, now=later(1))
    assert await owned.admit(first.run_id, now=later(5)) == waiting(first.run_id)
    await owned.complete(Completion(second, taken.lease_token), now=later(6))
    assert await owned.admit(first.run_id, now=later(6)) == ready(first.run_id)


async def test_replace_cancels_what_waits_and_asks_what_is_leased_to_stop(owned: OwnedPartition) -> None:
    first = await owned.leased_run(policies=REPLACE)
    second = await owned.trigger(first.job_id, later(1))
    third = await owned.trigger(first.job_id, later(2))
    admission = await owned.admit(second, third, now=later(2))
    assert (admission.ready, admission.waiting, admission.over) == ([], [third], [second])
    assert await reason_of(owned, second) == ("run_cancelled", "replaced")
    assert await reason_of(owned, first.run_id) == ("run_cancel_requested", "replaced")
    [answer] = await owned.beat(Beat(first.run_id, first.lease_token, 60.0), now=later(3))
    assert (answer.cancel, answer.lease_expires_at) == (True, later(30))


async def test_a_replaced_run_can_not_be_completed_and_the_new_one_starts_after_it(owned: OwnedPartition) -> None:
    old = await owned.leased_run(policies=REPLACE)
    new = await owned.trigger(old.job_id, later(1))
    await owned.admit(new, now=later(1))
    assert await owned.lease(new, now=later(1)) == []
    assert await owned.complete(Completion(old.run_id, old.lease_token), now=later(2)) == []
    assert await reason_of(owned, old.run_id) == ("run_cancelled", "replaced")
    assert ids(await owned.lease(new, now=later(2))) == {new}


async def test_a_run_that_is_made_and_leased_while_another_is_admitted_is_not_taken_from_its_worker(
    owned: OwnedPartition,
) -> None:
    """It was due before that one, but the admission had locked the job's runs when it came."""
    job = await owned.job_with_run(due_at=later(1), policies=REPLACE)
    assert job.run_id
    async with session(owned.pool) as witness, api_transaction(owned.pool, [job.run_id]) as lease:
        async with session(owned.pool) as conn, conn.transaction():
            await conn.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (job.run_id,))
            admission = asyncio.create_task(owned.admit(job.run_id, now=later(1)))
            await until_someone_waits_for_a_lock(witness)
            manual = await owned.trigger(job.job_id)
            assert ids(await lease_runs(lease, [owned.ask(manual)], now=later(1))) == {manual}
        assert (await admission).waiting == [job.run_id]
    assert await owned.state_of(manual) == "leased"
    assert names(await owned.events_of(manual)) == ["run_scheduled", "run_leased"]
    assert await owned.slots() == {job.job_id: manual}


async def test_asking_again_tells_nothing_again(owned: OwnedPartition) -> None:
    old = await owned.leased_run(policies=REPLACE)
    new = await owned.trigger(old.job_id, later(1))
    for _ in range(3):
        assert await owned.admit(new, now=later(1)) == waiting(new)
    assert names(await owned.events_of(old.run_id)) == ["run_scheduled", "run_leased", "run_cancel_requested"]


async def test_a_run_that_is_not_pending_and_due_is_over_for_its_owner(owned: OwnedPartition) -> None:
    leased = await owned.leased_run(policies=SKIP)
    [early] = await owned.runs(1, due_at=later(60), policies=SKIP)
    assert await owned.admit(leased.run_id, early) == over(leased.run_id, early)
    assert await owned.state_of(early) == "pending"


# -- the deadline for a start

DEADLINE = Policies(start_deadline_s=10.0)


async def test_a_run_may_start_at_its_deadline_and_not_after_it(owned: OwnedPartition) -> None:
    at, after = await owned.runs(2, policies=DEADLINE)
    assert await owned.lease(after, now=later(10.000001)) == []
    assert ids(await owned.lease(at, now=later(10))) == {at}


async def test_a_run_past_its_deadline_is_skipped_and_one_at_it_is_not(owned: OwnedPartition) -> None:
    [run_id] = await owned.runs(1, policies=DEADLINE)
    assert await owned.skip_late(run_id, now=later(10)) == []
    assert await owned.skip_late(run_id, now=later(10.000001)) == [run_id]
    assert await reason_of(owned, run_id) == ("run_skipped", "start deadline")


async def test_only_waiting_runs_past_their_deadline_are_found_those_first_that_have_been_for_longest(
    owned: OwnedPartition,
) -> None:
    [started] = await owned.runs(1, policies=DEADLINE)
    await owned.lease(started)
    await owned.runs(1)
    [later_one] = await owned.runs(1, due_at=later(5), policies=DEADLINE)
    [sooner] = await owned.runs(1, policies=DEADLINE)
    assert await owned.find_late(now=later(10)) == []
    assert await owned.find_late(now=later(15)) == [sooner]
    assert await owned.find_late(now=later(16)) == [sooner, later_one]
    assert await owned.find_late(1, now=later(16)) == [sooner]


async def test_the_deadline_counts_from_the_due_time_with_its_jitter(owned: OwnedPartition) -> None:
    [run_id] = await owned.runs(1, due_at=later(100), next_fire_at=NOW, policies=DEADLINE)
    assert await owned.skip_late(run_id, now=later(110)) == []
    assert ids(await owned.lease(run_id, now=later(110))) == {run_id}


async def test_a_retry_has_started_and_knows_no_deadline(owned: OwnedPartition) -> None:
    run = await owned.leased_run(policies=DEADLINE)
    await owned.fail(Failure(run.run_id, run.lease_token, "boom", retry_after_s=600))
    assert await owned.skip_late(run.run_id, now=later(600)) == []
    assert ids(await owned.lease(run.run_id, now=later(600))) == {run.run_id}


async def test_a_run_given_back_unexecuted_has_not_started(owned: OwnedPartition) -> None:
    run = await owned.leased_run(policies=DEADLINE)
    await owned.release(HeldLease(run.run_id, run.lease_token))
    assert await owned.lease(run.run_id, now=later(11)) == []
    assert await owned.skip_late(run.run_id, now=later(11)) == [run.run_id]
