"""Tells the ledger up to when every occurrence has its decision, for all partitions of a process at once.

It is also the sign that their owners live. One statement a period for all of them costs an idle process next to
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ledger.connection import Pool
from ledger.fence import say_decided
from ledger.pulse import pulse
from schemas.errors import LedgerUnavailable
from streams.partition_owner import PartitionOwner
from streams.timers import from_us

log = logging.getLogger(__name__)

PERIOD_S = 2.0


async def keep_decided_through(pool: Pool, owners: Callable[[], Iterable[PartitionOwner]]) -> None:
    """Say it now and then until cancelled; what the ledger is away for is said the next time."""
    while True:
        await pulse(PERIOD_S)
        try:
            await say_decided_through(pool, owners)
        except LedgerUnavailable as error:
            log.warning("how far decisions are cannot be told: %s", error)


async def say_decided_through(pool: Pool, owners: Callable[[], Iterable[PartitionOwner]]) -> None:
    """Say it once, for the owners of whom the ledger has not heard for a while. Raises LedgerUnavailable.

    An owner whose word was not taken may have lost its epoch, and finds out.
    """
    unsaid = {owner: through_us for owner in owners() if (through_us := owner.decider.unsaid_decided_us()) is not None}
    if not unsaid:
        return
    said = await say_decided(pool, {owner.fence: from_us(through_us) for owner, through_us in unsaid.items()})
    for owner in owners():  # not those that were let go meanwhile
        if owner not in unsaid:
            continue
        if owner.fence.partition in said:
            owner.decider.said_decided(unsaid[owner])
        else:
            owner.check()
