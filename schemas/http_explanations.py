"""The bodies that explain: why a run waited, what became of an occurrence, and how the installation is.

The rules of schemas/http.py hold here too.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from msgspec import field

from schemas.commands import Instant
from schemas.http import Answer, Request
from schemas.waits import Cause

# -- why a run waited


class WaitInterval(Answer, kw_only=True):
    """A piece of a run's time. late: it is part of the lateness. ms: its length, exact to the microsecond."""

    start: datetime = field(name="from")
    end: datetime = field(name="to")
    ms: float
    cause: Cause
    detail: str
    late: bool


class RunWhy(Answer, kw_only=True):
    """GET /v1/runs/{id}/why.

    intervals: from due_at until the run ended, or as_of, without a gap; those that are late sum up to lateness_ms,
    which counts until the first lease (until the end, or as_of, without one). Those of a run that was made up for at
    its queue's rate begin at its nominal time, and are not late before due_at. None is known of a run of which the
    history has heard nothing yet. incomplete: the history is behind, and the newest of it is missing.
    """

    run_id: UUID
    job_id: UUID
    state: str
    reason: str | None
    scheduled_for: datetime | None
    due_at: datetime | None
    first_leased_at: datetime | None
    ended_at: datetime | None
    lateness_ms: float | None
    summary: str
    intervals: list[WaitInterval]
    incomplete: bool
    as_of: datetime


# -- what became of an occurrence


class OccurrenceQuery(Request):
    """GET /v1/jobs/{id}/why, in its query string. at: the nominal time."""

    at: Instant


class SkippedRange(Answer, kw_only=True):
    """Occurrences that were decided together: from the first to the last of them."""

    first: datetime
    last: datetime
    count: int | None


# unrecorded: it should have a decision, and neither ledger nor history tells one.
DecisionKind = Literal["run", "skipped", "not_an_occurrence", "not_decided", "unrecorded"]


class OccurrenceWhy(Answer, kw_only=True):
    """GET /v1/jobs/{id}/why?at=…

    reason: of a skip, a stable word or two first. run: the occurrence's own. other_run_ids: made beside the schedule
    for the same nominal time. before, after: the job's occurrences next to `at`, when it is none.
    """

    job_id: UUID
    at: datetime
    decision: DecisionKind
    detail: str
    reason: str | None = None
    run: RunWhy | None = None
    skipped_range: SkippedRange | None = None
    other_run_ids: list[UUID] = field(default_factory=list)
    before: datetime | None = None
    after: datetime | None = None
    incomplete: bool = False


# -- how the installation is


class Finding(Answer, kw_only=True):
    """One check. remedy: what to do about it, unless it is ok."""

    check: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str | None = None


class Diagnosis(Answer, kw_only=True):
    """GET /v1/doctor. status: the worst of its findings."""

    status: Literal["ok", "warn", "fail"]
    findings: list[Finding]
