"""Shares of the sessions: slow calls of one kind leave some to the others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from ledger import connection
from ledger.connection import Pool, session
from ledger.session_shares import SessionShare
from schemas.errors import LedgerUnavailable


async def hold(pool: Pool, stack: AsyncExitStack) -> None:
    await stack.enter_async_context(session(pool))


async def test_who_works_within_a_share_waits_for_others_of_it_and_for_nobody_else(ledger_pool: Pool) -> None:
    share = SessionShare(1)
    async with AsyncExitStack() as held:
        with share.used():
            await hold(ledger_pool, held)
            second = asyncio.create_task(hold(ledger_pool, held))
        async with session(ledger_pool):
            pass
        with SessionShare(1).used():
            async with session(ledger_pool):
                pass
        assert not second.done()
        await held.pop_all().aclose()
        await second


async def test_nobody_waits_for_a_turn_without_end_and_the_ledger_is_not_taken_for_away(
    ledger_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.0)
    with SessionShare(1).used():
        async with session(ledger_pool):
            with pytest.raises(LedgerUnavailable, match="calls of this kind"):
                async with session(ledger_pool):
                    pass
        assert not ledger_pool.is_away
        async with session(ledger_pool):
            pass


async def test_who_gives_up_waiting_for_a_turn_takes_none(ledger_pool: Pool) -> None:
    with SessionShare(1).used():
        async with session(ledger_pool):
            waiting = asyncio.create_task(hold(ledger_pool, AsyncExitStack()))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled()
        async with session(ledger_pool):
            pass
