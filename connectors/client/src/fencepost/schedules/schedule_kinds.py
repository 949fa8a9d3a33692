# Generated from schemas/schedule_kinds.py by connectors/client/generate_copies.py (make copies): change it there.
"""The four kinds of schedule, as checked values. Build them with fencepost.schedules.schedule.parse_schedule."""

from __future__ import annotations

from datetime import date, datetime

from msgspec import Struct


class Recurring(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """What every repeating schedule may carry.

    start_at, end_at: fires lie in [start_at, end_at). exclude_dates: local dates (of the schedule's zone,
    UTC when it has none) on which nothing fires. jitter_seconds: how much later than its nominal time a run
    may become due.
    """

    start_at: datetime | None = None
    end_at: datetime | None = None
    exclude_dates: tuple[date, ...] = ()
    jitter_seconds: float = 0.0


class Cron(Recurring, frozen=True, omit_defaults=True, tag="cron"):
    """A cron expression read on the wall clock of `zone`."""

    expr: str
    zone: str = "UTC"


class Every(Recurring, frozen=True, omit_defaults=True, tag="every"):
    """Every so many real seconds, counted both ways from `anchor`, or from the job's creation onwards."""

    every_seconds: int
    anchor: datetime | None = None


class At(Struct, frozen=True, tag_field="kind", tag="at"):
    """Once, at that instant."""

    run_at: datetime


class Delay(Struct, frozen=True, tag_field="kind", tag="delay"):
    """Once, so long after the job's creation."""

    delay_seconds: float


Schedule = Cron | Every | At | Delay
