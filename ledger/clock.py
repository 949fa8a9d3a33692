"""The ledger's clock as seen from this process. The ledger judges everything about time; this only aims at it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from ledger.connection import Connection, Pool, ledger_now, session

_FIRST_QUESTIONS = 4
_SAMPLES = 24  # of a minute or two: the two clocks do not drift far apart meanwhile
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class LedgerClock:
    """An estimate of the ledger's time, never ahead of it by more than the steadiness of the two clocks.

    Each sample asks the ledger once, with whatever else is asked just then (ledger/news.py). The answer was true
    somewhere within the round trip, so the estimate takes the earliest it can have been: what is done by it is late by
    at most a round trip and never early. The sample with the shortest round trip among the last few wins; those that
    the newest contradicts are forgotten: the ledger's clock was set, or another machine is the ledger now.
    """

    def __init__(self) -> None:
        self.on_set: Callable[[], None] = _nothing  # called when the ledger's clock was found to be another
        self._samples: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)  # (round trip, offset), microseconds
        self._best: tuple[int, int] | None = None  # in one, for whoever asks in another thread

    async def begin(self, pool: Pool) -> None:
        """Take the first sample, unless there is one. Raises LedgerUnavailable."""
        if not self._samples:
            await self.sample(pool)

    async def sample(self, pool: Pool) -> None:
        """Ask the ledger; more than once, for who has slept is slow at first.

        Raises LedgerUnavailable, and the old estimate stands.
        """
        async with session(pool) as conn:
            for _ in range(_FIRST_QUESTIONS):
                await self.ask(conn)

    async def ask(self, conn: Connection) -> None:
        """Take a sample in this session."""
        sent_us = monotonic_us()
        self.hear(sent_us, await ledger_now(conn))

    def hear(self, sent_us: int, now: datetime) -> None:
        """The ledger's clock, as it has just answered a question that was sent then, by `monotonic_us`."""
        received_us = monotonic_us()
        self.learn(received_us - sent_us, (now - _EPOCH) // _MICROSECOND - received_us)

    def learn(self, round_trip_us: int, offset_us: int) -> None:
        """The ledger's clock was between offset_us and offset_us + round_trip_us ahead of ours."""
        best = min(self._samples, default=(round_trip_us, offset_us))
        if was_set := best[1] > offset_us + round_trip_us or best[1] + best[0] < offset_us:
            self._samples.clear()
        self._samples.append((round_trip_us, offset_us))
        self._best = min(self._samples)
        if was_set:
            self.on_set()

    def now_us(self) -> int:
        """The ledger's time, microseconds since 1970. Needs one sample first."""
        assert self._best is not None
        return monotonic_us() + self._best[1]

    def skew_s(self, wall_us: int | None = None) -> float:
        """How far this process's wall clock is ahead of the ledger's for certain, negative when it is behind.

        Nothing goes by it but what people read: logs, and when a producer says that a command was made. NaN without a
        sample.
        """
        if self._best is None:
            return math.nan
        round_trip_us, offset_us = self._best
        most_us = (time.time_ns() // 1_000 if wall_us is None else wall_us) - (monotonic_us() + offset_us)
        return max(most_us - round_trip_us, min(most_us, 0)) / 1e6

    def locally_us(self, instant_us: int) -> int | None:
        """When the ledger's clock will have reached an instant, by `monotonic_us`. None without a sample."""
        return None if self._best is None else instant_us - self._best[1]


def _nothing() -> None:
    """Nobody wants to know."""


def monotonic_us() -> int:
    """This process's clock, which only grows."""
    return time.monotonic_ns() // 1_000
