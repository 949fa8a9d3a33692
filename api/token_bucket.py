"""A token bucket: at most rate × time + burst tokens are given, whatever is asked for when.

Pure: instants are seconds on a clock that only grows.
"""

from __future__ import annotations

import math

_WHOLE = 1e-9  # what is missing to a whole token through rounding alone


class TokenBucket:
    """Begins empty: who begins anew, again and again, gains no burst by it.

    rate_per_s: 0 and more. burst: how many tokens it holds, at least one, or it would never give any.
    """

    __slots__ = ("_at_s", "_level", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float, now_s: float) -> None:
        self.rate_per_s, self.burst = rate_per_s, max(1.0, burst)
        self._level, self._at_s = 0.0, now_s

    def resize(self, rate_per_s: float, burst: float, now_s: float) -> None:
        """From now on: what has come at the old rate stays, as far as there is room."""
        self._fill(now_s)
        self.rate_per_s, self.burst = rate_per_s, max(1.0, burst)
        self._level = min(self._level, self.burst)

    def take(self, most: int, now_s: float) -> int:
        """As many whole tokens as there are, and at most that many."""
        self._fill(now_s)
        taken = min(most, math.floor(self._level + _WHOLE))
        self._level -= taken
        return taken

    def give_back(self, count: int) -> None:
        """Tokens that were taken and not used."""
        self._level = min(self._level + count, self.burst)

    def wait_s(self, count: int, now_s: float) -> float:
        """Until there are so many, or as many as fit; infinite while none come."""
        self._fill(now_s)
        missing = min(count, self.burst) - self._level
        if missing <= _WHOLE:
            return 0.0
        return missing / self.rate_per_s if self.rate_per_s else math.inf

    def _fill(self, now_s: float) -> None:
        self._level = min(self._level + (now_s - self._at_s) * self.rate_per_s, self.burst)
        self._at_s = now_s
