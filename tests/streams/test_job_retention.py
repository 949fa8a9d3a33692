"""Jobs are forgotten beside commands that name them: each command finds its job, or is told that there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from ledger.connection import Pool, session
from ledger.fence import CHANGE_JOB_STATES, Fence, owner_transaction, take_over
from ledger.job_retention import FORGET_JOBS, find_forgettable, forget_jobs, keep_jobs
from ledger.jobs import read_jobs
from schemas.commands import Command
from streams.command_batch import apply_commands
from streams.effects import Effects
from tests.ledger.owned_partition import until_someone_waits_for_a_lock
from tests.streams.commands import backfill, create, delete, job_on, pause, resume, trigger, update
from tests.streams.ledger_dump import fetch

PARTITION = 5
KEPT = timedelta(days=30)
PAST = {"runAt": "2026-01-01T00:00:00Z"}
AFTER, THROUGH = datetime(2025, 12, 31, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
async def fence(ledger_pool: Pool) -> Fence:
    return (await take_over(ledger_pool, PARTITION, "me")).fence


def in_time() -> datetime:
    return datetime.now(UTC) + KEPT + timedelta(hours=1)


async def apply(pool: Pool, fence: Fence, *commands: Command) -> Effects:
    async with owner_transaction(pool, fence) as tx:
        return await apply_commands(tx, commands)


async def jobs_over(pool: Pool, fence: Fence, count: int) -> list[UUID]:
    """One-offs that have run. How their runs ended is nothing to a job."""
    job_ids = [job_on(PARTITION) for _ in range(count)]
    await apply(pool, fence, *(create(job_id, PAST) for job_id in job_ids))
    async with session(pool) as conn:
        await conn.execute("DELETE FROM runs")
    return job_ids


async def there(pool: Pool, job_ids: list[UUID]) -> set[UUID]:
    async with session(pool) as conn:
        return set(await read_jobs(conn, job_ids))


NAMING: dict[str, Callable[[UUID], Command]] = {
    "trigger": trigger,
    "backfill": lambda job_id: backfill(job_id, AFTER, THROUGH),
    "update": update,
    "pause": pause,
}


@pytest.mark.parametrize("name", NAMING)
async def test_a_job_is_kept_for_a_command_that_has_found_it(ledger_pool: Pool, fence: Fence, name: str) -> None:
    """The sweep has looked already, and comes to its deletion while the command is applied."""
    [job_id] = await jobs_over(ledger_pool, fence, 1)
    async with owner_transaction(ledger_pool, fence) as tx:
        effects = await apply_commands(tx, [NAMING[name](job_id)])
        assert await forget_jobs(ledger_pool, PARTITION, [job_id], KEPT, now=in_time()) == 0
    assert [outcome.outcome for outcome in effects.outcomes] == ["applied"]
    assert await forget_jobs(ledger_pool, PARTITION, [job_id], KEPT, now=in_time()) == 0
    assert await there(ledger_pool, [job_id]) == {job_id}


@pytest.mark.parametrize("name", [*NAMING, "resume", "delete"])
async def test_a_command_that_comes_while_its_job_is_forgotten_is_told_that_there_is_none(
    ledger_pool: Pool, fence: Fence, name: str
) -> None:
    [job_id] = await jobs_over(ledger_pool, fence, 1)
    command = {**NAMING, "resume": resume, "delete": delete}[name](job_id)
    async with ledger_pool.connection() as sweep, ledger_pool.connection() as watcher:
        async with sweep.transaction():
            await sweep.execute(CHANGE_JOB_STATES, (PARTITION,))
            asked = {"job_ids": [job_id], "partition": PARTITION, "kept": KEPT, "now": in_time()}
            assert (await sweep.execute(FORGET_JOBS, asked)).rowcount == 1
            applying = asyncio.create_task(apply(ledger_pool, fence, command))
            await until_someone_waits_for_a_lock(watcher)
        effects = await applying
    assert [error.code for error in effects.rejected.values()] == ["job_unknown"]
    assert await fetch(ledger_pool, "SELECT run_id FROM runs") == []


async def test_triggers_and_forgetting_side_by_side_lose_no_run(ledger_pool: Pool, fence: Fence) -> None:
    job_ids = await jobs_over(ledger_pool, fence, 400)
    triggered: dict[UUID, bool] = {}

    async def trigger_all() -> None:
        for at in range(0, len(job_ids), 8):
            commands = [trigger(job_id) for job_id in job_ids[at : at + 8]]
            effects = await apply(ledger_pool, fence, *commands)
            triggered.update({each.job_id: each.command_id not in effects.rejected for each in commands})

    async def forget_all() -> None:
        while len(triggered) < len(job_ids):
            async with session(ledger_pool) as conn:
                look = await find_forgettable(conn, PARTITION, KEPT, now=in_time(), limit=401)
            await forget_jobs(ledger_pool, PARTITION, look.forgettable[-5:], KEPT, now=in_time())

    await asyncio.gather(trigger_all(), forget_all())
    found = {job_id for job_id, was_there in triggered.items() if was_there}
    assert set(await fetch(ledger_pool, "SELECT job_id FROM runs")) == found
    assert await there(ledger_pool, job_ids) == found
    assert 0 < len(found) < len(job_ids)


async def test_jobs_of_a_batch_of_creations_are_not_held(ledger_pool: Pool, fence: Fence) -> None:
    """They are too young to be forgotten, and creating them is what must be fast."""
    [job_id] = await jobs_over(ledger_pool, fence, 1)
    async with owner_transaction(ledger_pool, fence) as tx:
        await apply_commands(tx, [create(job_on(PARTITION))])
        assert await forget_jobs(ledger_pool, PARTITION, [job_id], KEPT, now=in_time()) == 1


async def test_a_job_that_is_created_anew_after_it_was_forgotten_is_another_one(
    ledger_pool: Pool, fence: Fence
) -> None:
    [job_id] = await jobs_over(ledger_pool, fence, 1)
    assert (await apply(ledger_pool, fence, create(job_id, PAST))).outcomes[0].outcome == "unchanged"
    await forget_jobs(ledger_pool, PARTITION, [job_id], KEPT, now=in_time())
    effects = await apply(ledger_pool, fence, create(job_id, PAST, queue="sms"))
    assert effects.outcomes[0].outcome == "applied"
    assert await fetch(ledger_pool, "SELECT job_id, queue FROM runs") == [(job_id, "sms")]


async def test_keeping_jobs_holds_up_no_other_commands(ledger_pool: Pool, fence: Fence) -> None:
    """A batch that triggers and then pauses has the states shared first and alone afterwards; others may share them."""
    [job_id] = await jobs_over(ledger_pool, fence, 1)
    other = job_on(PARTITION)
    async with owner_transaction(ledger_pool, fence) as tx:
        await keep_jobs(tx)
        await apply(ledger_pool, fence, create(other), trigger(other))
    effects = await apply(ledger_pool, fence, trigger(job_id), pause(job_id), resume(job_id), delete(job_id))
    assert [outcome.outcome for outcome in effects.outcomes] == ["applied"] * 4
