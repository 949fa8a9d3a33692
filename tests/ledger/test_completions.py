"""How attempts end: completed, to be retried, or dead."""

from __future__ import annotations

from datetime import timedelta
from statistics import mean
from typing import Any

import pytest

from ledger.completions import (
    AttemptEnd,
    Completion,
    Ended,
    Failure,
    lease_expiries,
    what_ended,
)
from ledger.connection import session
from ledger.leases import HeldLease, LeasedRun
from ledger.outbox import delete_from_outbox, read_outbox
from tests.ledger.owned_partition import NOW, OwnedPartition, later, names


def completion(leased: LeasedRun, result: str | None = None) -> Completion:
    return Completion(leased.run_id, leased.lease_token, result)


def failure(leased: LeasedRun, reason: str = "boom", **how: Any) -> Failure:
    return Failure(leased.run_id, leased.lease_token, reason)._replace(**how)


async def test_a_completed_run_leaves_the_hot_table(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    assert await owned.complete(completion(leased)) == [leased.run_id]
    assert await owned.run(leased.run_id) is None


async def test_the_event_of_a_completion_keeps_its_result_and_who_gave_it(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    await owned.complete(completion(leased, '{"sent": 3}'))
    told = (await owned.events_of(leased.run_id))[-1]
    assert (told.event, told.version) == ("run_completed", 3)
    expected = {"results": '{"sent": 3}', "worker_ids": "worker-1", "attempts": 1, "lease_tokens": 1}
    assert expected.items() <= told.fields.items()


async def test_completions_of_one_transaction_share_a_row_of_the_outbox(owned: OwnedPartition) -> None:
    leases = await owned.lease(*await owned.runs(20))
    await owned.complete(*(completion(leased, f'"{n}"') for n, leased in enumerate(leases)))
    async with session(owned.pool) as conn:
        row = (await read_outbox(conn, 10))[-1]
    assert row.event == "run_completed"
    assert row.results is not None
    assert row.run_ids is not None
    results = dict(zip(row.run_ids, row.results, strict=True))
    assert results == {str(leased.run_id): f'"{n}"' for n, leased in enumerate(leases)}


async def test_a_second_completion_writes_nothing_and_the_outbox_tells_what_came_of_the_first(
    owned: OwnedPartition,
) -> None:
    leased = await owned.leased_run()
    await owned.complete(completion(leased, '"first"'))
    told = await owned.told()
    assert await owned.complete(completion(leased, '"second"')) == []
    assert await owned.told() == told
    async with session(owned.pool) as conn:
        assert await what_ended(conn, leased.run_id, leased.lease_token) == AttemptEnd(
            "run_completed", 1, "acme", "mail", 1, leased.job_id, 1, NOW, "worker-1", None, None, '"first"'
        )


async def test_what_ended_is_asked_of_one_lease(owned: OwnedPartition) -> None:
    first = await owned.leased_run()
    await owned.fail(failure(first, "first", retry_after_s=0))
    [second] = await owned.lease(first.run_id)
    await owned.complete(completion(second))
    async with session(owned.pool) as conn:
        of_first = await what_ended(conn, first.run_id, first.lease_token)
        of_run = await what_ended(conn, first.run_id)
        assert await what_ended(conn, first.run_id, 3) is None
    assert of_first is not None
    assert of_run is not None
    assert (of_first.event, of_first.reason, of_run.event) == ("run_retried", "first", "run_completed")


async def test_what_ended_is_not_known_once_its_event_is_published(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    await owned.complete(completion(leased))
    async with session(owned.pool) as conn:
        await delete_from_outbox(conn, [row.id for row in await read_outbox(conn, 100)])
        assert await what_ended(conn, leased.run_id, leased.lease_token) is None


async def test_a_run_that_was_dropped_with_its_job_ended_without_a_lease(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    await owned.delete(job.job_id)
    assert job.run_id
    async with session(owned.pool) as conn:
        end = await what_ended(conn, job.run_id)
        assert await what_ended(conn, job.run_id, 1) is None
    assert end is not None
    assert (end.event, end.lease_token, end.reason) == ("run_cancelled", None, "deleted")


async def test_a_failed_attempt_is_retried_later(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    [ended] = await owned.fail(failure(leased))
    run = await owned.run(leased.run_id)
    assert run is not None
    assert ended == Ended(leased.run_id, "retried", run.due_at)
    assert (run.state, run.attempt, run.lease_expires_at, run.worker_id) == ("pending", 1, None, None)
    told = (await owned.events_of(leased.run_id))[-1]
    assert (told.event, told.fields["reasons"], told.fields["due_at"]) == ("run_retried", "boom", run.due_at)


@pytest.mark.parametrize("attempt", [1, 2, 3, 5, 9, 10, 11, 40])
async def test_the_delay_of_a_retry_is_uniform_up_to_two_to_the_attempt_but_ten_minutes(
    owned: OwnedPartition, attempt: int
) -> None:
    bound_s = min(600, 2**attempt)
    run_ids = await owned.runs(200, max_attempts=100)
    async with session(owned.pool) as conn:
        await conn.execute("UPDATE runs SET attempt = %s", (attempt - 1,))
    ends = await owned.fail(*(failure(leased) for leased in await owned.lease(*run_ids)))
    delays_s = [(end.due_at - NOW).total_seconds() for end in ends if end.due_at]
    assert len(delays_s) == 200
    assert all(0 <= delay_s <= bound_s for delay_s in delays_s)
    # Uniform: of 200 draws the mean misses the middle by 6 sigma in one of 10^9 runs, and no draw is in the last 15 %
    # in one of 10^14.
    assert mean(delays_s) == pytest.approx(bound_s / 2, abs=6 * bound_s / (12 * 200) ** 0.5)
    assert max(delays_s) > 0.85 * bound_s
    assert min(delays_s) < 0.15 * bound_s


async def test_a_worker_can_say_when_to_retry(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    [ended] = await owned.fail(failure(leased, retry_after_s=86_400.5))
    assert ended.due_at == later(86_400.5)


async def test_a_permanent_failure_is_dead_at_once(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    assert await owned.fail(failure(leased, permanent=True)) == [Ended(leased.run_id, "dead", None)]
    assert names(await owned.events_of(leased.run_id))[-1] == "run_dead"


async def test_a_run_is_dead_when_its_attempts_are_used_up(owned: OwnedPartition) -> None:
    [run_id] = await owned.runs(1, max_attempts=3)
    outcomes = []
    for attempt in range(1, 4):
        [leased] = await owned.lease(run_id)
        assert leased.attempt == attempt
        [ended] = await owned.fail(failure(leased, f"boom {attempt}", retry_after_s=0))
        outcomes.append(ended.outcome)
    assert outcomes == ["retried", "retried", "dead"]
    assert await owned.lease(run_id) == []


async def test_a_dead_run_keeps_what_a_replay_and_an_operator_need(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    await owned.fail(failure(leased, "no such mailbox", permanent=True))
    run = await owned.run(leased.run_id)
    assert run is not None
    assert (run.state, run.reason, run.worker_id, run.attempt, run.version) == (
        "dead",
        "no such mailbox",
        "worker-1",
        1,
        3,
    )
    async with session(owned.pool) as conn:
        rows = await (await conn.execute("SELECT payload, died_at, scheduled_for FROM dead_runs")).fetchall()
    assert rows == [('{"n":1}', NOW, NOW)]


async def test_a_batch_of_failures_goes_each_its_way(owned: OwnedPartition) -> None:
    retried, permanent = await owned.lease(*await owned.runs(2))
    used_up = await owned.leased_run(max_attempts=1)
    ends = await owned.fail(failure(retried), failure(permanent, permanent=True), failure(used_up))
    assert {end.run_id: end.outcome for end in ends} == {
        retried.run_id: "retried",
        permanent.run_id: "dead",
        used_up.run_id: "dead",
    }


async def test_only_leases_that_have_run_out_are_expired(owned: OwnedPartition) -> None:
    [out, held, waiting] = await owned.runs(3)
    await owned.lease(out, visibility_s=10.0)
    await owned.lease(held, visibility_s=10.000001)
    [ended] = await owned.expire(out, held, waiting, now=later(10))
    assert (ended.run_id, ended.outcome) == (out, "retried")
    assert ended.due_at is not None
    assert timedelta() <= ended.due_at - later(10) <= timedelta(seconds=2)
    assert [await owned.state_of(run_id) for run_id in (out, held, waiting)] == ["pending", "leased", "pending"]


async def test_an_expired_attempt_counts(owned: OwnedPartition) -> None:
    leased = await owned.leased_run(max_attempts=1)
    assert await owned.expire(leased.run_id, now=leased.lease_expires_at) == [Ended(leased.run_id, "dead", None)]
    run = await owned.run(leased.run_id)
    assert run is not None
    assert run.reason == "lease expired"


async def test_expiring_twice_ends_an_attempt_once(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    assert len(await owned.expire(leased.run_id, now=later(60))) == 1
    assert await owned.expire(leased.run_id, now=later(60)) == []


async def test_the_ledger_tells_when_leases_expire(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    [waiting] = await owned.runs(1)
    async with session(owned.pool) as conn:
        assert await lease_expiries(conn, [leased.run_id, waiting]) == {leased.run_id: leased.lease_expires_at}


@pytest.mark.parametrize("end", ["fail", "expire", "release"])
async def test_a_run_that_comes_back_to_its_paused_job_is_held(owned: OwnedPartition, end: str) -> None:
    leased = await owned.leased_run()
    assert await owned.pause(leased.job_id) == []
    assert await owned.state_of(leased.run_id) == "leased"
    assert await come_back(owned, leased, end) == (None if end == "release" else Ended(leased.run_id, "held", None))
    assert await owned.state_of(leased.run_id) == "held"
    assert names(await owned.events_of(leased.run_id)) == ["run_scheduled", "run_leased", "run_held"]
    assert await owned.lease(leased.run_id, now=later(10_000)) == []


async def come_back(owned: OwnedPartition, leased: LeasedRun, end: str) -> Ended | None:
    if end == "release":
        assert await owned.release(HeldLease(leased.run_id, leased.lease_token)) == [leased.run_id]
        return None
    if end == "fail":
        [ended] = await owned.fail(failure(leased))
    else:
        [ended] = await owned.expire(leased.run_id, now=leased.lease_expires_at)
    return ended


@pytest.mark.parametrize("end", ["fail", "expire", "release"])
async def test_a_run_that_comes_back_to_its_deleted_job_is_cancelled(owned: OwnedPartition, end: str) -> None:
    leased = await owned.leased_run()
    assert await owned.delete(leased.job_id) == []
    ended = await come_back(owned, leased, end)
    assert ended == (None if end == "release" else Ended(leased.run_id, "cancelled", None))
    assert await owned.run(leased.run_id) is None
    told = (await owned.events_of(leased.run_id))[-1]
    assert (told.event, told.version, told.fields["reasons"]) == ("run_cancelled", 3, "deleted")
    assert told.fields["lease_tokens"] == leased.lease_token


@pytest.mark.parametrize("end", ["pause", "delete"])
async def test_a_run_can_be_completed_though_its_job_was_paused_or_deleted(owned: OwnedPartition, end: str) -> None:
    leased = await owned.leased_run()
    await (owned.pause(leased.job_id) if end == "pause" else owned.delete(leased.job_id))
    assert await owned.complete(completion(leased)) == [leased.run_id]


@pytest.mark.parametrize("end", ["pause", "delete"])
async def test_a_run_whose_attempts_are_used_up_is_dead_though_its_job_was_paused_or_deleted(
    owned: OwnedPartition, end: str
) -> None:
    leased = await owned.leased_run(max_attempts=1)
    await (owned.pause(leased.job_id) if end == "pause" else owned.delete(leased.job_id))
    assert await owned.fail(failure(leased)) == [Ended(leased.run_id, "dead", None)]
    assert await owned.state_of(leased.run_id) == "dead"


async def test_a_held_retry_keeps_its_delay_and_its_attempts(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    await owned.pause(leased.job_id)
    await owned.fail(failure(leased, retry_after_s=120))
    run = await owned.run(leased.run_id)
    assert run is not None
    assert (run.state, run.attempt, run.due_at) == ("held", 1, later(120))
