"""How many runs of a set become due in each minute of the horizon. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct

from fencepost.schedules.schedule import Recurring, Schedule, due_at

MINUTE_S = 60


class Load(Struct, rename="camel", frozen=True, kw_only=True):
    """peak: the most runs that become due in one minute; peak_at: the first such. by_hour: of the day, in UTC."""

    runs: int
    peak: int
    peak_at: datetime | None
    by_hour: list[int]


class Minutes(NamedTuple):
    """Runs by minute since 1970."""

    runs: Counter[int]

    def add(self, schedule: Schedule, occurrences: Iterable[datetime], start: datetime, job_id: UUID) -> None:
        """Count them where they become due: jitter moves them, and what lies before the start is due at once."""
        floor = int(start.timestamp())
        if isinstance(schedule, Recurring) and schedule.jitter_seconds:
            occurrences = (due_at(schedule, each, job_id=job_id) for each in occurrences)
        self.runs.update(max(int(each.timestamp()), floor) // MINUTE_S for each in occurrences)

    def load(self) -> Load:
        by_hour = [0] * 24
        for minute, runs in self.runs.items():
            by_hour[minute // 60 % 24] += runs
        peak = max(self.runs.values(), default=0)
        first = min((minute for minute, runs in self.runs.items() if runs == peak), default=None)
        peak_at = None if first is None else datetime.fromtimestamp(first * MINUTE_S, UTC)
        return Load(runs=self.runs.total(), peak=peak, peak_at=peak_at, by_hour=by_hour)
