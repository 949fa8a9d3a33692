"""Backfilled runs of a job that does not allow overlap go in turn: one at a time, oldest first, and none is skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.connection import Pool
from ledger.leases import LeasedRun
from tests.streams.commands import backfill, create, delete, job_on, pause, resume, trigger, update
from tests.streams.ledger_dump import fetch
from tests.streams.simulated_owner import PARTITION, Simulation, simulating

START = datetime(2026, 5, 1, 9, 59, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
HOURLY = {"cron": "0 * * * *"}
NIGHT = [START.replace(hour=hour, minute=0) for hour in range(1, 7)]
OVERLAPS = pytest.mark.parametrize("overlap", ["skip", "replace"])


@pytest_asyncio.fixture
async def simulation(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Simulation]:
    async with simulating(ledger_pool, tmp_path, START, monkeypatch) as simulation:
        yield simulation


async def backfilled(simulation: Simulation, overlap: Any, **spec: Any) -> UUID:
    """An hourly job, a minute before its hour, and runs of its night."""
    command = create(job_on(PARTITION), HOURLY, issued_at=simulation.now, overlap=overlap, **spec)
    await simulation.apply(command)
    await simulation.apply(backfill(command.job_id, NIGHT[0] - MINUTE, NIGHT[-1]))
    await simulation.work()
    return command.job_id


async def lease_any(simulation: Simulation, job_id: UUID) -> list[LeasedRun]:
    """Ask for all of the job's runs, youngest first, as a careless worker might."""
    return await simulation.lease(*reversed(await simulation.run_ids(job_id)), visibility_s=600)


async def lease_one(simulation: Simulation, job_id: UUID) -> LeasedRun:
    [lease] = await lease_any(simulation, job_id)
    return lease


async def finish(simulation: Simulation, lease: LeasedRun) -> None:
    assert await simulation.complete(lease)
    await simulation.feed()


@OVERLAPS
async def test_they_run_one_after_the_other_oldest_first_and_none_is_skipped(
    simulation: Simulation, overlap: Any
) -> None:
    job_id = await backfilled(simulation, overlap)
    done = []
    for ended in range(len(NIGHT)):
        assert len(simulation.hinted) == ended + 1  # none is hinted before its turn
        lease = await lease_one(simulation, job_id)
        assert lease.run_id in simulation.hinted
        assert await simulation.poll() == []
        done.append(lease.scheduled_for)
        await finish(simulation, lease)
    assert done == NIGHT
    assert await simulation.events(job_id, "run_skipped", "run_cancelled") == []


async def test_polls_find_only_the_one_whose_turn_it_is(simulation: Simulation) -> None:
    job_id = await backfilled(simulation, "skip")
    for _ in NIGHT:
        [found] = await simulation.poll()
        [lease] = await simulation.lease(found)
        await finish(simulation, lease)
    assert await simulation.due(job_id) == []


async def test_an_occurrence_that_comes_while_one_of_them_is_live_is_skipped_as_usual(simulation: Simulation) -> None:
    job_id = await backfilled(simulation, "skip")
    live = await lease_one(simulation, job_id)
    await simulation.run_until(START + MINUTE)
    assert await simulation.skipped(job_id) == {f"overlap: run {live.run_id} is active": 1}
    await finish(simulation, live)
    assert (await lease_one(simulation, job_id)).scheduled_for == NIGHT[1]


async def test_an_occurrence_that_comes_while_they_only_wait_goes_first(simulation: Simulation) -> None:
    """A backfill holds the schedule up no longer than one run takes."""
    job_id = await backfilled(simulation, "skip")
    await simulation.run_until(START + MINUTE)
    assert await simulation.skipped(job_id) == {}
    lease = await lease_one(simulation, job_id)
    assert lease.scheduled_for == START + MINUTE
    await finish(simulation, lease)
    assert (await lease_one(simulation, job_id)).scheduled_for == NIGHT[0]


async def test_without_workers_one_occurrence_waits_beside_them_and_the_later_ones_are_skipped(
    simulation: Simulation,
) -> None:
    job_id = await backfilled(simulation, "skip")
    await simulation.run_until(START + 3 * HOUR)
    assert await simulation.due(job_id) == [*NIGHT, START + MINUTE]
    assert list((await simulation.skipped(job_id)).values()) == [2]


async def test_an_occurrence_replaces_the_live_one_and_the_others_wait_on(simulation: Simulation) -> None:
    job_id = await backfilled(simulation, "replace")
    live = await lease_one(simulation, job_id)
    await simulation.run_until(START + MINUTE)
    assert await simulation.lease(*await simulation.run_ids(job_id)) == []
    assert not await simulation.complete(live)
    await simulation.feed()
    lease = await lease_one(simulation, job_id)
    assert lease.scheduled_for == START + MINUTE
    await finish(simulation, lease)
    assert (await lease_one(simulation, job_id)).scheduled_for == NIGHT[1]
    assert [each.scheduled_for for each in await simulation.events(job_id, "run_cancelled")] == [NIGHT[0]]


async def test_the_next_one_waits_for_the_retries_of_the_one_before_it(simulation: Simulation) -> None:
    job_id = await backfilled(simulation, "skip")
    first = await lease_one(simulation, job_id)
    await simulation.fail(first, retry_after_s=30)
    await simulation.feed()
    assert await lease_any(simulation, job_id) == []
    await simulation.run_until(START + MINUTE / 2)
    again = await lease_one(simulation, job_id)
    assert (again.run_id, again.attempt) == (first.run_id, 2)


async def test_a_new_owner_goes_on_with_the_line(simulation: Simulation) -> None:
    job_id = await backfilled(simulation, "skip")
    live = await lease_one(simulation, job_id)
    await simulation.stop()
    await simulation.start()
    await simulation.work()
    await finish(simulation, live)
    assert (await lease_one(simulation, job_id)).scheduled_for == NIGHT[1]


async def test_an_end_that_nobody_told_holds_the_line_up_for_a_sweep_only(simulation: Simulation) -> None:
    job_id = await backfilled(simulation, "skip")
    assert await simulation.complete(await lease_one(simulation, job_id))
    second, *_ = await simulation.run_ids(job_id)
    assert second not in simulation.hinted
    await simulation.sweep()
    assert second in simulation.hinted


async def test_a_manual_run_is_skipped_while_one_of_them_is_live_as_before(simulation: Simulation) -> None:
    job_id = await backfilled(simulation, "skip")
    live = await lease_one(simulation, job_id)
    await simulation.apply(trigger(job_id, issued_at=simulation.now))
    await simulation.work()
    assert await simulation.skipped(job_id) == {f"overlap: run {live.run_id} is active": 1}


async def test_a_pause_holds_the_line_and_a_deletion_ends_it(simulation: Simulation) -> None:
    job_id = await backfilled(simulation, "skip")
    await simulation.apply(pause(job_id))
    await simulation.feed()
    assert await lease_any(simulation, job_id) == []
    await simulation.apply(resume(job_id))
    await simulation.feed()
    await finish(simulation, await lease_one(simulation, job_id))
    assert (await simulation.due(job_id)) == NIGHT[1:]
    await simulation.apply(delete(job_id))
    await simulation.feed()
    assert await simulation.runs(job_id) == []
    assert simulation.owner._admissions.blocked() == 0


@OVERLAPS
async def test_what_is_due_when_a_job_ceases_to_allow_overlap_goes_in_turn(
    simulation: Simulation, overlap: Any
) -> None:
    job_id = await backfilled(simulation, "allow")
    live = await simulation.lease(*(await simulation.run_ids(job_id))[:2])
    await simulation.apply(update(job_id, HOURLY, overlap=overlap))
    await simulation.feed()
    for lease in live:
        assert await lease_any(simulation, job_id) == []
        await finish(simulation, lease)
    for at in NIGHT[2:]:
        lease = await lease_one(simulation, job_id)
        assert lease.scheduled_for == at
        await finish(simulation, lease)
    assert await fetch(simulation.pool, "SELECT count(*) FROM job_slots") == [0]


async def test_a_backfill_of_a_job_that_allows_overlap_runs_all_at_once(simulation: Simulation) -> None:
    job_id = await backfilled(simulation, "allow")
    assert len(await lease_any(simulation, job_id)) == len(NIGHT)
