"""Cancelling: at once what nobody executes, through the heartbeat's answer what somebody does; never a retry."""

from __future__ import annotations

import pytest

from ledger.cancellations import Cancelled, RunOwner, owners_of_runs
from ledger.completions import Completion, Failure, what_ended
from ledger.connection import session
from ledger.leases import Beat, HeldLease, Snooze
from tests.ledger.owned_partition import NOW, OwnedPartition, later, names


async def test_a_waiting_run_is_gone_at_once(owned: OwnedPartition) -> None:
    [waits] = await owned.runs(1)
    held = await owned.job_with_run()
    await owned.pause(held.job_id)
    assert held.run_id
    assert sorted(await owned.cancel(waits, held.run_id)) == sorted(
        [Cancelled(waits, "cancelled"), Cancelled(held.run_id, "cancelled")]
    )
    for run_id in (waits, held.run_id):
        told = (await owned.events_of(run_id))[-1]
        assert (told.event, told.fields["reasons"]) == ("run_cancelled", "cancelled")
        assert await owned.run(run_id) is None


async def test_a_leased_run_s_worker_is_told_and_its_lease_not_extended(owned: OwnedPartition) -> None:
    run = await owned.leased_run()
    assert await owned.cancel(run.run_id) == [Cancelled(run.run_id, "requested")]
    [answer] = await owned.beat(Beat(run.run_id, run.lease_token, 60.0), now=later(10))
    assert (answer.cancel, answer.lease_expires_at) == (True, later(30))
    told = (await owned.events_of(run.run_id))[-1]
    assert (told.event, told.version, told.fields["lease_expires_at"]) == ("run_cancel_requested", 3, later(30))


async def test_a_second_request_changes_nothing(owned: OwnedPartition) -> None:
    run = await owned.leased_run()
    await owned.cancel(run.run_id)
    told = await owned.told()
    assert await owned.cancel(run.run_id) == [Cancelled(run.run_id, "requested")]
    assert await owned.told() == told


async def test_work_that_is_done_before_the_worker_hears_of_it_counts(owned: OwnedPartition) -> None:
    run = await owned.leased_run()
    await owned.cancel(run.run_id)
    assert await owned.complete(Completion(run.run_id, run.lease_token)) == [run.run_id]


@pytest.mark.parametrize("end", ["fail", "fail for good", "release", "snooze", "expire"])
async def test_any_other_end_of_the_attempt_cancels_the_run(owned: OwnedPartition, end: str) -> None:
    run = await owned.leased_run(max_attempts=1)
    lease = (run.run_id, run.lease_token)
    await owned.cancel(run.run_id)
    if end.startswith("fail"):
        [ended] = await owned.fail(Failure(*lease, "stopped", permanent=end != "fail"))
        assert (ended.run_id, ended.outcome, ended.due_at) == (run.run_id, "cancelled", None)
    elif end == "release":
        await owned.release(HeldLease(*lease))
    elif end == "snooze":
        assert [each.outcome for each in await owned.snooze(Snooze(*lease, 5.0))] == ["cancelled"]
    else:
        await owned.expire(run.run_id, now=later(30))
    assert await owned.run(run.run_id) is None
    assert names(await owned.events_of(run.run_id))[2:] == ["run_cancel_requested", "run_cancelled"]
    async with session(owned.pool) as conn:
        told = await what_ended(conn, run.run_id, run.lease_token)
    assert told is not None
    assert (told.event, told.reason) == ("run_cancelled", "cancelled")


async def test_runs_of_other_partitions_and_unknown_ones_are_left_alone(owned: OwnedPartition) -> None:
    other = await OwnedPartition.take(owned.pool, partition=2)
    [elsewhere] = await other.runs(1)
    assert await owned.cancel(elsewhere, owned.new_job().job_id) == []
    assert await owned.state_of(elsewhere) == "pending"


async def test_whose_a_run_is_can_be_asked_of_live_and_dead_ones(owned: OwnedPartition) -> None:
    [waits] = await owned.runs(1)
    dead = await owned.leased_run()
    await owned.fail(Failure(dead.run_id, dead.lease_token, "boom", permanent=True))
    async with session(owned.pool) as conn:
        owners = await owners_of_runs(conn, [waits, dead.run_id, owned.new_job().job_id])
    assert owners.keys() == {waits, dead.run_id}
    assert owners[dead.run_id] == RunOwner(dead.job_id, "acme", "dead")
    assert (owners[waits].state, NOW) == ("pending", NOW)
