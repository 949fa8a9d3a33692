"""When a job fires over a horizon, and what a change of it does to these occurrences. Pure.

The rules are the server's own (fencepost/schedules): exclusions, startAt and endAt, the nights on which clocks change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from itertools import zip_longest
from typing import NamedTuple
from uuid import UUID

from fencepost.schedules.schedule import At, Schedule, fires_between
from fencepost.schedules.zones import zone


class Moved(NamedTuple):
    before: datetime
    after: datetime


class OccurrenceChanges(NamedTuple):
    """unchanged: at the same instant before and after. Each in the order of time."""

    unchanged: list[datetime]
    added: list[datetime]
    removed: list[datetime]
    moved: list[Moved]


def coming_occurrences(
    schedule: Schedule, cursor: datetime | None, start: datetime, end: datetime, *, job_id: UUID, created_at: datetime
) -> list[datetime]:
    """Those of a job in (start, end] whose pending occurrence is `cursor`; None: it has none left."""
    if cursor is None:
        return []
    pending = [cursor] if start < cursor <= end else []
    return [*pending, *fires_between(schedule, max(cursor, start), end, job_id=job_id, created_at=created_at)]


def created_occurrences(schedule: Schedule, start: datetime, end: datetime, *, job_id: UUID) -> list[datetime]:
    """Those of a job that is created at start. A single run whose time has passed is made at once."""
    if isinstance(schedule, At):
        return [schedule.run_at] if schedule.run_at <= end else []
    return list(fires_between(schedule, start, end, job_id=job_id, created_at=start))


def edited_occurrences(
    schedule: Schedule, start: datetime, end: datetime, *, job_id: UUID, created_at: datetime
) -> list[datetime]:
    """Those of a job that gets the schedule at start: it never fires for the past."""
    return list(fires_between(schedule, start, end, job_id=job_id, created_at=created_at))


def changes(before: Sequence[datetime], after: Sequence[datetime], zone_name: str) -> OccurrenceChanges:
    """What becomes of the occurrences before, when they are those after from now on.

    What is only before is paired with what is only after, day by day on the zone's clock and in the order of time: a
    pair is an occurrence that moved. The rest was removed or added.
    """
    old, new = set(before), set(after)
    leaving, coming = _by_day(sorted(old - new), zone_name), _by_day(sorted(new - old), zone_name)
    result = OccurrenceChanges(sorted(old & new), [], [], [])
    for day in sorted(leaving.keys() | coming.keys()):
        for gone, come in zip_longest(leaving[day], coming[day]):
            if gone is None:
                result.added.append(come)
            elif come is None:
                result.removed.append(gone)
            else:
                result.moved.append(Moved(gone, come))
    return result


def _by_day(instants: Iterable[datetime], zone_name: str) -> defaultdict[date, list[datetime]]:
    days: defaultdict[date, list[datetime]] = defaultdict(list)
    clock = zone(zone_name)
    for instant in instants:
        days[instant.astimezone(clock).date()].append(instant)
    return days
