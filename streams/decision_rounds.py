"""On-time decisions of all partitions that a process owns on one shard: together, not in a transaction for each.

Their owners look for what has come at the same instants (streams/timekeeper.py), so they ask at the same time; whoever
asks while a transaction is under way is in the next one. So what has come costs the same however many partitions it is
spread over. Where it is a lot, its runs want to be leased just then: decisions rest between their transactions, for as
long as they may.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from uuid import UUID

from ledger.fence import Fence, FencedTransaction
from ledger.group_commit import GroupCommit
from streams.decisions import Asked, Decided, decide

BATCH = 500  # jobs in one transaction
DUTY = 0.3  # of a process's time while there is more than one transaction to do
PATIENCE_S = 0.4  # from then on they do not rest: some jobs fire every second


class DecisionRounds:
    """Belongs to one event loop. transaction: opens one under all the fences that it is given."""

    def __init__(
        self, transaction: Callable[[Sequence[Fence]], AbstractAsyncContextManager[FencedTransaction]]
    ) -> None:
        self._transaction = transaction
        self._group = GroupCommit(self._decide, batch_rows=BATCH, in_flight=1)
        self._began = self._ended = self._busy_since = 0.0  # monotonic; of the last transaction, of all without a rest

    async def decide(self, asked: Asked) -> Decided:
        """At most BATCH jobs of one owner, who asks for nothing else meanwhile.

        Raises EpochLost when the asker's epoch is over, LedgerUnavailable; nothing is known to be decided then. A
        cancelled asker leaves what it asked for under way.
        """
        if not asked.timers:
            return Decided()
        answers = await self._group.write(asked)
        return answers[next(iter(asked.timers))]

    async def drain(self) -> None:
        """Return when nothing is under way."""
        await self._group.drain()

    async def _decide(self, asked: Sequence[Asked]) -> Mapping[UUID, Decided]:
        await self._rest()
        self._began = time.monotonic()
        try:
            async with self._transaction([each.fence for each in asked]) as tx:
                answers = await decide(tx, asked)
        finally:
            self._ended = time.monotonic()
        return {job_id: decided for each, decided in zip(asked, answers, strict=True) for job_id in each.timers}

    async def _rest(self) -> None:
        """After the last transaction, unless enough time has passed since, or they have rested for too long already."""
        now, rested_at = time.monotonic(), self._ended + (self._ended - self._began) * (1 / DUTY - 1)
        if rested_at <= now:
            self._busy_since = now
        elif now - self._busy_since < PATIENCE_S:
            await asyncio.sleep(min(rested_at, self._busy_since + PATIENCE_S) - now)
