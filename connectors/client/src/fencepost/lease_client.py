"""What workers do by HTTP: lease runs, and tell how they go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from fencepost.base_client import ANSWER_ALLOWANCE_S, BaseClient
from fencepost.errors import Conflict, LeaseLost, ServerFault
from fencepost.http_calls import decoded
from fencepost.ids import new_id
from fencepost.job_spec import Name, convert
from fencepost.models import (
    BatchAnswer,
    Beat,
    BeatAnswer,
    Completion,
    Failure,
    FailureAnswer,
    LeaseAnswer,
    LeasedRun,
    OutcomeAnswer,
    Release,
    SnoozeAnswer,
    Snoozing,
)

Outcome = Beat | Completion | Failure | Release | Snoozing


class LeaseClient(BaseClient):
    """The calls of a worker."""

    async def lease(
        self,
        queue: str | Sequence[str],
        worker_id: str,
        *,
        max_runs: int = 1,
        visibility_s: float = 30,
        wait_s: float = 0,
        request_id: UUID | None = None,
        retry_for_s: float | None = None,
    ) -> list[LeasedRun]:
        """Lease due runs, waiting up to wait_s (at most 60) for the first.

        queue: one, or up to 100 of which any may have some. max_runs: 1 to 1,000. request_id: a repetition of this call
        with it gets the same runs.
        """
        answer = await self.poll(
            queue,
            worker_id,
            max_runs=max_runs,
            visibility_s=visibility_s,
            wait_s=wait_s,
            request_id=request_id,
            retry_for_s=retry_for_s,
        )
        return answer.runs

    async def poll(
        self,
        queue: str | Sequence[str],
        worker_id: str,
        *,
        max_runs: int,
        visibility_s: float,
        wait_s: float,
        request_id: UUID | None = None,
        retry_for_s: float | None = None,
    ) -> LeaseAnswer:
        """As `lease`, and how much of the wait was over when the leases began."""
        body: dict[str, Any] = {
            "workerId": worker_id,
            "max": max_runs,
            "visibilitySeconds": visibility_s,
            "waitSeconds": wait_s,
            "requestId": request_id or new_id(),
        }
        if isinstance(queue, str):
            path = f"/v1/queues/{convert(queue, Name)}/lease"
        else:
            path, body["queues"] = "/v1/lease", [convert(name, Name) for name in queue]
        answer = await self._calls.call(
            "POST",
            path,
            body,
            timeout_s=wait_s + ANSWER_ALLOWANCE_S,
            retry_for_s=retry_for_s,
        )
        return decoded(answer.body, LeaseAnswer)

    async def heartbeat(
        self, run_id: UUID, lease_token: int, *, visibility_s: float = 30, progress: str | None = None
    ) -> BeatAnswer:
        """Extend a lease to visibility_s from now. progress: at most 1,000 characters. Raises LeaseLost."""
        return decoded(await self._outcome("heartbeat", Beat(run_id, lease_token, visibility_s, progress)), BeatAnswer)

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

    async def snooze(self, run_id: UUID, lease_token: int, delay_s: float) -> SnoozeAnswer:
        """Give a run back until delay_s from now; the attempt is not charged. Raises LeaseLost."""
        return decoded(await self._outcome("snooze", Snoozing(run_id, lease_token, delay_s)), SnoozeAnswer)

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

    async def snooze_many(
        self, snoozes: Sequence[Snoozing], *, timeout_s: float | None = None, retry_for_s: float | None = None
    ) -> list[OutcomeAnswer]:
        """Snoozes of at most 1,000 distinct runs; answers in their order, 409 where a lease is lost."""
        return await self._outcomes("snooze", snoozes, timeout_s, retry_for_s)

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
