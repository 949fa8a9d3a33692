"""Rows that nobody can ask for any more do not pile up."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import psycopg

from streams.ledger_upkeep import keep_ledger_tidy

OLD_AND_NEW = """
INSERT INTO applied_commands (command_id, applied_at, outcome)
VALUES (gen_random_uuid(), now() - interval '25 hours', 'applied'), (gen_random_uuid(), now(), 'applied');
INSERT INTO lease_requests (request_id, run_ids, lease_tokens, at)
VALUES (gen_random_uuid(), '{}', '{}', now() - interval '3 minutes'), (gen_random_uuid(), '{}', '{}', now());
"""
LEFT = "SELECT (SELECT count(*) FROM applied_commands), (SELECT count(*) FROM lease_requests)"


async def test_upkeep_drops_what_no_retry_asks_for_and_keeps_the_rest(ledger_dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(ledger_dsn, autocommit=True) as conn:
        await conn.execute(OLD_AND_NEW)
        stop = asyncio.Event()
        upkeep = asyncio.create_task(keep_ledger_tidy(ledger_dsn, stop, period_s=0.01))
        left = None
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                while left != (1, 1):
                    left = await (await conn.execute(LEFT)).fetchone()
        stop.set()
        await upkeep
    assert left == (1, 1)
