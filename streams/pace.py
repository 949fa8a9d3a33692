"""Instants at a rate: when the runs that are made up for come due. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

_MICROSECOND = datetime.resolution
_LAST = datetime(9999, 1, 1, tzinfo=UTC)  # a tiny rate does not lead out of the calendar


class Pace:
    """Instants from `first` on, each given once: in no second more of them than the rate, rounded up.

    rate_per_s: None gives `first` again and again.
    """

    def __init__(self, rate_per_s: float | None, first: datetime) -> None:
        self._rate_per_s, self._first = rate_per_s, first
        self._room_us = (_LAST - first) // _MICROSECOND
        self.taken = 0

    @property
    def next(self) -> datetime:
        """The instant that is given next; those before it are taken."""
        if self._rate_per_s is None:
            return self._first
        # Up, never down, so that what is given in several parts is no denser than the rate.
        return self._first + timedelta(microseconds=math.ceil(min(self.taken * 1e6 / self._rate_per_s, self._room_us)))

    def take(self) -> datetime:
        instant = self.next
        self.taken += 1
        return instant
