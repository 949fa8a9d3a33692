"""What `H` or jitter on the heaviest schedules of the worst second would save: that second computed anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from fencepost.forecast.firings import Firing, fires_at
from fencepost.forecast.second_loads import HOUR_S, MINUTE_S, Busy, SecondLoads, Spread

STEPS = (1, 3, 10, 30)

Fires = Callable[[Firing], Sequence[int]]


class Heavy(Struct, frozen=True):
    """A schedule, and how many jobs have it."""

    schedule: str
    jobs: int


class Saving(Struct, rename="camel", frozen=True, kw_only=True):
    """The worst second there would be, had the heaviest schedules of today's worst second been spread.

    schedules: so many of them, which are of so many jobs. over_minute: by `jitterSeconds: 60`, each run in its minute.
    over_hour: by `H` for the minute and jitterSeconds 60, or by `jitterSeconds: 3600`. Never over more than a
    schedule's shortest pause. They are taken to spread evenly; a hash does nearly so.
    """

    schedules: int
    jobs: int
    over_minute: Busy | None
    over_hour: Busy | None


def heaviest_at(firings: Mapping[Firing, int], second: int, count: int) -> list[tuple[Firing, int]]:
    """The firings of a second that have most jobs; what has jitter is spread already."""
    found: list[tuple[Firing, int]] = []
    for firing, jobs in sorted(firings.items(), key=lambda item: -item[1]):
        if len(found) == count:
            break
        if not firing.schedule.jitter_seconds and fires_at(firing, second):
            found.append((firing, jobs))
    return found


def savings(loads: SecondLoads, firings: Mapping[Firing, int], fires: Fires) -> Iterator[Saving]:
    """For the heaviest schedule of the worst second, for the three heaviest, and so on."""
    worst = loads.worst_seconds(1)
    if not worst:
        return
    heavy = heaviest_at(firings, int(worst[0].at.timestamp()), STEPS[-1])
    for count in dict.fromkeys(min(step, len(heavy)) for step in STEPS if heavy):
        some = heavy[:count]
        yield Saving(
            schedules=count,
            jobs=sum(jobs for _, jobs in some),
            over_minute=loads.peak_without(_spreads(some, fires, MINUTE_S)),
            over_hour=loads.peak_without(_spreads(some, fires, HOUR_S)),
        )


def _spreads(heavy: Sequence[tuple[Firing, int]], fires: Fires, most_s: int) -> Iterator[Spread]:
    for firing, jobs in heavy:
        seconds = fires(firing)
        width = min(most_s, _shortest_pause(seconds))
        yield from (Spread(second, jobs, width) for second in seconds)


def _shortest_pause(seconds: Sequence[int]) -> int:
    return min((later - before for before, later in pairwise(seconds)), default=HOUR_S)
