"""Behind a pooler a role works if the sessions are its own, and refuses to start, saying why, if they are only lent."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT

import pytest

from ledger.connection import session
from ledger.shards import open_shards
from schemas.errors import LedgerMismatch
from tests.ledger.pooler import pooled


async def test_a_pooler_that_gives_sessions_by_the_transaction_is_refused(ledger_dsn: str) -> None:
    async with pooled(ledger_dsn, lends=True) as dsn:
        for _ in range(2):
            with pytest.raises(LedgerMismatch, match="a pooler that gives sessions by the transaction"):
                async with open_shards(dsn, size=2):
                    pytest.fail("no role may begin with it")


@pytest.mark.parametrize("role", ["streams", "relay", "api"])
async def test_a_role_does_not_start_behind_it_and_says_why(ledger_dsn: str, role: str) -> None:
    more = {"streams": ["--name", "a"], "api": ["--history-url", "http://127.0.0.1:1"]}.get(role, [])
    async with pooled(ledger_dsn, lends=True) as dsn:
        code, said = await run(role, "--kafka", "127.0.0.1:1", "--postgres", dsn, "--port", "0", *more)
    assert code == 1
    assert "is a pooler that gives sessions by the transaction: name Postgres itself" in said


async def test_a_pooler_that_gives_whole_sessions_is_none_to_us(ledger_dsn: str) -> None:
    async with (
        pooled(ledger_dsn, lends=False) as dsn,
        open_shards(dsn, size=2) as shards,
        session(shards.home) as conn,
    ):
        row = await (await conn.execute("SHOW transaction_timeout")).fetchone()
    assert row == ("10s",)


async def test_a_pooler_that_leaves_out_the_settings_of_sessions_is_refused(ledger_dsn: str) -> None:
    async with pooled(ledger_dsn, lends=False, passes_options=False) as dsn:
        with pytest.raises(LedgerMismatch, match="leaves out what sessions are begun with"):
            async with open_shards(dsn, size=2):
                pytest.fail("no role may begin with it")


async def run(role: str, *options: str) -> tuple[int | None, str]:
    """Its exit code, and what it has said."""
    argv = ["-m", "fencepostd", "run", role, *options]
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=PIPE, stderr=STDOUT)
    said, _ = await process.communicate()
    return process.returncode, said.decode()
