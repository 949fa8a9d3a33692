"""A scheduler that was stopped: exactly which occurrences run after all, which are skipped and why, and who waits."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.connection import Pool
from streams.decided_through import say_decided_through
from tests.streams.commands import create, job_on
from tests.streams.ledger_dump import fetch
from tests.streams.simulated_owner import PARTITION, Simulation, simulating

START = datetime(2026, 5, 1, 8, 29, 30, tzinfo=UTC)
DOWN = timedelta(hours=3)
BACK = START + DOWN
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest_asyncio.fixture
async def simulation(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Simulation]:
    async with simulating(ledger_pool, tmp_path, START, monkeypatch) as simulation:
        yield simulation


async def job(simulation: Simulation, cron: str, **spec: Any) -> UUID:
    await simulation.apply(create(job_id := job_on(PARTITION), {"cron": cron}, issued_at=START, **spec))
    return job_id


async def restart(simulation: Simulation, *, back: datetime = BACK, keep_state: bool = True) -> None:
    await simulation.stop()
    if not keep_state:
        shutil.rmtree(simulation.folder)
    simulation.clock.now = back
    await simulation.start()
    await simulation.work()


def minutes(first: datetime, last: datetime) -> list[datetime]:
    return [first + each * MINUTE for each in range(int((last - first) / MINUTE) + 1)]


FIRST_MINUTE, LAST_MINUTE = START + 30 * timedelta(seconds=1), BACK - 30 * timedelta(seconds=1)  # 08:30 and 11:29
HOURS = [START.replace(hour=hour, minute=0, second=0) for hour in (9, 10, 11)]
DAY = START.replace(hour=10, minute=15, second=0)


@pytest.mark.parametrize("keep_state", [True, False])
@pytest.mark.parametrize(
    ("policy", "deadline_s", "minutely", "hourly", "daily"),
    [
        ("latest", None, [LAST_MINUTE], HOURS[2:], [DAY]),
        ("latest", 600, [LAST_MINUTE], [], []),
        ("latest", 1800, [LAST_MINUTE], HOURS[2:], []),
        ("all", None, minutes(FIRST_MINUTE, LAST_MINUTE), HOURS, [DAY]),
        ("all", 3 * 3600, minutes(FIRST_MINUTE, LAST_MINUTE), HOURS, [DAY]),
        ("all", 200, minutes(LAST_MINUTE - 2 * MINUTE, LAST_MINUTE), [], []),
        ("none", None, [], [], []),
        ("none", 600, [], [], []),
    ],
)
async def test_three_hours_without_a_scheduler_leave_exactly_the_runs_and_skips_of_the_policy(
    simulation: Simulation,
    policy: Any,
    deadline_s: float | None,
    minutely: list[datetime],
    hourly: list[datetime],
    daily: list[datetime],
    keep_state: bool,
) -> None:
    spec = {"catch_up": policy, "start_deadline_seconds": deadline_s}
    crons = {"* * * * *": (180, minutely), "0 * * * *": (3, hourly), "15 10 * * *": (1, daily)}
    jobs = {cron: await job(simulation, cron, **spec) for cron in crons}
    await restart(simulation, keep_state=keep_state)
    for cron, (missed, made_up) in crons.items():
        skipped = await simulation.skipped(jobs[cron])
        assert await simulation.due(jobs[cron]) == made_up
        assert sum(skipped.values()) == missed - len(made_up)
        assert set(skipped) <= _reasons(policy, deadline_s)
        cursor = await simulation.cursor(jobs[cron])
        assert cursor is not None
        assert cursor > BACK
        assert set((await simulation.run_ids(jobs[cron]))[: len(made_up)]) <= simulation.hinted.keys()


def _reasons(policy: str, deadline_s: float | None) -> set[str]:
    own = {"latest": {"catch-up latest"}, "all": set(), "none": {"catch-up none"}}[policy]
    return own if deadline_s is None or policy == "none" else own | {"start deadline"}


@pytest.mark.parametrize("policy", ["latest", "all", "none"])
async def test_other_jobs_are_on_time_while_one_is_caught_up_with(simulation: Simulation, policy: Any) -> None:
    await job(simulation, "* * * * *", catch_up=policy)
    await restart(simulation)
    on_time = [create(job_on(PARTITION), {"delaySeconds": s}, issued_at=BACK) for s in (1, 20, 40)]
    await simulation.apply(*on_time)
    await simulation.run_until(BACK + MINUTE)
    for s, command in zip((1, 20, 40), on_time, strict=True):
        [run_id] = await simulation.run_ids(command.job_id)
        assert simulation.hinted[run_id] - (BACK + timedelta(seconds=s)) < timedelta(seconds=0.05)


async def test_a_superseded_run_is_never_hinted(simulation: Simulation) -> None:
    job_id = await job(simulation, "* * * * *")
    [superseded] = await simulation.run_ids(job_id)
    await restart(simulation)
    assert superseded not in simulation.hinted
    assert len(simulation.hinted) == 1


async def test_a_run_that_is_kept_after_all_is_hinted_once_it_is_decided(simulation: Simulation) -> None:
    job_id = await job(simulation, "15 10 * * *")
    await restart(simulation)
    [kept, _] = await simulation.run_ids(job_id)
    assert simulation.hinted == {kept: BACK}


async def test_a_run_that_somebody_leased_before_the_decision_is_not_taken_away(simulation: Simulation) -> None:
    job_id = await job(simulation, "* * * * *")
    simulation.clock.now = START + MINUTE
    [first] = await simulation.poll()
    [lease] = await simulation.lease(first, visibility_s=4 * 3600)
    await restart(simulation)
    assert await simulation.due(job_id) == [FIRST_MINUTE, LAST_MINUTE]
    assert await simulation.complete(lease)


async def test_what_is_decided_is_said_only_when_the_backlog_is(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.decisions.LINKS_A_JOB", 7)
    await job(simulation, "* * * * *", catch_up="all")
    await simulation.stop()
    simulation.clock.now = BACK
    await simulation.start()
    owner = simulation.owner
    owner.tick(simulation.clock.now_us())
    before = await _decided_through(simulation)
    for _ in range(25):
        await owner.decider.catch_up()
        assert await _decided_through(simulation) == before
    await owner.decider.catch_up()
    assert await _decided_through(simulation) == BACK


async def _decided_through(simulation: Simulation) -> datetime:
    await say_decided_through(simulation.pool, lambda: [simulation.owner])
    [through] = await fetch(simulation.pool, "SELECT decided_through FROM partitions WHERE partition = %s", PARTITION)
    return through  # type: ignore[no-any-return]


async def test_a_run_too_late_to_start_is_skipped_by_the_sweep(simulation: Simulation) -> None:
    command = create(job_on(PARTITION), {"delaySeconds": 1}, issued_at=START, start_deadline_seconds=4)
    await simulation.apply(command)
    await simulation.run_until(START + timedelta(seconds=6))
    assert len(simulation.hinted) == 1
    await simulation.run_until(START + timedelta(seconds=7))
    await simulation.sweep()
    assert await simulation.skipped(command.job_id) == {"start deadline": 1}
    assert await simulation.runs(command.job_id) == []


async def test_a_month_of_minutes_is_caught_up_with_by_the_newest_thousand(simulation: Simulation) -> None:
    job_id = await job(simulation, "* * * * *", catch_up="all")
    back = START + timedelta(days=30)
    await restart(simulation, back=back)
    kept = await simulation.due(job_id)
    assert kept == minutes(back - 30 * timedelta(seconds=1) - 999 * MINUTE, back - 30 * timedelta(seconds=1))
    assert await simulation.skipped(job_id) == {"catch-up limit": 42_200}
    assert len(await simulation.events(job_id, "occurrences_skipped")) == 1
