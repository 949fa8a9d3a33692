"""Catching up: which occurrences of a job that have passed make a run after all, and which are skipped, and why.

Pure. An occurrence is *late* when it was due more than GRACE_S ago; a job is *behind* when its pending occurrence is
late and another one has come since. What has come meanwhile is not walked through but counted: the work of one call is
bounded by what it keeps and by the jitter, not by how long nobody owned the job.

Of what was missed: `latest` keeps the last occurrence, `all` the last `limit` ones, `none` nothing. A deadline for the
start counts from each occurrence's own due time (with its jitter, inclusive) and takes away from what is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from schemas.commands import CatchUp as Policy
from schemas.fire_counts import count_fires
from schemas.schedule import Recurring, Schedule, due_at, next_fire, previous_fire

GRACE_S = 5.0
LATEST, NONE, LIMIT, DEADLINE = "catch-up latest", "catch-up none", "catch-up limit", "start deadline"

_GRACE = timedelta(seconds=GRACE_S)
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """Occurrences from first to last, both included, that make no run."""

    first: datetime
    last: datetime
    count: int
    reason: str


class CatchUp(NamedTuple):
    """What becomes of a job whose pending occurrence has come.

    next_fire: its next pending occurrence, maybe one that has passed, or None. due_at: when that one's run is due.
    cursor_skipped: why the pending occurrence is not to run, or None. skipped: those between the two, in order.
    """

    next_fire: datetime | None
    due_at: datetime | None
    cursor_skipped: str | None = None
    skipped: tuple[SkippedRange, ...] = ()


def catch_up(
    schedule: Schedule,
    policy: Policy,
    cursor: datetime,
    now: datetime,
    created_at: datetime,
    job_id: UUID,
    *,
    limit: int,
    start_deadline_s: float | None = None,
    first_seen_late: bool = False,
    starts_at: datetime | None = None,
) -> CatchUp:
    """Decide the occurrences of a job from its cursor on, which has come, as of `now`.

    limit: how many missed occurrences `all` keeps, at least 1. first_seen_late: whether the pending occurrence was late
    already when the owner learned of it: `none` then skips it though no other one has come. starts_at: when a late
    occurrence that `all` keeps after the pending one could start; `now` unless that is later.
    Raises UnknownZone for a zone that this tzdata lacks.
    """
    starts_at = max(now, starts_at or now)
    case = _Case(schedule, policy, cursor, now, created_at, job_id, limit, start_deadline_s, starts_at)
    return case.solve(first_seen_late)


_Predicate = Callable[[datetime], bool]


@dataclass(frozen=True, slots=True)
class _Case:
    schedule: Schedule
    policy: Policy
    cursor: datetime
    now: datetime
    created_at: datetime
    job_id: UUID
    limit: int
    start_deadline_s: float | None
    starts_at: datetime

    def solve(self, first_seen_late: bool) -> CatchUp:
        following = self.next(self.cursor)
        cursor_is_late = self.is_late(self.cursor)
        if following is None or following > self.now or not cursor_is_late:
            reason = NONE if self.policy == "none" and first_seen_late and cursor_is_late else None
            return self.go_on(following, reason or self.too_late(self.cursor))
        match self.policy:
            case "latest":
                return self.latest(following)
            case "all":
                return self.all(following)
            case "none":
                return self.none(following)

    def latest(self, following: datetime) -> CatchUp:
        last = self.previous(self.now + _TICK)
        assert last is not None
        superseded = self.range(following, last, LATEST)
        if reason := self.too_late(last):
            return self.go_on(self.next(last), LATEST, *superseded, SkippedRange(last, last, 1, reason))
        return self.go_on(last, LATEST, *superseded)

    def all(self, following: datetime) -> CatchUp:
        cursor_reason = self.too_late(self.cursor)
        skipped: tuple[SkippedRange, ...] = ()
        oldest = self.oldest_within_limit()
        if oldest is not None and oldest > self.cursor:
            cursor_reason, skipped = LIMIT, self.range(following, oldest, LIMIT)
            following = oldest
        kept = self.first_in_time(following)
        return self.go_on(kept, cursor_reason, *skipped, *self.range(following, kept, DEADLINE))

    def none(self, following: datetime) -> CatchUp:
        kept: datetime | None = following
        if self.is_late(following):
            kept = self.first_from(self.now - _GRACE - self.jitter, following, self.is_late)
        return self.go_on(kept, NONE, *self.range(following, kept, NONE))

    def oldest_within_limit(self) -> datetime | None:
        """The oldest of the last `limit` occurrences up to now; None when there are not more from the cursor on."""
        assert isinstance(self.schedule, Recurring)
        if 1 + self.count(self.cursor, self.now) <= self.limit:
            return None
        fire: datetime | None = self.now + _TICK
        for _ in range(self.limit):
            assert fire is not None
            fire = self.previous(fire)
        return fire

    def first_in_time(self, following: datetime) -> datetime | None:
        """The first occurrence from `following` on that may still start."""
        if self.start_deadline_s is None or not self.misses_start(following):
            return following
        # What is not late waits for no start but its own.
        last_late = self.now - _GRACE - self.jitter
        bound = self.starts_at - timedelta(seconds=self.start_deadline_s) - self.jitter
        if self.starts_at > self.now:
            bound = min(bound, last_late)
        return self.first_from(bound, following, self.misses_start)

    def misses_start(self, fire: datetime) -> bool:
        """Whether it may not start any more when it could."""
        return self.too_late(fire, self.starts_at if self.is_late(fire) else self.now) is not None

    def first_from(self, bound: datetime, following: datetime, is_out: _Predicate) -> datetime | None:
        """The first occurrence after `following`, not before `bound`, that is not out.

        Only the jitter can make this take more than one step. After `limit` of them the one at hand is taken: it is
        decided on its own, at once.
        """
        fire = self.next(max(following, bound - _TICK))
        for _ in range(self.limit):
            if fire is None or not is_out(fire):
                return fire
            fire = self.next(fire)
        return fire

    def range(self, first: datetime, end: datetime | None, reason: str) -> tuple[SkippedRange, ...]:
        """The occurrences from `first` up to before `end` (None: up to the last one) as a range, unless it is empty."""
        last = self.previous(end if end is not None else self.now + _TICK)
        if last is None or last < first:
            return ()
        return (SkippedRange(first, last, self.count(first - _TICK, last), reason),)

    def go_on(self, fire: datetime | None, cursor_skipped: str | None, *skipped: SkippedRange) -> CatchUp:
        due = None if fire is None else due_at(self.schedule, fire, job_id=self.job_id)
        return CatchUp(fire, due, cursor_skipped, skipped)

    def is_late(self, fire: datetime) -> bool:
        return self.now - due_at(self.schedule, fire, job_id=self.job_id) > _GRACE

    def too_late(self, fire: datetime, at: datetime | None = None) -> str | None:
        """DEADLINE when the occurrence may not start any more at `at`, or now; at its deadline it may."""
        if self.start_deadline_s is None:
            return None
        late = (at or self.now) - due_at(self.schedule, fire, job_id=self.job_id)
        return DEADLINE if late > timedelta(seconds=self.start_deadline_s) else None

    @property
    def jitter(self) -> timedelta:
        assert isinstance(self.schedule, Recurring)
        return timedelta(seconds=self.schedule.jitter_seconds)

    def next(self, after: datetime) -> datetime | None:
        return next_fire(self.schedule, after, job_id=self.job_id, created_at=self.created_at)

    def previous(self, before: datetime) -> datetime | None:
        return previous_fire(self.schedule, before, job_id=self.job_id, created_at=self.created_at)

    def count(self, after: datetime, until: datetime) -> int:
        assert isinstance(self.schedule, Recurring)
        return count_fires(self.schedule, after, until, job_id=self.job_id, created_at=self.created_at)
