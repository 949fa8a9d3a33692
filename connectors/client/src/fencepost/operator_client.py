"""What operators do by HTTP: dead letters, settings of queues and of the tenant, and pauses of both."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from fencepost.base_client import BaseClient
from fencepost.http_calls import decoded
from fencepost.job_spec import Name, convert, instant_text
from fencepost.models import DeadFilter, DeadPage, DeadReplayAnswer, Queue, RunAnswer, Tenant

EVERY_DEAD = DeadFilter()


class OperatorClient(BaseClient):
    """The calls of an operator."""

    async def cancel_run(self, run_id: UUID, *, idempotency_key: str | None = None) -> RunAnswer:
        """Cancel a run: at once, or when it is being executed with its worker's next heartbeat.

        Raises Conflict when it has ended before.
        """
        return await self._command("POST", f"/v1/runs/{run_id}/cancel", None, idempotency_key, RunAnswer)

    async def replay_run(self, run_id: UUID, *, idempotency_key: str | None = None) -> RunAnswer:
        """Give a dead run all its attempts again. Raises Conflict for one that is not dead."""
        return await self._command("POST", f"/v1/runs/{run_id}/replay", None, idempotency_key, RunAnswer)

    async def dead_letters(
        self, which: DeadFilter = EVERY_DEAD, *, limit: int = 100, after: str | None = None
    ) -> DeadPage:
        """A page of the runs that failed for good, those that died first. limit: at most 1,000.

        after: the `next` of the page before.
        """
        query = {**_fields(which), "limit": limit, **({} if after is None else {"after": after})}
        return await self._get(f"/v1/dead?{urlencode(query)}", DeadPage)

    async def replay_dead(
        self,
        which: DeadFilter = EVERY_DEAD,
        *,
        limit: int = 1000,
        dry_run: bool = False,
        per_second: float | None = None,
        start_at: datetime | None = None,
        after: str | None = None,
        idempotency_key: str | None = None,
    ) -> DeadReplayAnswer:
        """Give dead runs all their attempts again, at most `limit` (1,000) of them a call, those that died first.

        dry_run: only tell which. per_second: their pace, the first being due at start_at (now unless given). after: the
        `next` of an earlier answer.
        """
        options = {"limit": limit, "dryRun": dry_run, "perSecond": per_second, "startAt": start_at, "after": after}
        body = _fields(which) | {name: value for name, value in options.items() if value is not None}
        return await self._command("POST", "/v1/dead/replay", body, idempotency_key, DeadReplayAnswer)

    async def queue(self, queue: str) -> Queue:
        """Whether a queue is paused, its settings, and how many of its runs are due."""
        return await self._get(_queue_path(queue), Queue)

    async def set_queue(
        self,
        queue: str,
        *,
        rate_per_second: float | UnsetType | None = UNSET,
        max_live_runs: int | UnsetType | None = UNSET,
        max_live_runs_per_key: int | UnsetType | None = UNSET,
    ) -> Queue:
        """Change settings of a queue; what is not given stays, None takes a limit away.

        rate_per_second: at which the made-up runs of jobs with catchUp all come due, above 0 and at most 1,000,000;
        None: they are all due at once. max_live_runs, max_live_runs_per_key: how many runs may be leased at once, of
        the queue and of those with one concurrency key, 1 to 1,000,000. Raises InvalidInput.
        """
        given = {
            "ratePerSecond": rate_per_second,
            "maxLiveRuns": max_live_runs,
            "maxLiveRunsPerKey": max_live_runs_per_key,
        }
        body = {name: value for name, value in given.items() if value is not UNSET}
        return decoded((await self._calls.call("PATCH", _queue_path(queue), body)).body, Queue)

    async def pause_queue(self, queue: str) -> Queue:
        """Have nothing of a queue leased. What waits stays where it is, what is leased goes on."""
        return await self._post(f"{_queue_path(queue)}/pause", Queue)

    async def resume_queue(self, queue: str) -> Queue:
        """End a queue's pause."""
        return await self._post(f"{_queue_path(queue)}/resume", Queue)

    async def tenant(self) -> Tenant:
        """The token's tenant, its limits, and what of it is paused."""
        return await self._get("/v1/tenant", Tenant)

    async def set_tenant(
        self,
        *,
        leases_per_second: float | UnsetType | None = UNSET,
        lease_burst: int | UnsetType | None = UNSET,
        max_pending_runs: int | UnsetType | None = UNSET,
        weight: int | UnsetType | None = UNSET,
    ) -> Tenant:
        """Change limits of the tenant, by an admin's token; what is not given stays.

        leases_per_second: how many runs its workers may lease, above 0 and at most 1,000,000; None: no limit.
        lease_burst: how many at once after a while without any; None: those of a second.
        max_pending_runs: from how many on, waiting and leased ones, no job is created; None: any.
        weight: how large its share is beside other tenants that compete with it, 1 to 1,000; None: 1.
        Raises InvalidInput.
        """
        named = {
            "leasesPerSecond": leases_per_second, "leaseBurst": lease_burst, "maxPendingRuns": max_pending_runs,
            "weight": weight,
        }  # fmt: skip
        body = {name: value for name, value in named.items() if value is not UNSET}
        return decoded((await self._calls.call("PATCH", "/v1/tenant", body)).body, Tenant)

    async def pause_tenant(self) -> Tenant:
        """Have nothing of the tenant leased."""
        return await self._post("/v1/tenant/pause", Tenant)

    async def resume_tenant(self) -> Tenant:
        """End the tenant's pause; queues that are paused by themselves stay so."""
        return await self._post("/v1/tenant/resume", Tenant)


def _queue_path(queue: str) -> str:
    return f"/v1/queues/{convert(queue, Name)}"


def _fields(which: DeadFilter) -> dict[str, Any]:
    """The filter's JSON form. Raises InvalidInput for an instant without a zone."""
    fields: dict[str, Any] = msgspec.to_builtins(which, builtin_types=(datetime,))
    instants = {name: instant_text(value, name) for name, value in fields.items() if isinstance(value, datetime)}
    return fields | instants
