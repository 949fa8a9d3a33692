"""Upkeep of the ledger beside the relay: rows that nobody can ask for any more, or will, are dropped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from ledger.commands import forget_outcomes
from ledger.connection import Pool, ledger_pool, session
from ledger.job_retention import AT_ONCE, find_forgettable, forget_jobs
from ledger.lease_requests import forget_lease_requests
from ledger.partitions import forget_takeovers, list_partitions
from ledger.pauses import forget_pauses
from ledger.slots import forget_slotless
from ledger.tokens import forget_tokens
from schemas.errors import LedgerUnavailable, NotOnThisShard
from streams.metrics import JOBS_FORGOTTEN

log = logging.getLogger(__name__)

PERIOD_S = 60.0
FORGETTING_PERIOD_S = 600.0
JOBS_KEPT = timedelta(days=30)
# Of Postgres' time, for what may be many rows: whoever waits for a run must not notice.
DUTY = 0.2


async def keep_ledger_tidy(dsn: str, stop: asyncio.Event, *, period_s: float = PERIOD_S) -> None:
    """Tidy now and then until `stop`. Any number of processes may: dropping what is gone is a no-op."""
    async with ledger_pool(dsn, size=1, name="fencepost-upkeep") as pool:
        await _now_and_then(lambda: _tidy(pool, stop), stop, period_s)


async def forget_old_jobs(
    dsn: str, stop: asyncio.Event, kept: timedelta, *, period_s: float = FORGETTING_PERIOD_S
) -> None:
    """Forget a shard's jobs that are over and that old, now and then until `stop`. Any number of processes may.

    kept: see `find_forgettable`; longer than outcomes of commands are remembered, for a creation that came again would
    be known as applied, and its job would not be there. Apart from the tidying, since a round may take hours.
    """
    async with ledger_pool(dsn, size=1, name="fencepost-retention") as pool:
        await _now_and_then(lambda: _forget_jobs(pool, stop, kept), stop, period_s)


async def _now_and_then(work: Callable[[], Awaitable[None]], stop: asyncio.Event, period_s: float) -> None:
    while not stop.is_set():
        try:
            await work()
        except LedgerUnavailable as error:
            log.warning("upkeep waits for the ledger: %s", error)
        await _pause(stop, period_s)


async def _tidy(pool: Pool, stop: asyncio.Event) -> None:
    async with session(pool) as conn:
        await forget_lease_requests(conn)
        await forget_takeovers(conn)
        await forget_pauses(conn)
        await forget_slotless(conn)
        await forget_tokens(conn)
        more = True
        while more and not stop.is_set():
            async with _sparingly(stop):
                more = await forget_outcomes(conn)


async def _forget_jobs(pool: Pool, stop: asyncio.Event, kept: timedelta) -> None:
    """One round: every job of that age is looked at once, be it forgotten or not."""
    async with session(pool) as conn:
        partitions = [each.partition for each in await list_partitions(conn)]
    for partition in partitions:
        place, is_end = None, False
        while not is_end and not stop.is_set():
            async with _sparingly(stop):
                async with session(pool) as conn:
                    look = await find_forgettable(conn, partition, kept, after=place, limit=AT_ONCE)
                if look.forgettable:
                    try:
                        JOBS_FORGOTTEN.inc(await forget_jobs(pool, partition, look.forgettable, kept))
                    except NotOnThisShard:
                        break  # it has moved meanwhile
            place, is_end = look.last, look.last is None


@asynccontextmanager
async def _sparingly(stop: asyncio.Event) -> AsyncIterator[None]:
    """Do it, then rest for as long as makes it DUTY of the time."""
    began = time.monotonic()
    yield
    await _pause(stop, (time.monotonic() - began) * (1 / DUTY - 1))


async def _pause(stop: asyncio.Event, wait_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await stop.wait()
