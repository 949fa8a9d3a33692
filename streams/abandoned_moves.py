"""Moves of partitions whose mover has died are ended, so that no partition stands still until somebody notices."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from ledger.connection import Pool, ledger_pool, session
from ledger.moves import read_unfinished
from ledger.partition_moves import abort_move
from ledger.pulse import until_pulse_s
from ledger.shards import open_shards
from schemas.errors import FencepostError, LedgerUnavailable, MoveRefused

log = logging.getLogger(__name__)

PERIOD_S = 5.0


async def end_abandoned_moves(dsn: str, stop: asyncio.Event, *, period_s: float = PERIOD_S) -> None:
    """Look now and then until `stop`. dsn: home's. Any number of processes may: one at a time ends a move."""
    async with ledger_pool(dsn, size=1, name="fencepost-moves") as home:
        while not stop.is_set():
            try:
                await end_what_is_abandoned(home, dsn)
            except LedgerUnavailable as error:
                log.warning("moves of partitions cannot be looked at: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(until_pulse_s(period_s)):
                    await stop.wait()


async def end_what_is_abandoned(home: Pool, dsn: str) -> None:
    """Look once. Where the target has the partition the move is finished, else it is taken back.

    A mover that lives is left alone. Raises LedgerUnavailable while home is away.
    """
    async with session(home) as conn:
        unfinished = await read_unfinished(conn)
    if unfinished:
        await _end(dsn, unfinished)


async def _end(dsn: str, partitions: list[int]) -> None:
    async with open_shards(dsn, name="fencepost-moves") as shards:
        for partition in partitions:
            try:
                await abort_move(shards, partition, log.info)
            except MoveRefused as error:
                log.debug("partition %d: %s", partition, error)
            except FencepostError as error:
                log.warning("the move of partition %d cannot be ended yet: %s", partition, error)
