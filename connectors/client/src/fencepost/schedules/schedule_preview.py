# Generated from schemas/schedule_preview.py by connectors/client/generate_copies.py (make copies): change it there.
"""A schedule seen before it runs: its coming fires, on whose clock they are read, and what is odd about each.

Pure, as schemas/schedule is: the API's preview and the `fencepost next` command are made of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from fencepost.schedules.cron import cron_expression
from fencepost.schedules.errors import InvalidSchedule
from fencepost.schedules.schedule import At, Cron, due_at, fire_mark, next_fire, parse_schedule
from fencepost.schedules.zone_rule import Mark, skipped_reading
from fencepost.schedules.zones import EARLY_S, FAR_S, zone

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ERA_S = range(EARLY_S, FAR_S)
_SECOND = timedelta(seconds=1)
_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?(?P<offset>Z|[+-][0-9]{2}:[0-9]{2})?",
    re.IGNORECASE,
)


class ComingFire(NamedTuple):
    """One fire. scheduled_for and due_at are in UTC; local is scheduled_for on the wall clock of `zone`.

    skipped: of a fire marked `gap`, the wall-clock time (naive) that it was meant for and that does not exist.
    """

    scheduled_for: datetime
    local: datetime
    zone: str
    mark: Mark | None
    skipped: datetime | None
    due_at: datetime


class SchedulePreview:
    """What the JSON form of a schedule (schemas/schedule_json.py) comes to, for a job of that id.

    Raises InvalidSchedule, with the field and the remedy, for everything that cannot be right. Without a job id
    `H` hashes nothing, so the fires are right but for those expressions.
    """

    def __init__(self, form: Mapping[str, Any], *, job_id: UUID | str | None = None) -> None:
        self.schedule = parse_schedule(form, job_id=job_id)
        self.zone = self.schedule.zone if isinstance(self.schedule, Cron) else form.get("zone") or "UTC"
        self._job_id = job_id or ""
        self._run_at = form.get("runAt")

    @property
    def every_hour(self) -> bool:
        """Whether it goes by real hours, so that a reading which occurs twice fires twice (schemas/zone_rule.py)."""
        cron = self.schedule
        return isinstance(cron, Cron) and cron_expression(cron.expr, str(self._job_id)).every_hour

    def fires(self, after: datetime, count: int) -> Iterator[datetime]:
        """The first `count` nominal fires strictly after `after`, or as many as there are, in UTC.

        A schedule that counts from its job's creation counts from `after`.
        """
        return islice(self._all_fires(after), count)

    def coming(self, after: datetime, count: int) -> Iterator[ComingFire]:
        """The same fires, each with everything there is to see."""
        return map(self._seen, self.fires(after, count))

    def _all_fires(self, after: datetime) -> Iterator[datetime]:
        fire = next_fire(self.schedule, after, job_id=self._job_id, created_at=after)
        while fire is not None:
            yield fire
            fire = next_fire(self.schedule, fire, job_id=self._job_id, created_at=after)

    def _seen(self, fire: datetime) -> ComingFire:
        local = fire.astimezone(zone(self.zone))
        mark = self._mark(fire, local)
        skipped = self._skipped(fire) if mark == "gap" else None
        return ComingFire(fire, local, self.zone, mark, skipped, due_at(self.schedule, fire, job_id=self._job_id))

    def _mark(self, fire: datetime, local: datetime) -> Mark | None:
        if not isinstance(self.schedule, At) or self.zone == "UTC":
            return fire_mark(self.schedule, fire, job_id=self._job_id)
        if self._skipped(fire) != local.replace(tzinfo=None):
            return "gap"
        twice = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
        return "fold" if twice else None

    def _skipped(self, fire: datetime) -> datetime:
        """The wall-clock time that was asked for."""
        if isinstance(self.schedule, Cron):
            cron = cron_expression(self.schedule.expr, str(self._job_id))
            reading = skipped_reading(cron, self.zone, (fire - _EPOCH) // _SECOND)
            return datetime(1970, 1, 1) + timedelta(seconds=reading)
        return datetime.fromisoformat(str(self._run_at))


def instant_from(text: str) -> datetime:
    """The UTC instant of an RFC 3339 text. Raises InvalidSchedule with field `from`."""
    found = _RFC_3339.fullmatch(text)
    if not found:
        raise InvalidSchedule("from", f"{text[:64]!r} is no instant", "write 2026-01-31T09:00:00Z")
    if not found["offset"]:
        raise InvalidSchedule(
            "from", f"{text!r} is a time without a zone", "end it in Z or in an offset such as +01:00"
        )
    try:
        instant = datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidSchedule("from", f"{text!r} is not in the calendar") from None
    if (instant - _EPOCH) // _SECOND not in _ERA_S:
        raise InvalidSchedule("from", "must lie in the years 1900 to 2499, as all fires do")
    return instant
