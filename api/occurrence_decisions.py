"""What was decided about one occurrence of a job, from what ledger and history know. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from api.history_client import KnownJobEvent, KnownOccurrence, KnownRange
from api.stored_definitions import stored_schedule
from ledger.jobs import Job
from schemas import http_explanations as http
from schemas.schedule import Schedule, instant_text, next_fire, previous_fire

_TICK = timedelta(microseconds=1)


class _Definition(NamedTuple):
    """A job's schedule as it was at some time. since: the event that made it so, if the history tells it."""

    job: Job
    schedule: Schedule
    since: KnownJobEvent | None

    def fires_at(self, at: datetime) -> bool:
        return self.after(at - _TICK) == at

    def after(self, at: datetime) -> datetime | None:
        return next_fire(self.schedule, at, job_id=self.job.job_id, created_at=self.job.created_at)

    def before(self, at: datetime) -> datetime | None:
        fire = previous_fire(self.schedule, at, job_id=self.job.job_id, created_at=self.job.created_at)
        return fire if fire is not None and fire >= self.job.created_at else None


def decision_of(
    job: Job, at: datetime, known: KnownOccurrence, run: http.RunWhy | None, now: datetime
) -> http.OccurrenceWhy:
    """The decision about the occurrence at `at`. run: the occurrence's own, if one was made."""

    def answer(decision: http.DecisionKind, detail: str, **fields: Any) -> http.OccurrenceWhy:
        return http.OccurrenceWhy(job_id=job.job_id, at=at, decision=decision, detail=detail, **fields)

    if run is not None and run.state != "skipped":
        return answer("run", f"run {run.run_id} was made for it; {run.summary}", run=run, reason=run.reason)
    if run is not None:
        return answer("skipped", f"its run was skipped: {run.reason}", run=run, reason=run.reason)
    if found := _range_of(job, at, known):
        together = http.SkippedRange(first=found.first, last=found.last, count=found.count)
        return answer("skipped", f"it was skipped: {found.reason}", reason=found.reason, skipped_range=together)
    definition = _definition(job, [event for event in known.job_events if event.at <= at] or known.job_events[:1])
    if why_not := _no_occurrence(definition, at):
        return answer("not_an_occurrence", why_not, before=definition.before(at), after=_after(definition, at))
    if at <= now and (pause := _pause_at(known.job_events, at)):
        still = "is" if job.paused_at == pause.at else "was"
        return answer("skipped", f"its job {still} paused, since {instant_text(pause.at)}", reason="paused")
    if at > now or (job.next_fire_at is not None and job.next_fire_at <= at):
        return answer("not_decided", f"it is not decided yet{_next_decision(job)}")
    return answer("unrecorded", "it should have a decision, and none is known")


def _range_of(job: Job, at: datetime, known: KnownOccurrence) -> KnownRange | None:
    """The skipped range that the occurrence is one of, under the definition of then."""
    for each in known.ranges:
        definition = _definition(job, [event for event in known.job_events if event.version < each.version])
        if definition.fires_at(at):
            return each
    return None


def _definition(job: Job, events: Sequence[KnownJobEvent]) -> _Definition:
    """As the last of these events says; the ledger's when the history knows none. Raises Problem 409."""
    since = events[-1] if events else None
    texts = [event.definition for event in events if event.definition] or [job.definition]
    return _Definition(job, stored_schedule(job.job_id, texts[-1]), since)


def _no_occurrence(definition: _Definition, at: datetime) -> str | None:
    """Why the job does not run at `at` as it was then, or None when it does."""
    job, since = definition.job, definition.since
    if at < job.created_at:
        return f"the job was created only at {instant_text(job.created_at)}"
    if since is not None and since.type == "job_deleted":
        return f"the job was deleted at {instant_text(since.at)}"
    if not definition.fires_at(at):
        return "it is no occurrence of this job's schedule"
    if since is not None and since.cursor is not None and since.type != "job_paused" and since.cursor > at:
        return f"the job's definition of then first counts for {instant_text(since.cursor)}"
    return None


def _after(definition: _Definition, at: datetime) -> datetime | None:
    since = definition.since
    if since is not None and since.type == "job_deleted":
        return None
    after = definition.after(max(at, definition.job.created_at))
    if after is None or since is None or since.cursor is None:
        return after
    return max(after, since.cursor) if since.at <= at else after


def _pause_at(events: Sequence[KnownJobEvent], at: datetime) -> KnownJobEvent | None:
    """The job's pause in which the occurrence passed, if it did in one; the range of it is told only at its end."""
    before = [event for event in events if event.at <= at and event.type != "job_updated"]
    return before[-1] if before and before[-1].type == "job_paused" else None


def _next_decision(job: Job) -> str:
    """What is to be decided before, or what stands in the way."""
    if job.paused_at is not None:
        return f": its job is paused, since {instant_text(job.paused_at)}, and what passes until it goes on is skipped"
    return f"; the next to be is {instant_text(job.next_fire_at)}" if job.next_fire_at else ""
