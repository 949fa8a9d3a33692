"""A forecast: the load of a set of schedules over a horizon, exact to the second. Pure.

Queues are counted one after the other, and the fires of a firing are kept while there is room, so that memory stays
bounded: two numbers a second of the horizon, one queue's seconds, and at most MOST_KEPT fires.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from fencepost.forecast.clock_changes import ClockChange, clock_changes
from fencepost.forecast.firings import Firing, fire_seconds
from fencepost.forecast.schedule_set import ScheduleSet
from fencepost.forecast.second_loads import Busy, SecondLoads
from fencepost.forecast.slots import QueueSlots, queue_slots
from fencepost.forecast.spreading import Heavy, Saving, heaviest_at, savings

WORST = 5
HEAVIEST = 3
MOST_KEPT = 4_000_000
MOST_OVER = 100


class WorstSecond(Struct, frozen=True):
    """heaviest: the schedules of it that most jobs have."""

    at: datetime
    runs: int
    heaviest: list[Heavy]


class OverLimit(Struct, rename="camel", frozen=True, kw_only=True):
    """seconds: how many have more than `per_second` runs; first: the first of them.

    crowded: those of them in which jobs that are added fire; first_crowded: the first of these.
    """

    per_second: int
    seconds: int
    first: list[Busy]
    crowded: int = 0
    first_crowded: list[Busy] = []


class Forecast(Struct, rename="camel", frozen=True, kw_only=True):
    """start, end: the occurrences in (start, end]. jobs: those taken in; distinct: how many schedules they have.

    overdue: due at start already, and counted there. refused: schedules that cannot be right, with the first reasons.
    """

    start: datetime
    end: datetime
    jobs: int
    distinct: int
    overdue: int
    refused: int
    reasons: list[str]
    runs: int
    per_second: float
    worst_seconds: list[WorstSecond]
    worst_minutes: list[Busy]
    by_hour: list[int]
    clock_changes: list[ClockChange]
    queues: list[QueueSlots]
    savings: list[Saving]
    over_limit: OverLimit | None


def make_forecast(
    found: ScheduleSet,
    *,
    observed: Mapping[str, float],
    usual_s: float = 1.0,
    limit: int | None = None,
    added: ScheduleSet | None = None,
    on_queue: Callable[[], object] = lambda: None,
) -> Forecast:
    """observed: how long a run of a queue takes, in seconds; usual_s: of one that nobody has observed.

    limit: how many runs a second are not too many. added: the part of `found` that is not there yet. on_queue: called
    after each queue, for large sets.
    """
    start, end = int(found.start.timestamp()), int(found.end.timestamp())
    fires, loads, queues = FireSeconds(end), SecondLoads(start, end), []
    for queue in found.queues():
        runs = _runs_of(found, queue, fires)
        loads.add(runs)
        seconds = observed.get(queue, usual_s)
        queues.append(
            queue_slots(queue, runs, seconds_per_run=seconds, observed=queue in observed, horizon_s=end - start)
        )
        on_queue()
    firings = found.distinct()
    return Forecast(
        start=found.start,
        end=found.end,
        jobs=found.jobs,
        distinct=len(firings),
        overdue=found.overdue,
        refused=found.refused,
        reasons=found.reasons,
        runs=loads.total(),
        per_second=loads.total() / (end - start),
        worst_seconds=[_worst(busy, firings) for busy in loads.worst_seconds(WORST)],
        worst_minutes=loads.worst_minutes(WORST),
        by_hour=loads.by_hour(),
        clock_changes=clock_changes(firings, start, end),
        queues=queues,
        savings=list(savings(loads, firings, fires)),
        over_limit=None if limit is None else _over(loads, limit, _runs_added(added, fires)),
    )


class FireSeconds:
    """The seconds of firings, remembered while there is room: the same firing is asked for by many queues."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._kept: dict[Firing, array[int]] = {}
        self._size = 0

    def __call__(self, firing: Firing) -> Sequence[int]:
        kept = self._kept.get(firing)
        if kept is None:
            kept = fire_seconds(firing, self._end)
            if not firing.job_id:
                self._keep(firing, kept)
        return kept

    def _keep(self, firing: Firing, seconds: array[int]) -> None:
        if self._size + len(seconds) > MOST_KEPT:
            self._kept.clear()
            self._size = 0
        self._kept[firing] = seconds
        self._size += len(seconds)


def _runs_of(found: ScheduleSet, queue: str, fires: FireSeconds) -> Counter[int]:
    """A queue's runs by second."""
    runs = Counter(found.one_offs.get(queue, {}))
    for firing, jobs in found.firings.get(queue, {}).items():
        for second in fires(firing):
            runs[second] += jobs
    return runs


def _worst(busy: Busy, firings: Mapping[Firing, int]) -> WorstSecond:
    heavy = heaviest_at(firings, int(busy.at.timestamp()), HEAVIEST)
    return WorstSecond(busy.at, busy.runs, [Heavy(firing.label, jobs) for firing, jobs in heavy])


def _runs_added(added: ScheduleSet | None, fires: FireSeconds) -> Counter[int]:
    runs: Counter[int] = Counter()
    if added is not None:
        for queue in added.queues():
            runs.update(_runs_of(added, queue, fires))
    return runs


def _over(loads: SecondLoads, limit: int, added: Counter[int]) -> OverLimit:
    over = list(loads.over(limit))
    crowded = [busy for busy in over if added[int(busy.at.timestamp())]]
    return OverLimit(
        per_second=limit,
        seconds=len(over),
        first=over[:MOST_OVER],
        crowded=len(crowded),
        first_crowded=crowded[:MOST_OVER],
    )
