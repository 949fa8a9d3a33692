"""What explains things by HTTP: why a run waited, what became of an occurrence, how the installation is."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from urllib.parse import urlencode
from uuid import UUID

from msgspec import Struct, field

from fencepost.base_client import BaseClient
from fencepost.job_spec import instant_text

Status = Literal["ok", "warn", "fail"]


class WaitInterval(Struct, rename="camel", kw_only=True, frozen=True):
    """A piece of a run's time. late: it is part of the lateness. ms: its length, exact to the microsecond.

    cause: not_due, not_decided, catching_up, job_paused, tenant_paused, queue_paused, overlap, owner_taking_over,
    lease_quota, no_worker_asked, running, retry_delay, snoozed, ended, or one of a newer server.
    """

    start: datetime = field(name="from")
    end: datetime = field(name="to")
    ms: float
    cause: str
    detail: str
    late: bool


class RunExplanation(Struct, rename="camel", kw_only=True, frozen=True):
    """Where a run's time went. lateness_ms: until its first lease, which the late intervals sum up to.

    incomplete: the history is behind, and the newest is missing. as_of: the server's clock.
    """

    run_id: UUID
    job_id: UUID
    state: str
    summary: str
    intervals: list[WaitInterval]
    incomplete: bool
    as_of: datetime
    reason: str | None = None
    scheduled_for: datetime | None = None
    due_at: datetime | None = None
    first_leased_at: datetime | None = None
    ended_at: datetime | None = None
    lateness_ms: float | None = None


class SkippedRange(Struct, rename="camel", kw_only=True, frozen=True):
    """Occurrences that were skipped together, from the first to the last of them."""

    first: datetime
    last: datetime
    count: int | None = None


class OccurrenceExplanation(Struct, rename="camel", kw_only=True, frozen=True):
    """What was decided about a job's occurrence. run: its own. before, after: the ones next to `at` when it is none.

    decision: run, skipped, not_an_occurrence, not_decided or unrecorded (none is known, and there should be one).
    """

    job_id: UUID
    at: datetime
    decision: str
    detail: str
    reason: str | None = None
    run: RunExplanation | None = None
    skipped_range: SkippedRange | None = None
    other_run_ids: list[UUID] = field(default_factory=list)
    before: datetime | None = None
    after: datetime | None = None
    incomplete: bool = False


class Finding(Struct, rename="camel", kw_only=True, frozen=True):
    """One check of the doctor's. remedy: what to do, unless it is ok."""

    check: str
    status: Status
    detail: str
    remedy: str | None = None


class Diagnosis(Struct, rename="camel", kw_only=True, frozen=True):
    """status: the worst of the findings."""

    status: Status
    findings: list[Finding]


class ExplanationClient(BaseClient):
    """The calls that explain."""

    async def why_run(self, run_id: UUID) -> RunExplanation:
        """The intervals that a run has waited and run, each with its cause."""
        return await self._get(f"/v1/runs/{run_id}/why", RunExplanation)

    async def why_occurrence(self, job_id: UUID, at: datetime) -> OccurrenceExplanation:
        """What became of the occurrence of a job at an aware instant, its nominal time."""
        query = urlencode({"at": instant_text(at, "at")})
        return await self._get(f"/v1/jobs/{job_id}/why?{query}", OccurrenceExplanation)

    async def doctor(self) -> Diagnosis:
        """Checks of the whole installation, each with its remedy."""
        return await self._get("/v1/doctor", Diagnosis)
