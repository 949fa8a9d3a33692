"""The delay before a retry: never none, never more than the job says, and it grows as the job says."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.completions import Failure
from ledger.connection import session
from ledger.jobs import Policies
from ledger.leases import Beat
from tests.ledger.owned_partition import NOW, OwnedPartition, later

BACKOFFS = ("exponential", "linear", "fixed")


def longest_s(backoff: str, base_s: float, max_s: float, attempt: int) -> float:
    growth = {"exponential": 2.0**attempt, "linear": attempt, "fixed": 1}[backoff]
    return min(max_s, base_s * growth)


async def delays_s(owned: OwnedPartition, count: int, attempt: int, policies: Policies) -> list[float]:
    """What that many runs get after their attempt of this number has failed."""
    run_ids = await owned.runs(count, max_attempts=200, policies=policies)
    leased = await owned.lease(*run_ids)
    async with session(owned.pool) as conn:
        await conn.execute("UPDATE runs SET attempt = %s WHERE run_id = ANY(%s)", (attempt, run_ids))
    ended = await owned.fail(*(Failure(run.run_id, run.lease_token, "boom") for run in leased))
    return [(end.due_at - NOW).total_seconds() for end in ended if end.due_at]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    backoff=st.sampled_from(BACKOFFS),
    base_s=st.floats(0.001, 1000),
    max_s=st.floats(0.001, 10_000),
    attempt=st.integers(1, 100),
)
async def test_a_delay_is_more_than_nothing_and_at_most_the_job_s(
    owned: OwnedPartition, backoff: str, base_s: float, max_s: float, attempt: int
) -> None:
    policies = Policies(retry_backoff=BACKOFFS.index(backoff), retry_base_s=base_s, retry_max_s=max_s)
    delays = await delays_s(owned, 20, attempt, policies)
    assert len(delays) == 20
    assert min(delays) > 0
    assert max(delays) <= longest_s(backoff, base_s, max_s, attempt) + 1e-6


@pytest.mark.parametrize("backoff", BACKOFFS)
@pytest.mark.parametrize("attempt", [1, 2, 5])
async def test_delays_spread_over_all_of_it(owned: OwnedPartition, backoff: str, attempt: int) -> None:
    """Of 400 uniform ones a tenth is in each tenth, give or take; a herd in one of them would be far outside."""
    policies = Policies(retry_backoff=BACKOFFS.index(backoff), retry_base_s=10.0, retry_max_s=600.0)
    longest = longest_s(backoff, 10.0, 600.0, attempt)
    delays = await delays_s(owned, 400, attempt, policies)
    tenths = [sum(1 for delay in delays if n <= delay / longest * 10 < n + 1) for n in range(10)]
    assert all(10 <= count <= 90 for count in tenths), tenths


async def test_without_a_word_from_the_job_the_delay_doubles_from_two_seconds_up_to_ten_minutes(
    owned: OwnedPartition,
) -> None:
    assert 1 < max(await delays_s(owned, 100, 1, Policies())) <= 2
    assert 300 < max(await delays_s(owned, 100, 50, Policies())) <= 600


@pytest.mark.parametrize(("asked_s", "granted_s"), [(0.0, 0), (90.0, 90), (30 * 86400.0, 7 * 86400)])
async def test_the_worker_s_own_delay_wins_up_to_a_week(
    owned: OwnedPartition, asked_s: float, granted_s: float
) -> None:
    run = await owned.leased_run()
    [end] = await owned.fail(Failure(run.run_id, run.lease_token, "busy", retry_after_s=asked_s))
    assert end.due_at == later(granted_s)


# -- the bound of an attempt

TIMEOUT = Policies(timeout_s=20.0)


async def test_a_lease_never_outlasts_the_attempt_whatever_heartbeats_ask_for(owned: OwnedPartition) -> None:
    run = await owned.leased_run(policies=TIMEOUT)
    assert (run.lease_expires_at, run.lease_s) == (later(20), 20.0)
    [extended] = await owned.beat(Beat(run.run_id, run.lease_token, 60.0), now=later(19))
    assert (extended.lease_expires_at, extended.cancel) == (later(20), False)
    assert await owned.beat(Beat(run.run_id, run.lease_token, 60.0), now=later(20)) == []


async def test_heartbeats_extend_a_lease_up_to_the_attempt_s_end(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(policies=TIMEOUT)
    assert job.run_id
    [run] = await owned.lease(job.run_id, visibility_s=5.0)
    assert run.lease_expires_at == later(5)
    expiries = [(await owned.beat(Beat(run.run_id, run.lease_token, 9.0), now=later(at)))[0] for at in (4, 12)]
    assert [each.lease_expires_at for each in expiries] == [later(13), later(20)]


@pytest.mark.parametrize(("visibility_s", "at", "reason"), [(30.0, 20, "timed out"), (5.0, 5, "lease expired")])
async def test_an_attempt_that_took_too_long_is_told_from_a_worker_that_is_gone(
    owned: OwnedPartition, visibility_s: float, at: float, reason: str
) -> None:
    job = await owned.job_with_run(policies=TIMEOUT)
    assert job.run_id
    await owned.lease(job.run_id, visibility_s=visibility_s)
    [end] = await owned.expire(job.run_id, now=later(at))
    assert end.outcome == "retried"
    assert (await owned.events_of(job.run_id))[-1].fields["reasons"] == reason


async def test_the_next_attempt_has_the_whole_time_again(owned: OwnedPartition) -> None:
    run = await owned.leased_run(policies=TIMEOUT)
    await owned.fail(Failure(run.run_id, run.lease_token, "boom", retry_after_s=100))
    [again] = await owned.lease(run.run_id, now=later(100))
    assert again.lease_expires_at == later(120)


async def test_progress_is_kept_until_the_next_attempt(owned: OwnedPartition) -> None:
    run = await owned.leased_run()
    await owned.beat(Beat(run.run_id, run.lease_token, 30.0, progress="half"))
    await owned.beat(Beat(run.run_id, run.lease_token, 30.0))
    assert await progress_of(owned, run.run_id) == "half"
    await owned.beat(Beat(run.run_id, run.lease_token, 30.0, progress="x" * 2_000))
    assert await progress_of(owned, run.run_id) == "x" * 1_000
    await owned.fail(Failure(run.run_id, run.lease_token, "boom", retry_after_s=0))
    assert await progress_of(owned, run.run_id) == "x" * 1_000
    await owned.lease(run.run_id)
    assert await progress_of(owned, run.run_id) is None


async def progress_of(owned: OwnedPartition, run_id: UUID) -> str | None:
    run = await owned.run(run_id)
    assert run is not None
    return run.progress
