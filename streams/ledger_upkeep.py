"""Upkeep of the ledger beside the relay: rows that nobody can ask for any more, or will, are dropped."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from ledger.commands import forget_outcomes
from ledger.connection import Pool, ledger_pool, session
from ledger.lease_requests import forget_lease_requests
from ledger.partitions import forget_takeovers
from ledger.slots import forget_slotless
from schemas.errors import LedgerUnavailable

log = logging.getLogger(__name__)

PERIOD_S = 60.0


async def keep_ledger_tidy(dsn: str, stop: asyncio.Event, *, period_s: float = PERIOD_S) -> None:
    """Tidy now and then until `stop`. Any number of processes may: dropping what is gone is a no-op."""
    async with ledger_pool(dsn, size=1, name="fencepost-upkeep") as pool:
        while not stop.is_set():
            await _tidy(pool)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), period_s)


async def _tidy(pool: Pool) -> None:
    try:
        async with session(pool) as conn:
            await forget_lease_requests(conn)
            await forget_outcomes(conn)
            await forget_takeovers(conn)
            await forget_slotless(conn)
    except LedgerUnavailable as error:
        log.warning("upkeep waits for the ledger: %s", error)
