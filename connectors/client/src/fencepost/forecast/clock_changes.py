"""The nights of a horizon on which clocks are changed, and what they do to the schedules that go by them.

The rule is that of fencepost/schedules/zone_rule.py: a clock-like schedule (its hours do not cover the day) runs once
for each of its local minutes; an interval-like one goes by real time, which a change of the clock does not touch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from fencepost.forecast.firings import Firing
from fencepost.schedules.cron import CronExpression
from fencepost.schedules.schedule_kinds import Cron
from fencepost.schedules.zones import timeline

MINUTE_S = 60


class ClockChange(Struct, rename="camel", frozen=True, kw_only=True):
    """A zone's clock is set by shift_seconds, from local time to local time, at an instant.

    moved: runs whose minute does not exist that night, and that come when the gap ends. merged: how many fewer runs
    there are, since several minutes come together there. once: runs whose minute is read twice, and that take the
    first. jobs: those that go by this clock, and are so much earlier (or later) in UTC from then on.
    """

    zone: str
    at: datetime
    shift_seconds: int
    local_from: datetime
    local_to: datetime
    moved: int
    merged: int
    once: int
    jobs: int


def clock_changes(firings: Mapping[Firing, int], start: int, end: int) -> list[ClockChange]:
    """Those in (start, end] of every zone that a schedule is read in. firings: their jobs."""
    by_zone: defaultdict[str, list[tuple[CronExpression, int]]] = defaultdict(list)
    for firing, jobs in firings.items():
        if firing.cron is not None and isinstance(firing.schedule, Cron) and not firing.cron.every_hour:
            by_zone[firing.schedule.zone].append((firing.cron, jobs))
    found = (change for zone, crons in by_zone.items() for change in _changes_of(zone, crons, start, end))
    return sorted(found, key=lambda change: (change.at, change.zone))


def _changes_of(zone: str, crons: list[tuple[CronExpression, int]], start: int, end: int) -> Iterator[ClockChange]:
    line = timeline(zone)
    for i in range(line.stretch(start) + 1, line.stretch(end) + 1):
        at, before, after = line.starts[i], line.offsets[i - 1], line.offsets[i]
        low, high = sorted((at + before, at + after))
        moved = merged = once = 0
        for cron, jobs in crons:
            minutes = cron.count(-(-low // MINUTE_S), -(-high // MINUTE_S) - 1)
            if after < before:
                once += jobs * minutes
            elif minutes:
                at_the_end = cron.next_minute(-(-high // MINUTE_S)) == high / MINUTE_S
                moved += jobs
                merged += jobs * (minutes - 1 + at_the_end)
        yield ClockChange(
            zone=zone,
            at=datetime.fromtimestamp(at, UTC),
            shift_seconds=after - before,
            local_from=_reading(at + before),
            local_to=_reading(at + after),
            moved=moved,
            merged=merged,
            once=once,
            jobs=sum(jobs for _, jobs in crons),
        )


def _reading(second: int) -> datetime:
    """A wall clock's time, which has no zone."""
    return datetime(1970, 1, 1) + timedelta(seconds=second)
