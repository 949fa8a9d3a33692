"""Which queues have a rate, as a process last read it: so that owners need not ask where none has ever been set."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ledger.connection import Pool, session
from ledger.queue_settings import QueueName, RateVersion, read_rate_versions
from schemas.errors import LedgerUnavailable
from streams.pulse import pulse

log = logging.getLogger(__name__)

PERIOD_S = 5.0


class QueueRates:
    """What the rates are is read where they are used, in the transaction; here is only whether they have changed."""

    def __init__(self) -> None:
        self._versions: dict[QueueName, RateVersion] = {}

    def any_set(self) -> bool:
        """Whether some queue has a rate."""
        return any(version.is_set for version in self._versions.values())

    def changed(self, known: Mapping[QueueName, int]) -> dict[QueueName, int]:
        """The queues whose rate has another version than is known, with that."""
        return {queue: found.version for queue, found in self._versions.items() if known.get(queue) != found.version}

    async def read(self, pool: Pool) -> None:
        """Raises LedgerUnavailable, and what was read before stands."""
        async with session(pool) as conn:
            self._versions = await read_rate_versions(conn)


async def keep_rates(rates: QueueRates, pool: Pool) -> None:
    """Follow the settings until cancelled."""
    while True:
        try:
            await rates.read(pool)
        except LedgerUnavailable as error:
            log.warning("the rates of queues cannot be read: %s", error)
        await pulse(PERIOD_S)
