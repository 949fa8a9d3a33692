"""Jobs whose stored schedule this build cannot read: what they have runs, only their next occurrence is missing."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from ledger.connection import Pool, session
from tests.streams.commands import backfill, create, job_on, pause, resume, update
from tests.streams.ledger_dump import fetch
from tests.streams.simulated_owner import PARTITION, Simulation, simulating

START = datetime(2026, 5, 1, 9, 30, tzinfo=UTC)
TEN = START.replace(hour=10, minute=0)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
HOURLY = {"cron": "0 * * * *"}
UNREADABLE: list[dict[str, Any]] = [
    {"schedule": {"rrule": "FREQ=HOURLY"}},
    {"schedule": {"cron": "61 * * * *"}},
    {"schedule": {"cron": "0 * * * *", "zone": "Mars/Olympus_Mons"}},
    {"schedule": "every hour"},
    {"schedule": None},
    {"catchUp": "someday"},
]


@pytest_asyncio.fixture
async def simulation(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Simulation]:
    async with simulating(ledger_pool, tmp_path, START, monkeypatch) as simulation:
        yield simulation


async def hourly(simulation: Simulation, **spec: Any) -> UUID:
    command = create(job_on(PARTITION), HOURLY, issued_at=simulation.now, **spec)
    await simulation.apply(command)
    return command.job_id


async def spoil(simulation: Simulation, job_id: UUID, unreadable: dict[str, Any]) -> None:
    """Store what this build cannot read, and let an owner begin that knows nothing but the ledger."""
    [definition] = await fetch(simulation.pool, "SELECT definition FROM jobs WHERE job_id = %s", job_id)
    text = msgspec.json.encode(msgspec.json.decode(definition) | unreadable).decode()
    async with session(simulation.pool) as conn:
        await conn.execute("UPDATE jobs SET definition = %s WHERE job_id = %s", (text, job_id))
    await simulation.stop()
    shutil.rmtree(simulation.folder / f"p-{PARTITION:04d}")
    await simulation.start()


def undecidable() -> float | None:
    """How many such jobs the partition tells of."""
    return REGISTRY.get_sample_value("fencepost_jobs_undecidable", {"partition": str(PARTITION)})


@pytest.mark.parametrize("unreadable", UNREADABLE, ids=str)
@pytest.mark.parametrize("overlap", ["allow", "skip"])
async def test_its_late_run_is_handed_out_and_other_jobs_go_on(
    simulation: Simulation, unreadable: dict[str, Any], overlap: Any, caplog: pytest.LogCaptureFixture
) -> None:
    job_id, other = await hourly(simulation, overlap=overlap), await hourly(simulation)
    [run_id] = await simulation.run_ids(job_id)
    simulation.clock.now = TEN + 20 * MINUTE
    await spoil(simulation, job_id, unreadable)
    await simulation.run_until(TEN + HOUR)
    assert run_id in simulation.hinted
    [lease] = await simulation.lease(run_id)
    assert await simulation.complete(lease)
    assert await simulation.cursor(job_id) == TEN
    assert await simulation.cursor(other) == TEN + 2 * HOUR
    assert f"job {job_id} cannot be decided" in caplog.text
    assert undecidable() == 1


async def test_its_late_run_is_hinted_again_when_the_first_hint_was_lost(simulation: Simulation) -> None:
    job_id = await hourly(simulation)
    [run_id] = await simulation.run_ids(job_id)
    simulation.clock.now = TEN + 20 * MINUTE
    await spoil(simulation, job_id, UNREADABLE[0])
    await simulation.work()
    simulation.hints.sent.clear()
    simulation.hinted.clear()
    simulation.clock.now += 2 * MINUTE
    await simulation.sweep()
    assert run_id in simulation.hinted


async def test_an_edit_to_a_schedule_that_can_be_read_makes_it_fire_again(simulation: Simulation) -> None:
    job_id = await hourly(simulation)
    simulation.clock.now = TEN + 20 * MINUTE
    await spoil(simulation, job_id, UNREADABLE[0])
    await simulation.work()
    await simulation.apply(update(job_id, HOURLY))
    assert undecidable() == 0
    await simulation.run_until(TEN + HOUR)
    assert await simulation.cursor(job_id) == TEN + 2 * HOUR


async def test_resumed_it_runs_what_it_has(simulation: Simulation) -> None:
    job_id = await hourly(simulation)
    [run_id] = await simulation.run_ids(job_id)
    await simulation.apply(pause(job_id))
    simulation.clock.now = TEN + 20 * MINUTE
    await spoil(simulation, job_id, UNREADABLE[0])
    effects = await simulation.apply(resume(job_id))
    await simulation.work()
    assert effects.rejected == {}
    assert run_id in simulation.hinted


async def test_a_backfill_of_it_is_rejected_for_its_schedule(simulation: Simulation) -> None:
    job_id = await hourly(simulation)
    await spoil(simulation, job_id, UNREADABLE[4])
    command = backfill(job_id, START - HOUR, START)
    effects = await simulation.apply(command)
    assert effects.rejected[command.command_id].code == "invalid_schedule"
