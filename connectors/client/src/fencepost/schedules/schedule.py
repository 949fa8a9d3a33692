# Generated from schemas/schedule.py by connectors/client/generate_copies.py (make copies): change it there.
"""When jobs fire: the seam of every rule of time.

Pure: a fire depends on the schedule, the job's id and creation, and the pinned tzdata, never on a clock.
Instants come in aware and go out in UTC. A fire is nominal (`scheduled_for`); due_at adds the jitter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from typing import Any
from uuid import UUID

from fencepost.schedules.cron import cron_expression
from fencepost.schedules.errors import InvalidSchedule
from fencepost.schedules.schedule_json import instant_text, read_schedule, to_json
from fencepost.schedules.schedule_kinds import At, Cron, Delay, Every, Recurring, Schedule
from fencepost.schedules.zone_rule import Mark, first_instant, local_reading, mark, next_instant, previous_instant
from fencepost.schedules.zones import FAR_S, zone

__all__ = [
    "At",
    "Cron",
    "Delay",
    "Every",
    "Mark",
    "Recurring",
    "Schedule",
    "due_at",
    "fire_mark",
    "fires_between",
    "first_fire",
    "instant_text",
    "next_fire",
    "parse_schedule",
    "previous_fire",
    "to_json",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_END = _EPOCH + timedelta(seconds=FAR_S)
_TICK = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)


def parse_schedule(obj: Mapping[str, Any], *, job_id: UUID | str | None) -> Schedule:
    """The checked schedule of a JSON form (schemas/schedule_json.py).

    Raises InvalidSchedule, with the field and the remedy, for everything that cannot be right, including a
    window from startAt to endAt in which nothing fires. What depends on the creation first_fire tells: None
    is never.
    """
    schedule = read_schedule(obj, job_id)
    if isinstance(schedule, Cron) and schedule.start_at and schedule.end_at:
        start = schedule.start_at - _TICK
        if next_fire(schedule, start, job_id=job_id or "", created_at=start) is None:
            raise InvalidSchedule("endAt", "the schedule can never fire between startAt and endAt")
    return schedule


def next_fire(schedule: Schedule, after: datetime, *, job_id: UUID | str, created_at: datetime) -> datetime | None:
    """The first nominal fire strictly after `after`; None when there is none before the year 2500.

    Raises ValueError for a naive datetime and UnknownZone for a zone that this tzdata lacks.
    """
    after = _utc(after)
    if not isinstance(schedule, Recurring):
        once = _once(schedule, created_at)
        return once if once > after else None
    if schedule.start_at is not None and after < schedule.start_at:
        after = schedule.start_at - _TICK
    fire = _next(schedule, after, job_id, created_at)
    while fire is not None and schedule.exclude_dates and _excluded(schedule, fire):
        midnight = _local_midnight(schedule, _local_date(schedule, fire) + timedelta(days=1))
        fire = _next(schedule, max(fire, midnight - _TICK), job_id, created_at)
    if fire is None or (schedule.end_at is not None and fire >= schedule.end_at):
        return None
    return fire


def previous_fire(schedule: Schedule, before: datetime, *, job_id: UUID | str, created_at: datetime) -> datetime | None:
    """The last nominal fire strictly before `before`, so that `catchUp: latest` need not walk all of them.

    None when there is none. Raises as next_fire does.
    """
    before = _utc(before)
    if not isinstance(schedule, Recurring):
        once = _once(schedule, created_at)
        return once if once < before else None
    if schedule.end_at is not None and before > schedule.end_at:
        before = schedule.end_at
    fire = _previous(schedule, before, job_id, created_at)
    while fire is not None and schedule.exclude_dates and _excluded(schedule, fire):
        midnight = _local_midnight(schedule, _local_date(schedule, fire))
        fire = _previous(schedule, min(fire, midnight), job_id, created_at)
    if fire is None or (schedule.start_at is not None and fire < schedule.start_at):
        return None
    return fire


def first_fire(schedule: Schedule, *, job_id: UUID | str, created_at: datetime) -> datetime | None:
    """A new job's first fire: a one-off's instant even if it has passed, else the first after its creation.

    None means that it can never fire, which a create should refuse.
    """
    if not isinstance(schedule, Recurring):
        return _once(schedule, created_at)
    return next_fire(schedule, created_at, job_id=job_id, created_at=created_at)


def fires_between(
    schedule: Schedule, start: datetime, end: datetime, *, job_id: UUID | str, created_at: datetime
) -> Iterator[datetime]:
    """The nominal fires in (start, end], in order, lazily: what a cursor moved from start to end decides."""
    end = _utc(end)
    fire = next_fire(schedule, start, job_id=job_id, created_at=created_at)
    while fire is not None and fire <= end:
        yield fire
        fire = next_fire(schedule, fire, job_id=job_id, created_at=created_at)


def due_at(schedule: Schedule, scheduled_for: datetime, *, job_id: UUID | str) -> datetime:
    """When the run becomes due: its nominal time and a jitter in [0, jitter_seconds).

    The jitter is a hash of job and nominal time, so every node and every retry of the decision finds the
    same.
    """
    nominal = _utc(scheduled_for)
    if not isinstance(schedule, Recurring) or not schedule.jitter_seconds:
        return nominal
    name = f"{job_id} {instant_text(nominal)}".encode()
    share = int.from_bytes(blake2b(name, digest_size=8).digest()) / (1 << 64)
    return nominal + timedelta(microseconds=int(share * schedule.jitter_seconds * 1_000_000))


def fire_mark(schedule: Schedule, fire: datetime, *, job_id: UUID | str) -> Mark | None:
    """Whether a fire is odd: `gap`, moved to the end of a gap; `fold`, its local reading occurs twice."""
    if not isinstance(schedule, Cron):
        return None
    return mark(cron_expression(schedule.expr, str(job_id)), schedule.zone, (fire - _EPOCH) // _SECOND)


def _once(schedule: At | Delay, created_at: datetime) -> datetime:
    if isinstance(schedule, At):
        return _utc(schedule.run_at)
    return _utc(created_at) + timedelta(seconds=schedule.delay_seconds)


def _next(schedule: Recurring, after: datetime, job_id: UUID | str, created_at: datetime) -> datetime | None:
    if isinstance(schedule, Cron):
        cron = cron_expression(schedule.expr, str(job_id))
        instant = next_instant(cron, schedule.zone, (after - _EPOCH) // _SECOND)
        return None if instant is None else datetime.fromtimestamp(instant, UTC)
    assert isinstance(schedule, Every)
    every, anchor = timedelta(seconds=schedule.every_seconds), schedule.anchor
    if anchor is None:
        anchor = _utc(created_at)
        after = max(after, anchor)
    if after >= _END - every:
        return None
    return anchor + ((after - anchor) // every + 1) * every


def _previous(schedule: Recurring, before: datetime, job_id: UUID | str, created_at: datetime) -> datetime | None:
    if isinstance(schedule, Cron):
        cron = cron_expression(schedule.expr, str(job_id))
        instant = previous_instant(cron, schedule.zone, (before - _EPOCH - _TICK) // _SECOND)
        return None if instant is None else datetime.fromtimestamp(instant, UTC)
    assert isinstance(schedule, Every)
    every, anchor = timedelta(seconds=schedule.every_seconds), schedule.anchor or _utc(created_at)
    if before - _EPOCH < every:
        return None
    fire = anchor + ((before - anchor - _TICK) // every) * every
    return fire if schedule.anchor is not None or fire > anchor else None


def _excluded(schedule: Recurring, fire: datetime) -> bool:
    return _local_date(schedule, fire) in schedule.exclude_dates


def _local_date(schedule: Recurring, instant: datetime) -> date:
    return instant.astimezone(zone(_zone_name(schedule))).date()


def _local_midnight(schedule: Recurring, day: date) -> datetime:
    """The first instant of a local date."""
    reading = local_reading(datetime(day.year, day.month, day.day))
    return datetime.fromtimestamp(first_instant(_zone_name(schedule), reading), UTC)


def _zone_name(schedule: Recurring) -> str:
    return schedule.zone if isinstance(schedule, Cron) else "UTC"


def _utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError(f"{instant} has no zone: instants are aware")
    return instant.astimezone(UTC)
