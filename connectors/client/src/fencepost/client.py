"""The HTTP API, one method a call, asynchronous. `fencepost.sync_client` has the same for blocking code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

import httpx
import msgspec

from fencepost.errors import Conflict, InvalidInput, LeaseLost, ServerFault
from fencepost.http_calls import HttpCalls, decoded
from fencepost.ids import new_id
from fencepost.job_spec import JobSpec, Name, Schedule, convert, schedule_fields, spec_fields
from fencepost.models import (
    BatchAnswer,
    Beat,
    BeatAnswer,
    CommandAnswer,
    Completion,
    Failure,
    FailureAnswer,
    Job,
    LeaseAnswer,
    LeasedRun,
    OutcomeAnswer,
    Preview,
    QueryAnswer,
    Release,
    Run,
)

T = TypeVar("T")
Outcome = Beat | Completion | Failure | Release

_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,198}[\x21-\x7e])?")
ANSWER_ALLOWANCE_S = 10.0  # for the way there and back, beyond what a long-poll waits


class FencepostClient:
    """Use it as `async with FencepostClient(url, token) as fencepost: …`.

    Every call may raise the errors of `fencepost.errors`. Calls that got no answer, or 503, are repeated for
    retry_for_s: each is safe to repeat, as commands without an idempotency key get one of their own.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        timeout_s: float = ANSWER_ALLOWANCE_S,
        retry_for_s: float = 15.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._calls = HttpCalls(base_url, token, timeout_s=timeout_s, retry_for_s=retry_for_s, transport=transport)

    async def close(self) -> None:
        """Close the connections."""
        await self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def create_job(self, spec: JobSpec, *, idempotency_key: str | None = None) -> CommandAnswer:
        """Create a job. The same key and spec give the same job; the same key and another spec raise Conflict."""
        return await self._command("POST", "/v1/jobs", spec_fields(spec), idempotency_key)

    async def pause_job(self, job_id: UUID, *, idempotency_key: str | None = None) -> CommandAnswer:
        """Put a job's pending runs aside."""
        return await self._command("POST", f"/v1/jobs/{job_id}/pause", None, idempotency_key)

    async def resume_job(self, job_id: UUID, *, idempotency_key: str | None = None) -> CommandAnswer:
        """Let a paused job go on."""
        return await self._command("POST", f"/v1/jobs/{job_id}/resume", None, idempotency_key)

    async def delete_job(self, job_id: UUID, *, idempotency_key: str | None = None) -> CommandAnswer:
        """End a job and drop its pending runs."""
        return await self._command("DELETE", f"/v1/jobs/{job_id}", None, idempotency_key)

    async def trigger_job(
        self, job_id: UUID, payload: Any = None, *, idempotency_key: str | None = None
    ) -> CommandAnswer:
        """Run a job now, beside its schedule, with its own payload unless one is given."""
        body = None if payload is None else {"payload": payload}
        return await self._command("POST", f"/v1/jobs/{job_id}/trigger", body, idempotency_key)

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
        answer = await self._calls.call("POST", "/v1/schedules/preview", body)
        return decoded(answer.body, Preview)

    async def query(self, sql: str, *, limit: int = 1000) -> QueryAnswer:
        """Read-only SQL over the history (`run_events`, `runs`). limit: at most 10,000 rows."""
        answer = await self._calls.call("POST", "/v1/query", {"sql": sql, "limit": limit})
        return decoded(answer.body, QueryAnswer)

    async def lease(
        self,
        queue: str,
        worker_id: str,
        *,
        max_runs: int = 1,
        visibility_s: float = 30,
        wait_s: float = 0,
        request_id: UUID | None = None,
        retry_for_s: float | None = None,
    ) -> list[LeasedRun]:
        """Lease due runs, waiting up to wait_s (at most 20) for the first.

        max_runs: 1 to 1,000. request_id: a repetition of this call with it gets the same runs.
        """
        body = {
            "workerId": worker_id,
            "max": max_runs,
            "visibilitySeconds": visibility_s,
            "waitSeconds": wait_s,
            "requestId": request_id or new_id(),
        }
        answer = await self._calls.call(
            "POST",
            f"/v1/queues/{convert(queue, Name)}/lease",
            body,
            timeout_s=wait_s + ANSWER_ALLOWANCE_S,
            retry_for_s=retry_for_s,
        )
        return decoded(answer.body, LeaseAnswer).runs

    async def heartbeat(self, run_id: UUID, lease_token: int, *, visibility_s: float = 30) -> BeatAnswer:
        """Extend a lease to visibility_s from now. Raises LeaseLost."""
        return decoded(await self._outcome("heartbeat", Beat(run_id, lease_token, visibility_s)), BeatAnswer)

    async def complete(self, run_id: UUID, lease_token: int, result: Any = None) -> None:
        """Finish a run. result: a JSON value of at most 64 KiB. Raises LeaseLost."""
        await self._outcome("complete", Completion(run_id, lease_token, result))

    async def fail(
        self,
        run_id: UUID,
        lease_token: int,
        error: str,
        *,
        permanent: bool = False,
        retry_after_s: float | None = None,
    ) -> FailureAnswer:
        """End an attempt that failed. error: at most 4,000 characters. Raises LeaseLost."""
        failure = Failure(run_id, lease_token, error, permanent, retry_after_s)
        return decoded(await self._outcome("fail", failure), FailureAnswer)

    async def release(self, run_id: UUID, lease_token: int) -> None:
        """Give a run back unexecuted. Raises LeaseLost."""
        await self._outcome("release", Release(run_id, lease_token))

    async def heartbeat_many(
        self, beats: Sequence[Beat], *, timeout_s: float | None = None, retry_for_s: float | None = None
    ) -> list[OutcomeAnswer]:
        """Heartbeats of at most 1,000 distinct runs; answers in their order, 409 where a lease is lost."""
        return await self._outcomes("heartbeat", beats, timeout_s, retry_for_s)

    async def complete_many(
        self, completions: Sequence[Completion], *, timeout_s: float | None = None, retry_for_s: float | None = None
    ) -> list[OutcomeAnswer]:
        """Completions of at most 1,000 distinct runs; answers in their order, 409 where a lease is lost."""
        return await self._outcomes("complete", completions, timeout_s, retry_for_s)

    async def fail_many(
        self, failures: Sequence[Failure], *, timeout_s: float | None = None, retry_for_s: float | None = None
    ) -> list[OutcomeAnswer]:
        """Failures of at most 1,000 distinct runs; answers in their order, 409 where a lease is lost."""
        return await self._outcomes("fail", failures, timeout_s, retry_for_s)

    async def release_many(
        self, releases: Sequence[Release], *, timeout_s: float | None = None, retry_for_s: float | None = None
    ) -> list[OutcomeAnswer]:
        """Releases of at most 1,000 distinct runs; answers in their order, 409 where a lease is lost."""
        return await self._outcomes("release", releases, timeout_s, retry_for_s)

    async def _get(self, path: str, kind: type[T]) -> T:
        return decoded((await self._calls.call("GET", path)).body, kind)

    async def _command(self, method: str, path: str, body: Any, idempotency_key: str | None) -> CommandAnswer:
        key = str(new_id()) if idempotency_key is None else _checked_key(idempotency_key)
        answer = await self._calls.call(method, path, body, headers={"Idempotency-Key": key})
        result = decoded(answer.body, CommandAnswer)
        return msgspec.structs.replace(result, applied=answer.status != 202)

    async def _outcome(self, verb: str, outcome: Outcome) -> bytes:
        fields = msgspec.structs.asdict(outcome)
        body = {
            key.encode_name: fields[key.name]
            for key in msgspec.structs.fields(outcome)
            if key.name != "run_id" and fields[key.name] is not None
        }
        try:
            return (await self._calls.call("POST", f"/v1/runs/{outcome.run_id}/{verb}", body)).body
        except Conflict as conflict:
            raise LeaseLost(conflict.problem) from conflict

    async def _outcomes(
        self, verb: str, outcomes: Sequence[Outcome], timeout_s: float | None, retry_for_s: float | None
    ) -> list[OutcomeAnswer]:
        answer = await self._calls.call(
            "POST", f"/v1/runs/{verb}", {"runs": outcomes}, timeout_s=timeout_s, retry_for_s=retry_for_s
        )
        results = decoded(answer.body, BatchAnswer).results
        if [result.run_id for result in results] != [outcome.run_id for outcome in outcomes]:
            raise ServerFault(f"{len(results)} answers to {len(outcomes)} runs, or not in their order")
        return results


def _checked_key(key: str) -> str:
    """Plain ASCII, so that it is the same text on both sides of the wire."""
    if not _KEY.fullmatch(key):
        raise InvalidInput("1 to 200 ASCII characters, none of them a control character", field="Idempotency-Key")
    return key
