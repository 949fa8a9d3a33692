"""The set of schedules that a forecast is made of: how many jobs of each queue have each firing, and the one-offs.

Its memory grows with the number of distinct firings, not with that of the jobs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

import msgspec

from fencepost.forecast.firings import Firing, firing_of, first_second, from_cursor
from fencepost.ids import idempotent_id
from fencepost.schedules.cron_fields import uses_hash
from fencepost.schedules.errors import InvalidSchedule
from fencepost.schedules.schedule import Recurring, Schedule, due_at, first_fire, parse_schedule
from fencepost.schedules.schedule_kinds import Cron, Every

MOST_REFUSED = 10


class ScheduledJob(NamedTuple):
    """schedule: its JSON text. cursor: the pending occurrence, of a live job; None: it is made when the horizon starts.

    copies: so many jobs like it, each of an id of its own.
    """

    job_id: str
    queue: str
    schedule: bytes
    created_at: datetime
    cursor: datetime | None = None
    copies: int = 1


class ScheduleSet:
    """start, end: whole seconds; occurrences in (start, end] count, and what is overdue at start is due then."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self.start, self.end = start, end
        self.jobs = self.overdue = self.refused = 0
        self.reasons: list[str] = []
        self.firings: defaultdict[str, Counter[Firing]] = defaultdict(Counter)
        self.one_offs: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._first: dict[Firing, int | None] = {}

    def add(self, job: ScheduledJob) -> None:
        """Take a job in. Raises InvalidSchedule, or UnknownZone, with nothing taken in."""
        schedule = _parsed(job.schedule)
        if job.copies > 1 and _is_own(schedule):
            for copy in range(job.copies):
                own_id = str(idempotent_id(job.job_id, str(copy)))
                self._add(job._replace(job_id=own_id, copies=1), schedule)
        else:
            self._add(job, schedule)

    def refuse(self, reason: str) -> None:
        """Remember that something could not be taken in."""
        self.refused += 1
        if len(self.reasons) < MOST_REFUSED:
            self.reasons.append(reason)

    def distinct(self) -> Counter[Firing]:
        """The jobs of every firing, over all queues."""
        total: Counter[Firing] = Counter()
        for firings in self.firings.values():
            total.update(firings)
        return total

    def queues(self) -> list[str]:
        return sorted(self.firings.keys() | self.one_offs.keys())

    def _add(self, job: ScheduledJob, schedule: Schedule) -> None:
        cursor = job.cursor
        if cursor is None and not isinstance(schedule, Recurring):
            cursor = first_fire(schedule, job_id=job.job_id, created_at=job.created_at)
        self.jobs += job.copies
        if cursor is not None and cursor <= self.start:
            self._add_overdue(job, schedule, cursor)
        if isinstance(schedule, Cron | Every):
            self._add_recurring(job, schedule, cursor)
        elif cursor is not None and self.start < cursor <= self.end:
            self.one_offs[job.queue][int(cursor.timestamp())] += job.copies

    def _add_overdue(self, job: ScheduledJob, schedule: Schedule, cursor: datetime) -> None:
        """Due now, or when its jitter says."""
        due = max(self.start, due_at(schedule, cursor, job_id=job.job_id))
        self.overdue += job.copies if due == self.start else 0
        if due <= self.end:
            self.one_offs[job.queue][int(due.timestamp())] += job.copies

    def _add_recurring(self, job: ScheduledJob, schedule: Cron | Every, cursor: datetime | None) -> None:
        firing = firing_of(schedule, job.job_id, job.created_at, self.start)
        if cursor is not None and cursor > self.start:
            first = self._first_second(firing)
            if first is None or int(cursor.timestamp()) > first:
                firing = from_cursor(firing, cursor)
        self.firings[job.queue][firing] += job.copies

    def _first_second(self, firing: Firing) -> int | None:
        if firing.job_id:  # nobody else will ask
            return first_second(firing)
        if firing not in self._first:
            self._first[firing] = first_second(firing)
        return self._first[firing]


@lru_cache(maxsize=65_536)
def _parsed(schedule: bytes) -> Schedule:
    """Checked once a text: whether H can fire is the same for every job."""
    try:
        form = msgspec.json.decode(schedule)
    except msgspec.DecodeError as error:
        raise InvalidSchedule("schedule", f"is no JSON: {error}") from error
    return parse_schedule(form, job_id=None)


def _is_own(schedule: Schedule) -> bool:
    """Whether jobs of this one schedule fire at times of their own."""
    if not isinstance(schedule, Recurring):
        return False
    return bool(schedule.jitter_seconds) or (isinstance(schedule, Cron) and uses_hash(schedule.expr))
