"""How many times a schedule fires between two instants, without walking through its fires.

Exactly what stepping with next_fire would count, for the price of a look at each change of the zone's clock and each
year in between: a job that was down for a month is caught up with as fast as one that was down for an hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from schemas.cron import CronExpression, cron_expression
from schemas.schedule_kinds import Cron, Every, Recurring
from schemas.zone_rule import local_reading
from schemas.zones import FAR_S, NEAR_S, Timeline, timeline

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_DAY_S = 86_400
_TICK = timedelta(microseconds=1)


def count_fires(
    schedule: Recurring, after: datetime, until: datetime, *, job_id: UUID | str, created_at: datetime
) -> int:
    """The number of nominal fires in (after, until]. Raises UnknownZone for a zone that this tzdata lacks."""
    if schedule.start_at is not None:
        after = max(after, schedule.start_at - _TICK)
    if schedule.end_at is not None:
        until = min(until, schedule.end_at - _TICK)
    if until <= after:
        return 0
    if isinstance(schedule, Every):
        return _count_every(schedule, after, until, created_at)
    assert isinstance(schedule, Cron)
    return _count_cron(schedule, after, until, job_id)


def _count_every(schedule: Every, after: datetime, until: datetime, created_at: datetime) -> int:
    every, anchor = timedelta(seconds=schedule.every_seconds), schedule.anchor or created_at
    earliest = after if schedule.anchor is not None else created_at

    def between(start: datetime, end: datetime) -> int:
        start = max(start, earliest)
        return max(0, (end - anchor) // every - (start - anchor) // every)

    excluded = 0
    for day in schedule.exclude_dates:
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        start, end = max(after, midnight - _TICK), min(until, midnight + timedelta(days=1) - _TICK)
        excluded += between(start, end) if start < end else 0
    return between(after, until) - excluded


def _count_cron(schedule: Cron, after: datetime, until: datetime, job_id: UUID | str) -> int:
    cron = cron_expression(schedule.expr, str(job_id))
    start, end = (after - _EPOCH) // _SECOND, (until - _EPOCH) // _SECOND
    line = timeline(schedule.zone, NEAR_S if end < NEAR_S else FAR_S)
    count = _count_interval_like if cron.every_hour else _count_clock_like
    excluded = 0
    for day in schedule.exclude_dates:
        for first, last in _instants_of(line, day, start, end):
            excluded += count(cron, line, first - 1, last)
    return count(cron, line, start, end) - excluded


def _count_interval_like(cron: CronExpression, line: Timeline, after: int, until: int) -> int:
    """In each stretch of constant offset, the matching readings."""
    count = 0
    for i, first, last in _stretches(line, after + 1, until):
        count += _matching(cron, first - 1 + line.offsets[i], last + line.offsets[i])
    return count


def _count_clock_like(cron: CronExpression, line: Timeline, after: int, until: int) -> int:
    """The readings that the clock shows for the first time, or jumps over, all in one gap as one."""
    count = _matching(cron, _shown(line, after), _shown(line, until))
    for i in range(line.stretch(after) + 1, line.stretch(until) + 1):
        together = _matching(cron, line.peaks[i], line.starts[i] + line.offsets[i])
        count -= max(0, together - 1)
    return count


def _shown(line: Timeline, instant: int) -> int:
    """The latest reading that the wall clock has shown by then."""
    i = line.stretch(instant)
    return max(instant + line.offsets[i], line.peaks[i])


def _matching(cron: CronExpression, after: int, until: int) -> int:
    """How many of the readings in (after, until] are whole minutes that match."""
    return cron.count(after // 60 + 1, until // 60)


def _stretches(line: Timeline, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """(index, first, last) of the parts of [first, last] with a constant offset."""
    for i in range(line.stretch(first), line.stretch(last) + 1):
        end = line.starts[i + 1] - 1 if i + 1 < len(line.starts) else last
        yield i, max(first, line.starts[i]), min(last, end)


def _instants_of(line: Timeline, day: date, after: int, until: int) -> Iterator[tuple[int, int]]:
    """The instants in (after, until] that are on a local date: two spans when the clock is put back over midnight."""
    midnight = local_reading(datetime(day.year, day.month, day.day))
    if until < midnight - 2 * _DAY_S or after > midnight + 3 * _DAY_S:
        return
    for i, first, last in _stretches(line, after + 1, until):
        dawn = midnight - line.offsets[i]
        on_day = max(first, dawn), min(last, dawn + _DAY_S - 1)
        if on_day[0] <= on_day[1]:
            yield on_day
