"""Upkeep of permits: what is leased of a newly limited queue is counted, and permits without a lease are given back.

Whoever crashes between a lease and its permit, or lets a lease expire, leaves a permit behind; the word of the run's
own shard tells. Any number of processes may do it, every step is safe to repeat. While no queue has a limit, and no
permit is out, nothing is asked of the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from api.metrics import ApiMetrics
from api.permits import Permits
from ledger.connection import Pool, session
from ledger.live_counts import count_live
from ledger.live_limits import read_live_limit
from ledger.permits import GivenPermit, SpentPermit, free_permits, read_permits, spent_permits
from ledger.queue_settings import QueueName
from ledger.shards import Shards, write_here
from schemas.errors import FencepostError, LedgerUnavailable, NotOnThisShard

log = logging.getLogger(__name__)

PERIOD_S = 1.0
DUTY = 0.05  # of the time, when there are many permits


class PermitUpkeep:
    """Belongs to one event loop."""

    def __init__(self, shards: Shards, permits: Permits, metrics: ApiMetrics) -> None:
        self._shards = shards
        self._metrics = metrics
        self._permits = permits
        self._are_out = True  # permits, as far as is known

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            began = time.monotonic()
            try:
                if self._permits.limits or self._are_out:
                    await self.look()
            except FencepostError as error:
                log.warning("upkeep of permits waits for the ledger: %s", error)
            except Exception:
                log.exception("upkeep of permits failed in a way that nobody foresaw")
            await asyncio.sleep(max(PERIOD_S, (time.monotonic() - began) * (1 / DUTY - 1)))

    async def look(self) -> None:
        """One round. Raises FencepostError."""
        for queue, limit in self._permits.limits.items():
            if not limit.is_counted:
                await self.count(queue)
        await self.sweep()

    async def count(self, queue: QueueName) -> None:
        """Let permits of the queue be given, if it has a limit now. Raises LedgerUnavailable, NotOnThisShard."""
        async with session(self._shards.home) as conn:
            limit = await read_live_limit(conn, queue)
        if limit is not None and not limit.is_counted:
            await count_live(self._shards, queue)
        await self._permits.look()

    async def sweep(self) -> None:
        """Give back what no lease has. Raises FencepostError."""
        async with session(self._shards.home) as conn:
            given = await read_permits(conn)
        self._are_out = bool(given)
        self._metrics.permits_out.set(len(given))
        parts = self._shards.split(given).items()
        found = await asyncio.gather(*(self._sweep_shard(self._shards.pools[shard], own) for shard, own in parts))
        if spent := [permit for part in found for permit in part]:
            async with session(self._shards.home) as conn:
                self._permits.freed(await free_permits(conn, spent))

    async def _sweep_shard(self, pool: Pool, given: Sequence[GivenPermit]) -> list[SpentPermit]:
        """None of a shard that is away, and of partitions that are moving just now: the next round finds them."""
        try:
            came = await write_here(given, partial(_spent, pool))
        except LedgerUnavailable as error:
            log.warning("a shard does not tell which permits are spent: %s", error)
            return []
        return [each for each in came.values() if not isinstance(each, NotOnThisShard)]


async def _spent(pool: Pool, given: Sequence[GivenPermit]) -> Mapping[UUID, SpentPermit]:
    return {permit.run_id: permit for permit in await spent_permits(pool, given)}
