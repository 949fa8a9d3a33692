"""Rows that nobody can ask for any more do not pile up."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest

import ledger.commands
from streams.ledger_upkeep import forget_old_jobs, keep_ledger_tidy

OLD_AND_NEW = """
INSERT INTO applied_commands (command_id, applied_at, outcome)
SELECT gen_random_uuid(), now() - interval '25 hours', 'applied' FROM generate_series(1, 25)
UNION ALL SELECT gen_random_uuid(), now(), 'applied';
INSERT INTO keyed_commands (command_id, digest, at)
VALUES (gen_random_uuid(), '', now() - interval '25 hours'), (gen_random_uuid(), '', now());
INSERT INTO lease_requests (request_id, run_ids, lease_tokens, at)
VALUES (gen_random_uuid(), '{}', '{}', now() - interval '3 minutes'), (gen_random_uuid(), '{}', '{}', now());
INSERT INTO pauses (tenant, paused_at, resumed_at, by)
VALUES ('acme', now() - interval '50 days', now() - interval '31 days', 't'),
       ('acme', now() - interval '50 days', now() - interval '29 days', 't'),
       ('acme', now() - interval '50 days', NULL, 't');
INSERT INTO takeovers (partition, epoch, owner, at, decided_through)
SELECT 1, epoch - behind, 'o', now() - age, now()
FROM partitions, (VALUES (101, interval '31 days'), (102, interval '0'), (99, interval '31 days')) AS t (behind, age)
WHERE partition = 1;
INSERT INTO tokens (token_id, token_hash, tenant, role, expires_at, revoked_at)
VALUES ('a', 'a', 'acme', 'worker', now() - interval '91 days', NULL),
       ('b', 'b', 'acme', 'worker', NULL, now() - interval '91 days'),
       ('c', 'c', 'acme', 'worker', NULL, NULL);
INSERT INTO slotless_runs (job_id, run_id) VALUES (gen_random_uuid(), gen_random_uuid());
"""
LEFT = """
SELECT (SELECT count(*) FROM applied_commands), (SELECT count(*) FROM keyed_commands),
       (SELECT count(*) FROM lease_requests), (SELECT count(*) FROM pauses), (SELECT count(*) FROM takeovers),
       (SELECT count(*) FROM slotless_runs), (SELECT count(*) FROM tokens)
"""


async def until(conn: psycopg.AsyncConnection, query: str, wanted: tuple[object, ...]) -> None:
    """Return once the query answers so. Raises AssertionError with what it answers after 30 s."""
    answer = None
    with suppress(TimeoutError):
        async with asyncio.timeout(30):
            while answer != wanted:
                answer = await (await conn.execute(query.encode())).fetchone()
                await asyncio.sleep(0.01)  # the ledger tells nobody that rows are gone
    assert answer == wanted


async def test_upkeep_drops_what_nobody_asks_for_any_more_and_keeps_the_rest(
    ledger_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger.commands, "FORGOTTEN_AT_ONCE", 10)
    async with await psycopg.AsyncConnection.connect(ledger_dsn, autocommit=True) as conn:
        await conn.execute(OLD_AND_NEW)
        stop = asyncio.Event()
        upkeep = asyncio.create_task(keep_ledger_tidy(ledger_dsn, stop))  # all of it in the first round
        await until(conn, LEFT, (1, 1, 1, 2, 2, 0, 1))
        stop.set()
        await upkeep


JOBS = """
INSERT INTO jobs (job_id, partition, tenant, queue, lane, max_attempts, definition, created_at, updated_at)
SELECT gen_random_uuid(), n % 16, 'acme', 'mail', 1, 5, kind.definition, age.at, age.at
FROM (VALUES ('{"schedule":{"delaySeconds":0}}'), ('{"schedule":{"everySeconds":60}}')) AS kind (definition),
     (VALUES (now() - interval '31 days'), (now() - interval '29 days')) AS age (at), generate_series(1, 320) AS n
"""
LEFT_JOBS = "SELECT count(*) FILTER (WHERE definition LIKE '%delay%'), count(*) FROM jobs"


async def test_old_one_offs_of_all_partitions_are_forgotten_and_nothing_else(
    ledger_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.ledger_upkeep.AT_ONCE", 15)  # two looks a partition
    monkeypatch.setattr("streams.ledger_upkeep.DUTY", 1.0)
    async with await psycopg.AsyncConnection.connect(ledger_dsn, autocommit=True) as conn:
        await conn.execute(JOBS)
        stop = asyncio.Event()
        forgetting = asyncio.create_task(forget_old_jobs(ledger_dsn, stop, timedelta(days=30)))  # in one round
        await until(conn, LEFT_JOBS, (320, 960))
        stop.set()
        await forgetting
