"""What fires together: schedules whose fires are the same seconds are one firing, computed once.

A million jobs have a few thousand firings, since most share their expression and zone, and `H` has 60 minutes to choose
from. A schedule with jitter is a firing of its own: each job is spread by its own share. Instants are whole seconds
since 1970; the horizon is (start, end].
"""

from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from fencepost.schedules.cron import CronExpression, cron_expression
from fencepost.schedules.cron_fields import uses_hash
from fencepost.schedules.schedule import due_at, fires_between, next_fire
from fencepost.schedules.schedule_kinds import Cron, Every
from fencepost.schedules.zone_rule import next_instant

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)


class Firing(NamedTuple):
    """Equal ones fire together, strictly after `after`.

    cron: with its H resolved; None of an interval. job_id: of the one job whose firing it is; empty when it is any's.
    """

    schedule: Cron | Every
    cron: CronExpression | None
    after: datetime
    job_id: str

    @property
    def label(self) -> str:
        """As people name it."""
        jitter = f" + {self.schedule.jitter_seconds:g} s of jitter" if self.schedule.jitter_seconds else ""
        if isinstance(self.schedule, Cron):
            return f"{self.schedule.expr}  {self.schedule.zone}{jitter}"
        return f"every {self.schedule.every_seconds} s{jitter}"

    @property
    def is_plain(self) -> bool:
        """Without exceptions, so that its fires are found in integers."""
        schedule = self.schedule
        return not (schedule.start_at or schedule.end_at or schedule.exclude_dates or schedule.jitter_seconds)


def firing_of(schedule: Cron | Every, job_id: str, created_at: datetime, start: datetime) -> Firing:
    """The firing of a job from start on, which is a whole second."""
    if isinstance(schedule, Every):
        anchor, own = schedule.anchor or created_at, bool(schedule.jitter_seconds)
        after = start if schedule.anchor else max(start, created_at)
        anchor = anchor if own else _same_seconds(anchor, schedule.every_seconds)  # jitter hashes the very instant
        return Firing(msgspec.structs.replace(schedule, anchor=anchor), None, after, job_id if own else "")
    firing = Firing(schedule, cron_expression(schedule.expr, job_id), start, "")
    own = bool(schedule.jitter_seconds) or (uses_hash(schedule.expr) and not firing.is_plain)
    return firing._replace(job_id=job_id) if own else firing


def _same_seconds(anchor: datetime, every_s: int) -> datetime:
    """The anchor that stands for all that fire in the same seconds: the first since 1970, its fraction a tick."""
    since = (anchor - _EPOCH) % timedelta(seconds=every_s)
    return _EPOCH + since // SECOND * SECOND + (_TICK if since.microseconds else timedelta(0))


def from_cursor(firing: Firing, cursor: datetime) -> Firing:
    """The firing of a job whose pending occurrence is `cursor`, which may be a later one than the schedule's next."""
    return firing._replace(after=cursor.replace(microsecond=0) - _TICK)


def first_second(firing: Firing) -> int | None:
    """When it fires first, before any jitter; None: never."""
    if firing.cron is not None and firing.is_plain:  # its H is resolved, and whose that was is not known any more
        assert isinstance(firing.schedule, Cron)
        return next_instant(firing.cron, firing.schedule.zone, int((firing.after - _EPOCH) // SECOND))
    fire = next_fire(firing.schedule, firing.after, job_id=firing.job_id, created_at=firing.after)
    return None if fire is None else int(fire.timestamp())


def fire_seconds(firing: Firing, end: int) -> array[int]:
    """The seconds in which it becomes due, up to `end`."""
    if firing.is_plain:
        return _plain_seconds(firing, end)
    job_id, until = firing.job_id, datetime.fromtimestamp(end, UTC)
    fires = fires_between(firing.schedule, firing.after, until, job_id=job_id, created_at=firing.after)
    if firing.schedule.jitter_seconds:
        fires = (due_at(firing.schedule, fire, job_id=job_id) for fire in fires)
    return array("q", (second for fire in fires if (second := int(fire.timestamp())) <= end))


def fires_at(firing: Firing, second: int) -> bool:
    """Whether a firing without jitter has the second."""
    before = max(firing.after, datetime.fromtimestamp(second, UTC) - _TICK)
    return first_second(firing._replace(after=before)) == second


def _plain_seconds(firing: Firing, end: int) -> array[int]:
    schedule = firing.schedule
    if isinstance(schedule, Every):
        first = first_second(firing)
        last = end if schedule.anchor and schedule.anchor.microsecond else end + 1  # a fraction more is past the end
        return array("q", range(first, last, schedule.every_seconds) if first is not None else ())
    assert firing.cron is not None
    cron, zone, found = firing.cron, schedule.zone, array("q")
    second = first_second(firing)
    while second is not None and second <= end:
        found.append(second)
        second = next_instant(cron, zone, second)
    return found
