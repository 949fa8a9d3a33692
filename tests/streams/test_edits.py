"""Edits, and commands about runs: what is pending is replaced at once, nothing fires retroactively or twice."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.completions import Failure, fail_runs
from ledger.connection import Pool, session
from ledger.fence import api_transaction
from ledger.leases import LeaseAsk, lease_runs
from schemas.commands import Command
from schemas.ids import new_id
from tests.ledger.owned_partition import until_someone_waits_for_a_lock
from tests.streams.commands import backfill, cancel, create, job_on, pause, replay, resume, trigger, update
from tests.streams.ledger_dump import fetch
from tests.streams.simulated_owner import PARTITION, Simulation, simulating

START = datetime(2026, 5, 1, 8, 30, tzinfo=UTC)
NINE = START.replace(hour=9, minute=0)
RACES = int(os.environ.get("FENCEPOST_RACES", "400"))
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


@pytest_asyncio.fixture
async def simulation(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Simulation]:
    async with simulating(ledger_pool, tmp_path, START, monkeypatch) as simulation:
        yield simulation


async def hourly(simulation: Simulation, count: int = 1) -> list[UUID]:
    commands = [create(job_on(PARTITION), {"cron": "0 * * * *"}, issued_at=simulation.now) for _ in range(count)]
    await simulation.apply(*commands)
    return [command.job_id for command in commands]


async def outcome(simulation: Simulation, command: Command) -> list[tuple[str, str | None]]:
    return await fetch(
        simulation.pool, "SELECT outcome, detail FROM applied_commands WHERE command_id = %s", command.command_id
    )


async def test_an_edit_a_second_before_the_hour_races_with_a_lease_and_only_one_of_both_runs(
    simulation: Simulation,
) -> None:
    """The old run fires only if it was leased before the edit; the new one comes when the new schedule says."""
    chance = random.Random(7)
    leased_old = 0
    for _ in range(RACES // 40):
        simulation.clock.now = START
        jobs = await hourly(simulation, 40)
        old = [(await simulation.run_ids(job_id))[0] for job_id in jobs]
        simulation.clock.now = NINE - SECOND

        async def edit(jobs: list[UUID] = jobs) -> None:
            await asyncio.sleep(chance.random() * 0.01)
            await simulation.apply(*(update(job_id, {"cron": "30 * * * *"}) for job_id in jobs))

        async def lease(run_id: UUID) -> list[UUID]:
            await asyncio.sleep(chance.random() * 0.03)
            ask = LeaseAsk(run_id, simulation.fence.epoch, "worker", 30)
            async with api_transaction(simulation.pool, [run_id]) as conn:
                return [run.run_id for run in await lease_runs(conn, [ask], now=NINE)]

        editing = asyncio.create_task(edit())
        won = await asyncio.gather(*map(lease, old))
        await editing
        leased = {run_id for runs in won for run_id in runs}
        leased_old += len(leased)
        for job_id, run_id in zip(jobs, old, strict=True):
            left = await simulation.runs(job_id)
            if run_id in leased:
                assert left == [NINE, NINE + HOUR / 2]
                assert await simulation.events(job_id, "run_cancelled") == []
            else:
                assert left == [NINE + HOUR / 2]
                assert [each.reason for each in await simulation.events(job_id, "run_cancelled")] == ["edited"]
        await fetch(simulation.pool, "WITH gone AS (DELETE FROM outbox RETURNING 1) SELECT count(*) FROM gone")
    assert 0 < leased_old < RACES


async def test_a_run_that_is_due_and_that_nobody_has_leased_goes_with_its_schedule(simulation: Simulation) -> None:
    [job_id] = await hourly(simulation)
    await simulation.apply(manual := trigger(job_id, issued_at=START))
    await simulation.run_until(NINE + SECOND)
    assert await simulation.runs(job_id) == [START, NINE, NINE + HOUR]
    await simulation.apply(update(job_id, {"cron": "30 * * * *"}))
    assert await simulation.runs(job_id) == [manual.issued_at, NINE + HOUR / 2]
    ends = await simulation.events(job_id, "run_cancelled")
    assert [(end.scheduled_for, end.reason) for end in ends] == [(NINE + HOUR, "edited"), (NINE, "edited")]


async def test_two_edits_of_a_job_in_one_batch_take_their_locks_in_the_order_of_all_others(
    simulation: Simulation,
) -> None:
    """The first edit changes the pending run, and only the second one what is due: who leases takes that one first."""
    [job_id] = await hourly(simulation)
    await simulation.run_until(NINE + SECOND)
    due, pending = await simulation.run_ids(job_id)
    edits = [update(job_id, {"cron": "0 * * * *"}, lane="high"), update(job_id, {"cron": "30 * * * *"})]
    async with session(simulation.pool) as witness, session(simulation.pool) as conn, conn.transaction():
        await conn.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (due,))
        batch = asyncio.create_task(simulation.apply(*edits))
        await until_someone_waits_for_a_lock(witness)
        await conn.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (pending,))
    assert not (await batch).rejected
    assert await simulation.runs(job_id) == [NINE + HOUR / 2]


async def test_an_edit_of_what_is_not_the_schedule_keeps_the_pending_occurrence(simulation: Simulation) -> None:
    [job_id] = await hourly(simulation)
    [run_id] = await simulation.run_ids(job_id)
    await simulation.apply(update(job_id, {"cron": "0 * * * *"}, queue="post", payload='{"n":2}'))
    assert await simulation.run_ids(job_id) == [run_id]
    assert await fetch(simulation.pool, "SELECT queue, payload FROM runs") == [("post", '{"n":2}')]


async def test_an_edit_that_changes_nothing_is_unchanged(simulation: Simulation) -> None:
    [job_id] = await hourly(simulation)
    command = update(job_id, {"cron": "0 * * * *"})
    await simulation.apply(command)
    assert await outcome(simulation, command) == [("unchanged", None)]


async def test_an_edit_with_an_effective_from_fires_only_after_it(simulation: Simulation) -> None:
    [job_id] = await hourly(simulation)
    await simulation.apply(update(job_id, {"cron": "*/10 * * * *"}, effective_from=NINE + 3 * HOUR))
    await simulation.run_until(NINE + HOUR)
    assert await simulation.runs(job_id) == [NINE + 3 * HOUR + 10 * MINUTE]


async def test_an_edit_to_a_time_that_has_passed_is_rejected_and_changes_nothing(simulation: Simulation) -> None:
    [job_id] = await hourly(simulation)
    command = update(job_id, {"runAt": "2026-05-01T08:00:00Z"})
    effects = await simulation.apply(command)
    assert effects.rejected[command.command_id].code == "invalid_schedule"
    assert await simulation.runs(job_id) == [NINE]


async def test_an_edit_of_a_paused_job_holds_its_new_run_until_it_is_resumed(simulation: Simulation) -> None:
    [job_id] = await hourly(simulation)
    await simulation.apply(pause(job_id), update(job_id, {"cron": "45 * * * *"}))
    await simulation.work()
    assert await simulation.run_ids(job_id, "held") != []
    await simulation.apply(resume(job_id))
    await simulation.run_until(START + 15 * MINUTE)
    assert await simulation.due(job_id) == [START + 15 * MINUTE]


async def test_the_occurrences_of_an_edited_job_go_on_by_its_new_schedule(simulation: Simulation) -> None:
    [job_id] = await hourly(simulation)
    await simulation.apply(update(job_id, {"cron": "*/20 * * * *"}))
    await simulation.run_until(NINE + 20 * MINUTE)
    assert await simulation.due(job_id) == [START + minutes * MINUTE for minutes in (10, 30, 50)]


async def test_what_the_old_schedule_has_had_does_not_come_again_by_a_clock_that_was_put_back(
    simulation: Simulation,
) -> None:
    """A failover may bring an earlier clock. At nine the job has run; an edit at a second before must not repeat it."""
    [job_id] = await hourly(simulation)
    await simulation.run_until(NINE)
    [run_id] = await simulation.poll()
    [lease] = await simulation.lease(run_id)
    assert await simulation.complete(lease)
    simulation.clock.now = NINE - SECOND
    await simulation.apply(update(job_id, {"cron": "0,30 * * * *"}))
    assert await simulation.runs(job_id) == [NINE + HOUR / 2]


async def test_what_a_schedule_that_has_ended_has_had_does_not_come_again_by_a_clock_that_was_put_back(
    simulation: Simulation,
) -> None:
    ending = {"cron": "0 * * * *", "endAt": (NINE + MINUTE).isoformat()}
    command = create(job_on(PARTITION), ending, issued_at=simulation.now)
    await simulation.apply(command)
    await simulation.run_until(NINE)
    [run_id] = await simulation.poll()
    [lease] = await simulation.lease(run_id)
    assert await simulation.complete(lease)
    assert await simulation.runs(command.job_id) == []
    simulation.clock.now = NINE - SECOND
    await simulation.apply(update(command.job_id, {"cron": "0,30 * * * *"}))
    assert await simulation.runs(command.job_id) == [NINE + HOUR / 2]


async def test_a_waiting_run_is_cancelled_and_its_schedule_goes_on(simulation: Simulation) -> None:
    [job_id] = await hourly(simulation)
    [run_id] = await simulation.run_ids(job_id)
    command = cancel(job_id, run_id)
    await simulation.apply(command)
    assert await outcome(simulation, command) == [("applied", "cancelled")]
    assert await simulation.runs(job_id) == []
    await simulation.run_until(NINE)
    assert await simulation.runs(job_id) == [NINE + HOUR]


async def test_a_leased_run_is_asked_to_stop(simulation: Simulation) -> None:
    [job_id] = await hourly(simulation)
    await simulation.run_until(NINE)
    [run_id, _] = await simulation.run_ids(job_id)
    await simulation.lease(run_id)
    command = cancel(job_id, run_id)
    await simulation.apply(command)
    assert await outcome(simulation, command) == [("applied", "requested")]
    await simulation.feed()
    await simulation.expire(run_id)
    assert await fetch(simulation.pool, "SELECT cancel_reason FROM runs WHERE run_id = %s", run_id) == ["cancelled"]


async def test_nobody_cancels_a_run_of_another_job_or_tenant(simulation: Simulation) -> None:
    [job_id, other] = await hourly(simulation, 2)
    [run_id] = await simulation.run_ids(job_id)
    strangers = [cancel(other, run_id), cancel(job_id, run_id, tenant="other"), cancel(job_id, new_id())]
    effects = await simulation.apply(*strangers)
    assert {error.code for error in effects.rejected.values()} == {"run_unknown"}
    assert len(effects.rejected) == 3
    assert await simulation.run_ids(job_id) == [run_id]


async def test_a_dead_run_is_replayed_when_it_was_asked_for(simulation: Simulation) -> None:
    [job_id] = await hourly(simulation)
    await simulation.run_until(NINE)
    [run_id, _] = await simulation.run_ids(job_id)
    [lease] = await simulation.lease(run_id)
    async with api_transaction(simulation.pool, [run_id]) as conn:
        await fail_runs(conn, [Failure(run_id, lease.lease_token, "bad", permanent=True)], now=simulation.now)
    await simulation.feed()
    again = replay(job_id, run_id, due_at=NINE + 5 * MINUTE)
    await simulation.apply(again, late := replay(job_id, run_id))
    assert await outcome(simulation, again) == [("applied", None)]
    assert await outcome(simulation, late) == [("unchanged", None)]
    simulation.hints.sent.clear()
    simulation.hinted.clear()
    await simulation.run_until(NINE + 6 * MINUTE)
    assert abs(simulation.hinted[run_id] - (NINE + 5 * MINUTE)) < timedelta(seconds=0.05)
    [replayed] = await simulation.lease(run_id)
    assert (replayed.attempt, replayed.lease_token) == (1, lease.lease_token + 1)


async def test_a_backfill_runs_a_range_beside_the_schedule_and_moves_no_cursor(simulation: Simulation) -> None:
    [job_id] = await hourly(simulation)
    cursor = await simulation.cursor(job_id)
    command = backfill(job_id, NINE - 24 * HOUR, NINE - HOUR, payload='{"again":true}')
    await simulation.apply(command)
    await simulation.work()
    assert await outcome(simulation, command) == [("applied", "23")]
    assert await simulation.cursor(job_id) == cursor
    assert await simulation.due(job_id) == [NINE - hours * HOUR for hours in range(23, 0, -1)]
    assert len(simulation.hinted) == 23
    assert {each.reason for each in await simulation.events(job_id, "run_scheduled")} == {None, "backfill"}
    await simulation.run_until(NINE)
    assert await simulation.cursor(job_id) == NINE + HOUR


@pytest.mark.parametrize(
    ("after", "through"), [(NINE, NINE), (NINE - 2000 * HOUR, NINE - HOUR), (START - HOUR, START + HOUR)]
)
async def test_a_backfill_of_nothing_of_too_much_or_of_the_future_is_rejected(
    simulation: Simulation, after: datetime, through: datetime
) -> None:
    [job_id] = await hourly(simulation)
    command = backfill(job_id, after, through)
    effects = await simulation.apply(command)
    assert effects.rejected[command.command_id].field == "to"
    assert await simulation.runs(job_id) == [NINE]


async def test_a_one_off_that_comes_after_its_start_deadline_is_rejected(simulation: Simulation) -> None:
    at = {"runAt": "2026-05-01T08:29:58Z"}
    in_time = create(job_on(PARTITION), at, start_deadline_seconds=2)
    too_late = create(job_on(PARTITION), at, start_deadline_seconds=1)
    effects = await simulation.apply(in_time, too_late)
    assert effects.rejected.keys() == {too_late.command_id}
    await simulation.work()
    assert len(simulation.hinted) == 1


async def test_occurrences_of_a_pause_are_skipped_as_such_each_counted_once(simulation: Simulation) -> None:
    [job_id] = await hourly(simulation)
    await simulation.apply(pause(job_id))
    await simulation.feed()
    simulation.clock.now = START + 72 * HOUR
    await simulation.apply(resume(job_id))
    await simulation.feed()
    assert await simulation.skipped(job_id) == {"paused": 72}
    assert await simulation.runs(job_id) == [START + 72.5 * HOUR]
    assert simulation.hinted == {}
    await simulation.run_until(START + 72.5 * HOUR)
    assert await simulation.due(job_id) == [START + 72.5 * HOUR]
