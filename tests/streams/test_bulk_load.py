"""A bulk load leaves the ledger as the same jobs' commands would have left it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import errors

from ledger.bulk_load import copy_jobs
from ledger.connection import Pool, session
from ledger.fence import owner_transaction, take_over
from ledger.partitions import is_told_since
from schemas.commands import CreateJob
from streams.command_batch import apply_commands
from streams.job_commands import new_job
from tests.streams.commands import create, job_on
from tests.streams.ledger_dump import dump, fetch

PARTITION = 8
AN_HOUR_AGO = datetime.now(UTC) - timedelta(hours=1)


def a_bit_of_everything() -> list[CreateJob]:
    specs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"cron": "H 9 * * MON-FRI", "zone": "America/New_York", "jitterSeconds": 90}, {}),
        ({"everySeconds": 60}, {"payload": '{"tab":"\\t","backslash":"\\\\"}', "overlap": "skip", "lane": "high"}),
        (
            {"cron": "@daily"},
            {
                "start_deadline_seconds": 0.7,
                "timeout_seconds": 12.5,
                "concurrency_key": "c",
                "name": "naïve \\ name\t2",
            },
        ),
        ({"runAt": "2100-01-01T00:00:00Z"}, {"retry_backoff": "linear", "retry_base_seconds": 2.0, "max_attempts": 9}),
        ({"delaySeconds": 7200.25}, {"declared_as": "mail/nightly", "catch_up": "all"}),
    ]
    return [create(job_on(PARTITION), schedule, issued_at=AN_HOUR_AGO, **spec) for schedule, spec in specs]


async def rows(pool: Pool) -> dict[str, list[dict[str, Any]]]:
    tables = await dump(pool, "updated_at")
    return {name: tables[name] for name in ("jobs", "runs")}


async def load(pool: Pool, commands: Sequence[CreateJob]) -> None:
    async with owner_transaction(pool, (await take_over(pool, PARTITION, "loader")).fence) as tx:
        await copy_jobs(tx, [new_job(command, PARTITION, tx.now) for command in commands])


async def test_a_bulk_load_leaves_the_rows_that_commands_would_have(ledger_pool: Pool) -> None:
    commands = a_bit_of_everything()
    async with owner_transaction(ledger_pool, (await take_over(ledger_pool, PARTITION, "owner")).fence) as tx:
        await apply_commands(tx, commands)
    by_commands = await rows(ledger_pool)
    await fetch(ledger_pool, "WITH a AS (DELETE FROM jobs), b AS (DELETE FROM runs) SELECT 1")
    await load(ledger_pool, commands)
    assert await rows(ledger_pool) == by_commands
    assert [len(each) for each in by_commands.values()] == [len(commands)] * 2


async def test_a_load_of_which_no_event_tells_leaves_its_epoch_unknown(ledger_pool: Pool) -> None:
    before = (await take_over(ledger_pool, PARTITION, "owner")).fence
    await load(ledger_pool, a_bit_of_everything())
    after = (await take_over(ledger_pool, PARTITION, "owner again")).fence
    async with session(ledger_pool) as conn:
        assert not await is_told_since(conn, after, before.epoch, before.owner)


async def test_a_job_that_exists_fails_its_whole_batch(ledger_pool: Pool) -> None:
    commands = a_bit_of_everything()
    await load(ledger_pool, commands[:1])
    before = await rows(ledger_pool)
    with pytest.raises(errors.UniqueViolation):
        await load(ledger_pool, commands[1:] + commands[:1])
    assert await rows(ledger_pool) == before
