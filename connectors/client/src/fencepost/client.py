"""The HTTP API, one method a call, asynchronous. `fencepost.sync_client` has the same for blocking code."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from fencepost.declaration_client import DeclarationClient
from fencepost.explanation_client import ExplanationClient
from fencepost.forecast_client import ForecastClient
from fencepost.job_spec import JobSpec, Schedule, instant_text, schedule_fields, spec_fields
from fencepost.lease_client import LeaseClient
from fencepost.models import BackfillAnswer, CommandAnswer, Job, Preview, QueryAnswer, Run
from fencepost.operator_client import OperatorClient
from fencepost.sealing import sealed, sealed_spec
from fencepost.token_client import TokenClient


class FencepostClient(LeaseClient, OperatorClient, TokenClient, DeclarationClient, ExplanationClient, ForecastClient):
    """Use it as `async with FencepostClient(url, token) as fencepost: …`.

    Every call may raise the errors of `fencepost.errors`. Calls that got no answer, or 503, are repeated for
    retry_for_s: each is safe to repeat, as commands without an idempotency key get one of their own.
    """

    async def create_job(self, spec: JobSpec, *, idempotency_key: str | None = None) -> CommandAnswer:
        """Create a job. The same key and spec give the same job; the same key and another spec raise Conflict."""
        return await self._command("POST", "/v1/jobs", self._spec_fields(spec), idempotency_key, CommandAnswer)

    async def update_job(
        self,
        job_id: UUID,
        spec: JobSpec,
        *,
        effective_from: datetime | None = None,
        if_version: int | None = None,
        idempotency_key: str | None = None,
    ) -> CommandAnswer:
        """Give a job another definition, which is `spec` as a whole. Its pending run is replaced.

        effective_from: the new schedule fires only after this aware instant; it never fires for the past.
        if_version: raise Conflict when the job has another version by then.
        """
        body = self._spec_fields(spec)
        if if_version is not None:
            body["ifVersion"] = if_version
        if effective_from is not None:
            body["effectiveFrom"] = instant_text(effective_from, "effectiveFrom")
        return await self._command("PUT", f"/v1/jobs/{job_id}", body, idempotency_key, CommandAnswer)

    async def pause_job(self, job_id: UUID, *, idempotency_key: str | None = None) -> CommandAnswer:
        """Put a job's pending runs aside."""
        return await self._command("POST", f"/v1/jobs/{job_id}/pause", None, idempotency_key, CommandAnswer)

    async def resume_job(self, job_id: UUID, *, idempotency_key: str | None = None) -> CommandAnswer:
        """Let a paused job go on."""
        return await self._command("POST", f"/v1/jobs/{job_id}/resume", None, idempotency_key, CommandAnswer)

    async def delete_job(
        self, job_id: UUID, *, if_version: int | None = None, idempotency_key: str | None = None
    ) -> CommandAnswer:
        """End a job and drop its pending runs. if_version: as of update_job."""
        condition = "" if if_version is None else f"?ifVersion={if_version}"
        return await self._command("DELETE", f"/v1/jobs/{job_id}{condition}", None, idempotency_key, CommandAnswer)

    async def trigger_job(
        self, job_id: UUID, payload: Any = None, *, idempotency_key: str | None = None
    ) -> CommandAnswer:
        """Run a job now, beside its schedule, with its own payload unless one is given."""
        body = None if payload is None else {"payload": sealed(payload, self._payload_codec)}
        return await self._command("POST", f"/v1/jobs/{job_id}/trigger", body, idempotency_key, CommandAnswer)

    async def backfill(
        self,
        job_id: UUID,
        after: datetime,
        through: datetime,
        payload: Any = None,
        *,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> BackfillAnswer:
        """Run the occurrences after `after` up to and with `through` beside the schedule, at most 1,000.

        payload: instead of the job's own. dry_run: only tell which they are.
        """
        body = {"from": instant_text(after, "from"), "to": instant_text(through, "to"), "dryRun": dry_run}
        body |= {} if payload is None else {"payload": sealed(payload, self._payload_codec)}
        return await self._command("POST", f"/v1/jobs/{job_id}/backfill", body, idempotency_key, BackfillAnswer)

    async def job(self, job_id: UUID) -> Job:
        """A job's definition, state and next run."""
        return await self._get(f"/v1/jobs/{job_id}", Job)

    async def run(self, run_id: UUID) -> Run:
        """A run's state; of an ended run, as the history has it."""
        return await self._get(f"/v1/runs/{run_id}", Run)

    async def preview_schedule(
        self, schedule: Schedule, *, after: datetime | None = None, count: int = 5, job_id: UUID | None = None
    ) -> Preview:
        """The next fires strictly after an aware instant, now unless given. count: at most 1,000.

        job_id: the job whose fires they would be, which is what `H` and the jitter depend on.
        """
        body = {"schedule": schedule_fields(schedule), "from": after, "count": count, "jobId": job_id}
        return await self._post("/v1/schedules/preview", Preview, body)

    async def query(self, sql: str, *, limit: int = 1000) -> QueryAnswer:
        """Read-only SQL over the history: `runs`, `attempts`, `jobs`, `decisions`, `run_events` and `audit`.

        limit: at most 10,000 rows.
        """
        return await self._post("/v1/query", QueryAnswer, {"sql": sql, "limit": limit})

    def _spec_fields(self, spec: JobSpec) -> dict[str, Any]:
        return spec_fields(sealed_spec(spec, self._payload_codec))
