"""What becomes of a job's pending occurrence when tzdata is another one: it stays the same, and its instant moves.

An occurrence of a clock-like cron is its local minute: one that has fired does not fire again though the new rules have
it come later still, and one that is pending fires though by the new rules it has passed. Interval-like crons go by real
time: the next occurrence is the first after the last one that has fired. Source: ARCHITECTURE, Time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from msgspec.structs import replace

from schemas.cron import cron_expression
from schemas.schedule import Cron, next_fire, previous_fire
from schemas.zone_rule import carried_instant
from schemas.zones import KeptZone

_TICK = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
# No change of rules moves an occurrence further. What tzdata corrects in the past makes nothing fire.
_FURTHEST = timedelta(days=1)


def carry_over(
    schedule: Cron,
    pending: datetime,
    former: KeptZone | None,
    *,
    taken: bool,
    edited: bool,
    job_id: UUID,
    created_at: datetime,
) -> datetime | None:
    """The occurrence that is pending by today's rules, given the one that was by those of `former`; it may have passed.

    former: the schedule's zone by the rules that `pending` was computed with, None when nobody knows them any more. The
    fire that is nearest is taken then. taken: whether the run of `pending` was started or cancelled, so that the
    occurrence has had its decision and the one after it is wanted. edited: whether its schedule is not the one that the
    job was created with. None when there is no occurrence left.
    """

    def after(instant: datetime) -> datetime | None:
        return next_fire(schedule, instant, job_id=job_id, created_at=created_at)

    if former is None:
        nearest = _nearest(schedule, pending, job_id, created_at)
        return after(nearest) if taken and nearest else nearest
    before = replace(schedule, zone=former)
    last = pending if taken else previous_fire(before, pending, job_id=job_id, created_at=created_at)
    decided = max(last or created_at, created_at, pending - _FURTHEST)
    cron = cron_expression(schedule.expr, str(job_id))
    instant = carried_instant(cron, former, schedule.zone, (decided - _EPOCH) // _SECOND)
    # The window and the excluded dates of the schedule hold as ever.
    fire = None if instant is None else after(datetime.fromtimestamp(instant, UTC) - _TICK)
    if not edited and (last is None or last <= created_at):
        # Nothing has been decided yet, so what the new rules put between the creation and the fire comes too.
        return min((each for each in (fire, after(created_at)) if each), default=None)
    return fire


def _nearest(schedule: Cron, pending: datetime, job_id: UUID, created_at: datetime) -> datetime | None:
    following = next_fire(schedule, pending - _TICK, job_id=job_id, created_at=created_at)
    previous = previous_fire(schedule, pending, job_id=job_id, created_at=created_at)
    if previous is None or pending - previous > _FURTHEST:
        return following
    return previous if following is None or pending - previous < following - pending else following
