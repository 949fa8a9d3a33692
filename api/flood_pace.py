"""The pace of those who use more than their share: so many calls a round that the others are in time.

A busy process is late with everybody: each call waits for the event loop, for Postgres, for a processor, behind all
that is under way. So a flood's calls are taken on in rounds, together, which is cheapest, with rests between that the
others find. How many a round: its share of what was usual as soon as a call of a tenant within its share took long;
from there fewer while such calls do, more while they do not, and never less than half of that share.

Pure: instants are seconds on a clock that only grows.
"""

from __future__ import annotations

import math

ROUND_S = 0.05
LEAST = 20.0  # calls a round, however late others are: what they wait for may be something else
OPEN_FROM = 100.0  # so many a round are no pace any more
# A call is late that took five times as long as the quickest of late, and a moment: where Postgres is slow by itself
# nobody is slowed down for it. Runs take their own time, however little else there is.
LATE_FACTOR, LATE_MORE_S, RUN_S = 5.0, 0.003, 50e-6
QUICKEST_FADES = 1.001  # a call
# Steered to where one call in thirty is late: the ratio of the two steps makes it that quantile.
WHEN_LATE, WHEN_IN_TIME = 0.9, 1.0035
FORGOTTEN_S = 10.0  # after so long without anybody to protect a flood may have all again
USUAL_OVER_S = 2.0


class FloodPace:
    """Begins open, which is: no pace at all."""

    def __init__(self) -> None:
        self._calls, self._told_at, self._quickest_s = math.inf, -math.inf, math.inf
        self._usual, self._done, self._since = 0.0, 0, -math.inf
        self._share = 0.0

    def calls(self, now: float) -> float:
        """How many a round; infinity when it is open."""
        if now - self._told_at > FORGOTTEN_S:
            self._calls = math.inf
        return self._calls

    def tell(self, took_s: float, runs: int, now: float, share: float) -> None:
        """How long a lease of so many runs took of a tenant within its share, while others were beyond theirs.

        share: of all, what the others have.
        """
        own_s = max(0.0, took_s - runs * RUN_S)
        self._quickest_s = min(self._quickest_s * QUICKEST_FADES, own_s)
        calls = self.calls(now)
        if own_s <= self._quickest_s * LATE_FACTOR + LATE_MORE_S:
            calls *= WHEN_IN_TIME
        elif calls == math.inf:
            self._share = share * self._usual
            calls = max(LEAST, self._share)
        else:
            calls = max(LEAST, self._share / 2, calls * WHEN_LATE)
        self._calls = calls if calls < OPEN_FROM else math.inf
        self._told_at = now

    def done(self, now: float) -> None:
        """A call has come to its end, of whomever: what is usual of late is what a flood has its share of."""
        self._done += 1
        if (passed_s := now - self._since) >= ROUND_S:
            keep = math.exp(-passed_s / USUAL_OVER_S)
            self._usual = self._usual * keep + self._done * ROUND_S / passed_s * (1 - keep)
            self._done, self._since = 0, now
