"""Deadlines for starts when more runs wait than an owner keeps under watch: each is skipped within a bounded time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.connection import Pool
from streams import partition_memory, partition_owner
from streams.timers import to_us
from tests.streams.commands import create, job_on
from tests.streams.ledger_dump import fetch
from tests.streams.simulated_owner import PARTITION, Simulation, simulating

START = datetime(2026, 5, 1, 10, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LATE_EVERY = timedelta(microseconds=partition_owner.LATE_EVERY_US)
WATCHED, ROUND = 4, 2
COUNT, BATCH = 20, 7


@pytest_asyncio.fixture
async def simulation(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Simulation]:
    monkeypatch.setattr(partition_memory, "WATCHED_LIMIT", WATCHED)
    monkeypatch.setattr(partition_memory, "LONG_WATCHED_LIMIT", WATCHED)
    monkeypatch.setattr(partition_memory, "ROUND_LIMIT", ROUND)
    monkeypatch.setattr(partition_owner, "LATE_BATCH", BATCH)
    async with simulating(ledger_pool, tmp_path, START, monkeypatch) as simulation:
        yield simulation


async def one_offs(simulation: Simulation, count: int, deadline_s: float | None = None) -> list[UUID]:
    """Runs that are due a second from now, in the order of their ids' making; all are hinted then."""
    at = {"runAt": (simulation.now + SECOND).isoformat()}
    commands = [
        create(job_on(PARTITION), at, issued_at=simulation.now, start_deadline_seconds=deadline_s) for _ in range(count)
    ]
    await simulation.apply(*commands)
    await simulation.run_until(simulation.now + SECOND)
    return [command.job_id for command in commands]


async def waiting(simulation: Simulation) -> set[UUID]:
    return set(await fetch(simulation.pool, "SELECT job_id FROM runs"))


async def test_those_beyond_the_watch_are_skipped_though_it_stays_full(simulation: Simulation) -> None:
    """What nobody takes and has no deadline stays under watch for ever."""
    patient = await one_offs(simulation, WATCHED)
    hasty = await one_offs(simulation, COUNT, deadline_s=10)
    simulation.clock.now += LATE_EVERY
    await simulation.sweep()
    assert await waiting(simulation) == set(patient)
    for job_id in hasty:
        assert await simulation.skipped(job_id) == {"start deadline": 1}


async def test_those_beyond_the_watch_may_start_until_their_deadline(simulation: Simulation) -> None:
    patient = await one_offs(simulation, WATCHED)
    hasty = await one_offs(simulation, COUNT, deadline_s=LATE_EVERY.total_seconds())
    simulation.clock.now += LATE_EVERY
    await simulation.sweep()
    assert await waiting(simulation) == {*patient, *hasty}


async def test_they_are_looked_for_every_half_minute_while_anything_waits(simulation: Simulation) -> None:
    await one_offs(simulation, 1)
    simulation.clock.now += 60 * LATE_EVERY
    await simulation.sweep()
    assert simulation.owner._next_sweep_us() == to_us(simulation.now + LATE_EVERY)


async def test_when_the_watch_has_room_others_come_under_it_and_are_hinted_again(simulation: Simulation) -> None:
    jobs = await one_offs(simulation, 2 * WATCHED)
    simulation.hints.sent.clear()
    simulation.hinted.clear()
    watched = simulation.owner._memory._watched
    first_to_last = sorted(
        [(await simulation.run_ids(job_id))[0] for job_id in jobs], key=lambda run_id: run_id.bytes not in watched
    )
    await simulation.lease(*first_to_last[:WATCHED])
    await simulation.feed()
    for _ in range(4):
        await simulation.sweep()
    assert simulation.hinted.keys() == {*first_to_last[WATCHED:]}


async def test_once_all_have_room_again_no_round_is_made(simulation: Simulation) -> None:
    await one_offs(simulation, COUNT, deadline_s=10)
    simulation.clock.now += LATE_EVERY
    for _ in range(3):
        await simulation.sweep()
    assert await waiting(simulation) == set()
    assert not simulation.owner._memory._any_unwatched
