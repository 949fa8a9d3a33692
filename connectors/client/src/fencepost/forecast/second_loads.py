"""How many runs become due in each second of a horizon."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import accumulate
from operator import add
from typing import NamedTuple

from msgspec import Struct

MINUTE_S = 60
HOUR_S = 3_600


class Busy(Struct, frozen=True):
    """A second or a minute, and how many runs become due in it."""

    at: datetime
    runs: int


class Spread(NamedTuple):
    """Runs of one second that are spread evenly over the `width` seconds from there on."""

    second: int
    runs: int
    width: int


class SecondLoads:
    """Eight bytes a second. start, end: both are in it."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self._runs = array("q", bytes(8 * (end - start + 1)))

    def add(self, runs: Mapping[int, int]) -> None:
        """Count runs by second."""
        for second, count in runs.items():
            self._runs[second - self.start] += count

    def total(self) -> int:
        return sum(self._runs)

    def worst_seconds(self, count: int) -> list[Busy]:
        """The busiest, and of equals the first."""
        worst = heapq.nsmallest(count, range(len(self._runs)), key=lambda place: (-self._runs[place], place))
        return [_busy(self.start + place, self._runs[place]) for place in worst if self._runs[place]]

    def worst_minutes(self, count: int) -> list[Busy]:
        worst = heapq.nsmallest(count, self._minutes(), key=lambda busy: (-busy[1], busy[0]))
        return [_busy(minute, runs) for minute, runs in worst if runs]

    def by_hour(self) -> list[int]:
        """Runs by hour of the day, in UTC."""
        hours = [0] * 24
        for minute, runs in self._minutes():
            hours[minute // HOUR_S % 24] += runs
        return hours

    def over(self, limit: int) -> Iterator[Busy]:
        """The seconds with more runs than that, in order."""
        return (_busy(self.start + place, runs) for place, runs in enumerate(self._runs) if runs > limit)

    def peak_without(self, spreads: Iterator[Spread]) -> Busy | None:
        """The worst second there would be, were these runs spread."""
        size = len(self._runs)
        steps = array("q", bytes(8 * (size + 1)))  # what is added from a second on
        for second, runs, width in spreads:
            first = second - self.start
            share, rest = divmod(runs, width)
            for place, change in ((first, share - runs), (first + 1, runs), (first + width, -share)):
                steps[min(place, size)] += change
            steps[first] += 1 if rest else 0
            steps[min(first + max(rest, 1), size)] -= 1 if rest else 0
        loads = list(map(add, self._runs, accumulate(steps)))
        peak = max(loads)
        return _busy(self.start + loads.index(peak), peak) if peak else None

    def _minutes(self) -> Iterator[tuple[int, int]]:
        first = self.start // MINUTE_S * MINUTE_S
        for minute in range(first, self.end + 1, MINUTE_S):
            place = minute - self.start
            yield minute, sum(self._runs[max(0, place) : place + MINUTE_S])


def _busy(second: int, runs: int) -> Busy:
    return Busy(datetime.fromtimestamp(second, UTC), runs)
