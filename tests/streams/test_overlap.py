"""Overlap: of a job that skips or replaces, no two runs are ever leased at once, and every skip names its reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.connection import Pool
from ledger.fence import api_transaction
from ledger.leases import Beat, HeldLease, LeasedRun, extend_leases, release_runs
from tests.streams.commands import create, job_on, pause, resume, trigger
from tests.streams.ledger_dump import fetch
from tests.streams.simulated_owner import PARTITION, Simulation, simulating

START = datetime(2026, 5, 1, 9, 59, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


@pytest_asyncio.fixture
async def simulation(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Simulation]:
    async with simulating(ledger_pool, tmp_path, START, monkeypatch) as simulation:
        yield simulation


async def every(simulation: Simulation, seconds: int, overlap: Any, **spec: Any) -> UUID:
    command = create(job_on(PARTITION), {"everySeconds": seconds}, issued_at=simulation.now, overlap=overlap, **spec)
    await simulation.apply(command)
    return command.job_id


async def lease_next(simulation: Simulation, job_id: UUID, **more: Any) -> LeasedRun:
    run_id, *_ = await simulation.run_ids(job_id)
    [lease] = await simulation.lease(run_id, **more)
    return lease


async def leased(simulation: Simulation, job_id: UUID) -> int:
    return len(await simulation.run_ids(job_id, "leased"))


async def test_occurrences_during_a_long_run_are_skipped_and_the_next_one_after_it_runs(
    simulation: Simulation,
) -> None:
    """ovl-001: a run of 35 s every 10 s."""
    job_id = await every(simulation, 10, "skip")
    await simulation.run_until(START + 10 * SECOND)
    first = await lease_next(simulation, job_id, visibility_s=60)
    await simulation.run_until(START + 45 * SECOND)
    assert await simulation.complete(first)
    await simulation.feed()
    await simulation.run_until(START + 50 * SECOND)
    second = await lease_next(simulation, job_id)
    assert (first.scheduled_for, second.scheduled_for) == (START + 10 * SECOND, START + 50 * SECOND)
    skips = await simulation.events(job_id, "run_skipped")
    assert [skip.scheduled_for for skip in skips] == [START + s * SECOND for s in (20, 30, 40)]
    assert {skip.reason for skip in skips} == {f"overlap: run {first.run_id} is active"}


@pytest.mark.parametrize("overlap", ["skip", "replace"])
async def test_an_expired_and_retried_run_still_counts_as_active(simulation: Simulation, overlap: Any) -> None:
    """ovl-003: the worker's host went away; the run that waits for its retry is the job's active one."""
    job_id = await every(simulation, 60, overlap)
    await simulation.run_until(START + MINUTE)
    lost = await lease_next(simulation, job_id)
    simulation.clock.now = START + MINUTE + 31 * SECOND
    await simulation.expire(lost.run_id)
    await simulation.run_until(START + 2 * MINUTE)
    if overlap == "skip":
        assert await simulation.skipped(job_id) == {f"overlap: run {lost.run_id} is active": 1}
        assert await simulation.due(job_id) == [START + MINUTE]
    else:
        assert [each.reason for each in await simulation.events(job_id, "run_cancelled")] == ["replaced"]
        assert await simulation.due(job_id) == [START + 2 * MINUTE]


async def test_a_manual_run_takes_part_in_the_rule(simulation: Simulation) -> None:
    """ovl-004."""
    job_id = await every(simulation, 300, "skip")
    await simulation.apply(trigger(job_id, issued_at=simulation.now))
    await simulation.work()
    [manual] = await simulation.poll()
    [lease] = await simulation.lease(manual, visibility_s=1200)
    await simulation.run_until(START + 5 * MINUTE)
    assert await simulation.skipped(job_id) == {f"overlap: run {lease.run_id} is active": 1}


async def test_a_run_that_no_worker_asks_for_is_active_too(simulation: Simulation) -> None:
    """ovl-005: a queue without workers holds one run of the job, not one a minute."""
    job_id = await every(simulation, 60, "skip")
    await simulation.run_until(START + 31 * MINUTE)
    assert await simulation.due(job_id) == [START + MINUTE]
    assert list((await simulation.skipped(job_id)).values()) == [30]


async def test_a_replaced_run_is_fenced_before_the_next_one_starts(simulation: Simulation) -> None:
    """ovl-008."""
    job_id = await every(simulation, 60, "replace")
    await simulation.run_until(START + MINUTE)
    old = await lease_next(simulation, job_id, visibility_s=90)
    await simulation.run_until(START + 2 * MINUTE)
    [new_id, _] = await simulation.run_ids(job_id)
    assert new_id not in simulation.hinted
    assert await simulation.lease(new_id) == []
    async with api_transaction(simulation.pool, [old.run_id]) as conn:
        [beat] = await extend_leases(conn, [Beat(old.run_id, old.lease_token, 30)], now=simulation.now)
    assert beat.cancel
    assert not await simulation.complete(old)
    async with api_transaction(simulation.pool, [old.run_id]) as conn:
        await release_runs(conn, [HeldLease(old.run_id, old.lease_token)], now=simulation.now)
    await simulation.feed()
    assert new_id in simulation.hinted
    [lease] = await simulation.lease(new_id)
    assert lease.scheduled_for == START + 2 * MINUTE
    ends = await simulation.events(job_id, "run_cancelled")
    assert [(end.scheduled_for, end.reason) for end in ends] == [(START + MINUTE, "replaced")]


async def test_a_run_that_waits_for_another_starts_after_it_though_its_job_was_paused_and_resumed_meanwhile(
    simulation: Simulation,
) -> None:
    """The owner knew of the resumption at once; the event of the pause comes by the feed, and is older."""
    job_id = await every(simulation, 60, "replace")
    await simulation.run_until(START + MINUTE)
    old = await lease_next(simulation, job_id, visibility_s=90)
    await simulation.run_until(START + 2 * MINUTE + SECOND)
    [new_id, _] = await simulation.run_ids(job_id)
    await simulation.apply(pause(job_id))
    await simulation.apply(resume(job_id))
    await simulation.work()
    await simulation.feed()
    assert new_id not in simulation.hinted
    assert not await simulation.complete(old)
    await simulation.feed()
    assert new_id in simulation.hinted


async def test_a_run_that_was_asked_for_before_it_is_due_by_the_ledger_s_clock_is_asked_for_again(
    simulation: Simulation,
) -> None:
    """The ledger's clock went back with a failover, and the owner has not noticed yet."""
    job_id = await every(simulation, 60, "skip")
    await simulation.run_until(START + MINUTE - SECOND)
    [run_id] = await simulation.run_ids(job_id)
    simulation.owner.tick(simulation.clock.now_us() + 2_000_000)
    await simulation.owner._admit()
    await simulation.run_until(START + MINUTE + SECOND)
    await simulation.sweep()
    assert run_id in simulation.hinted


async def test_replacing_faster_than_the_runs_take_never_finishes_and_shows_it(simulation: Simulation) -> None:
    """ovl-010."""
    job_id = await every(simulation, 60, "replace")
    for minute in range(1, 6):
        await simulation.run_until(START + minute * MINUTE)
        if await leased(simulation, job_id):
            [running] = await simulation.run_ids(job_id, "leased")
            simulation.clock.now += 31 * SECOND
            await simulation.expire(running)
            await simulation.feed()
        await lease_next(simulation, job_id)
    told = await simulation.events(job_id, "run_cancelled")
    assert [each.reason for each in told] == ["replaced"] * 4
    assert await simulation.events(job_id, "run_completed") == []


async def test_a_run_longer_than_its_lease_is_started_once_while_it_beats(simulation: Simulation) -> None:
    """ovl-011."""
    job_id = await every(simulation, 30, "skip")
    await simulation.run_until(START + 30 * SECOND)
    lease = await lease_next(simulation, job_id)
    for s in range(40, 126, 10):
        await simulation.run_until(START + s * SECOND)
        async with api_transaction(simulation.pool, [lease.run_id]) as conn:
            assert await extend_leases(conn, [Beat(lease.run_id, lease.lease_token, 30)], now=simulation.now)
        assert await simulation.poll() == []
        assert await leased(simulation, job_id) == 1


async def test_skipped_occurrences_are_decided_and_not_caught_up_with(simulation: Simulation) -> None:
    """ovl-013: an hourly job that once takes three hours."""
    job_id = await every(simulation, 3600, "skip", catch_up="all")
    await simulation.run_until(START + timedelta(hours=1))
    first = await lease_next(simulation, job_id, visibility_s=4 * 3600)
    await simulation.run_until(START + timedelta(hours=4) - SECOND)
    assert await simulation.complete(first)
    await simulation.feed()
    await simulation.run_until(START + timedelta(hours=4))
    assert await simulation.due(job_id) == [START + timedelta(hours=4)]
    assert list((await simulation.skipped(job_id)).values()) == [2]


@pytest.mark.parametrize("overlap", ["skip", "replace"])
async def test_two_api_sessions_a_poll_and_an_expired_lease_never_make_two_live_runs(
    simulation: Simulation, overlap: Any
) -> None:
    jobs = [await every(simulation, 60, overlap) for _ in range(5)]
    for minute in range(1, 7):
        await simulation.run_until(START + minute * MINUTE)
        await simulation.apply(*(trigger(job_id, issued_at=simulation.now) for job_id in jobs))
        known = [run_id for job_id in jobs for run_id in await simulation.run_ids(job_id)]
        for _ in range(3):
            polled = await simulation.poll()
            won = await asyncio.gather(*(simulation.lease(*ids) for ids in (known, polled, known[::-1]) if ids))
            assert len({lease.run_id for leases in won for lease in leases}) == sum(map(len, won))
            live = await fetch(simulation.pool, "SELECT job_id FROM runs WHERE state = 'leased'")
            assert len(live) == len(set(live))
            assert live
        if minute % 2:  # frozen workers: their leases run out; else they finish
            simulation.clock.now += 31 * SECOND
            running = await fetch(simulation.pool, "SELECT run_id FROM runs WHERE state = 'leased'")
            await simulation.expire(*running)
        else:
            await asyncio.gather(*(simulation.complete(lease) for leases in won for lease in leases))
        await simulation.feed()


async def test_a_blocked_run_whose_sibling_s_end_was_not_told_is_looked_at_again(simulation: Simulation) -> None:
    job_id = await every(simulation, 60, "replace")
    await simulation.run_until(START + MINUTE)
    old = await lease_next(simulation, job_id, visibility_s=90)
    await simulation.run_until(START + 2 * MINUTE)
    [blocked, _] = await simulation.run_ids(job_id)
    async with api_transaction(simulation.pool, [old.run_id]) as conn:
        await release_runs(conn, [HeldLease(old.run_id, old.lease_token)], now=simulation.now)
    assert blocked not in simulation.hinted
    await simulation.sweep()
    assert blocked in simulation.hinted
