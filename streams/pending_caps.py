"""How many runs tenants may have that wait or are leased before no command of theirs makes another.

What a tenant has is counted in the ledger now and then, and what commands have made here since then is added: so the
counter is right again after whatever crash, at the next count. What other processes have made since is not in it, so
a tenant may get beyond its limit by what they make in one period.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from ledger.connection import Pool, session
from ledger.pending_counts import count_pending
from ledger.pulse import pulse
from ledger.tenant_limits import TenantLimits, read_limits
from schemas.errors import LedgerUnavailable

log = logging.getLogger(__name__)

PERIOD_S = 2.0
DUTY = 0.02  # of one of Postgres' processes, for counting: a tenant may have a million runs


class PendingCaps:
    """Of the tenants of one shard, in one process. What has a limit has its room here; a share of it, for a shard."""

    def __init__(self) -> None:
        self._room: dict[str, int] = {}
        self._created: Counter[str] = Counter()
        self._to_count = asyncio.Event()

    def hear(self, limits: Mapping[str, TenantLimits]) -> None:
        """As they are set: while none is there is nothing to count."""
        if any(each.max_pending is not None for each in limits.values()) or self.any_set():
            self._to_count.set()
        else:
            self._to_count.clear()

    async def any_to_count(self) -> None:
        """Return once some tenant has a limit, as far as was heard."""
        await self._to_count.wait()

    def any_set(self) -> bool:
        """Whether some tenant has a limit."""
        return bool(self._room)

    def room(self, tenant: str) -> float:
        """How many runs of the tenant may still be made by commands, as far as is known."""
        return self._room[tenant] - self._created[tenant] if tenant in self._room else float("inf")

    def created(self, counts: Mapping[str, int]) -> None:
        """So many runs were made by commands, and are committed."""
        self._created.update(counts)

    async def read(self, pool: Pool, share: float) -> None:
        """Count anew. share: of a limit that is this shard's. Raises LedgerUnavailable: what was read before stands.

        What is committed while the ledger counts may be in it twice, until the next count.
        """
        before = self._created.copy()
        async with session(pool) as conn:
            limits = {tenant: each.max_pending for tenant, each in (await read_limits(conn)).items()}
            most = {tenant: max(1, round(limit * share)) for tenant, limit in limits.items() if limit is not None}
            pending = await count_pending(conn, most) if most else {}
        self._room = {tenant: limit - pending[tenant] for tenant, limit in most.items()}
        self._created -= before


async def keep_caps(caps: PendingCaps, pool: Pool, share: Callable[[], float]) -> None:
    """Count now and then while there are limits, until cancelled."""
    while True:
        await caps.any_to_count()
        began = time.monotonic()
        try:
            await caps.read(pool, share())
        except LedgerUnavailable as error:
            log.warning("what tenants have pending cannot be counted: %s", error)
        await pulse(max(PERIOD_S, (time.monotonic() - began) / DUTY))
