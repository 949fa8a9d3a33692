"""What the owners of a process share that own partitions of one shard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from ledger.clock import LedgerClock
from ledger.connection import Pool, session
from ledger.news import News, read_news
from schemas.codec import Codec
from streams.apply_turns import ApplyTurns
from streams.decision_rounds import DecisionRounds
from streams.missed_events import Fold
from streams.pending_caps import PendingCaps
from streams.queue_rates import QueueRates
from streams.ready_hints import ReadyHints
from streams.rejections import CommandReturns

# Transactions of commands under way at once in a process: while one waits for its turn its batch grows. After an outage
# 1,300 records were applied in 1.7 s by 118 transactions, and in 5.5 s by 1,038 when every partition went ahead.
APPLYING_AT_ONCE = 2
# Opening reads a partition from the ledger, and one loop folds it all: more of them at once end no sooner, but would
# have every session, so that what is owned already stood still.
OPENING_AT_ONCE = 4


@dataclass(frozen=True)
class Surroundings:
    """Given to every owner; the turns are what they take in turns, so that a process does not do it all at once.

    All of it but hints, returns and missed events is about one shard: one that is away has nobody else's turn.
    missed_events: a MissedEvents; without it a state that is behind an epoch is always rebuilt.
    """

    pool: Pool
    codec: Codec
    hints: ReadyHints
    returns: CommandReturns
    clock: LedgerClock
    partitions: int
    state_folder: Path
    rounds: DecisionRounds
    wake_timekeeper: Callable[[int], None]  # of a partition
    end_offset: Callable[[int], Awaitable[int]]  # of a partition of run-events
    crash: Callable[[Exception], None]
    missed_events: Callable[[int, int, int, int, Fold], Awaitable[int | None]] | None = None
    opening_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OPENING_AT_ONCE))
    apply_turns: ApplyTurns = field(default_factory=lambda: ApplyTurns(APPLYING_AT_ONCE))
    catch_up_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    sweep_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    reconcile_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    rates: QueueRates = field(default_factory=QueueRates)
    caps: PendingCaps = field(default_factory=PendingCaps)
    rate_share: Callable[[], float] = lambda: 1.0  # of a queue's rate, and of a tenant's cap, that is this shard's

    async def begin(self) -> None:
        """Read what no owner can begin without. Raises LedgerUnavailable."""
        await self.clock.begin(self.pool)
        async with session(self.pool) as conn:
            self.hear(await read_news(conn, self.clock))
        await self.caps.read(self.pool, self.rate_share())

    def hear(self, news: News) -> bool:
        """How things are in the shard; whether owners are to look at what has changed."""
        self.caps.hear(news.limits)
        return self.rates.hear(news.rates)
