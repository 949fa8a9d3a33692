"""The lease rules of the HTTP contract, in memory: what the worker's tests run against when they need to see or bend
time, answers and the wire. The same worker is tested on the real server elsewhere.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class ServedRun:
    """state: pending, leased, completed, cancelled or dead. times are of the server's clock."""

    run_id: UUID
    payload: Any
    max_attempts: int
    state: str = "pending"
    due_at: float = 0.0
    attempt: int = 0
    lease_token: int = 0
    leased_at: float = 0.0
    expires_at: float = 0.0
    cancel: bool = False
    timeout_s: float = math.inf
    attempt_ends_at: float = math.inf
    notes: list[str] = field(default_factory=list)
    result: Any = None
    errors: list[str] = field(default_factory=list)
    ended_token: int | None = None
    retry_after_s: float | None = None


class LeaseServer:
    """One queue of one tenant. clock: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.runs: dict[UUID, ServedRun] = {}
        self.asks: list[dict[str, Any]] = []
        self.calls: list[tuple[str, int]] = []  # (verb, number of runs) of every batch call
        self.poison: Callable[[dict[str, Any]], bool] = lambda _: False
        self.undecided: set[str] = set()  # run ids whose next outcome is answered 503
        self._requests: dict[str, list[tuple[UUID, int]]] = {}
        self._changed = asyncio.Condition()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/queues/{queue}/lease", self._lease, methods=["POST"]),
                Route("/v1/runs/{verb}", self._batch, methods=["POST"]),
            ]
        )

    def add(self, *payloads: Any, max_attempts: int = 5) -> list[UUID]:
        """Runs that are due now."""
        added = [ServedRun(uuid4(), payload, max_attempts) for payload in payloads]
        self.runs |= {run.run_id: run for run in added}
        return [run.run_id for run in added]

    async def tell(self) -> None:
        """Wake whoever waits for a change."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20) -> None:
        """When `condition` holds; it is looked at after every call that changed a run."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(condition)

    def states(self) -> list[str]:
        return [run.state for run in self.runs.values()]

    def expire(self) -> None:
        """What the owner's reaper does: leases that ran out become pending again."""
        for run in self.runs.values():
            if run.state == "leased" and run.expires_at <= self.clock():
                run.state = "pending"

    async def _lease(self, request: Request) -> Response:
        body = await request.json()
        self.asks.append(body)
        came_at = asked_at = self.clock()
        repeated = [
            self.runs[run_id]
            for run_id, token in self._requests.get(body["requestId"], ())
            if self._holds(self.runs[run_id], token)
        ]
        runs = repeated or self._take(body)
        if not runs and body["waitSeconds"]:
            runs = await self._wait_and_take(body)
            asked_at = min([self.clock(), *(run.leased_at for run in runs)])
        self._requests.setdefault(body["requestId"], [(run.run_id, run.lease_token) for run in runs])
        await self.tell()
        return JSONResponse({"runs": [self._leased(run) for run in runs], "waitedSeconds": asked_at - came_at})

    async def _wait_and_take(self, body: dict[str, Any]) -> list[ServedRun]:
        try:
            async with asyncio.timeout(body["waitSeconds"]), self._changed:
                await self._changed.wait_for(lambda: self._due() != [])
        except TimeoutError:
            return []
        return self._take(body)

    def _due(self) -> list[ServedRun]:
        now = self.clock()
        return [run for run in self.runs.values() if run.state == "pending" and run.due_at <= now]

    def _take(self, body: dict[str, Any]) -> list[ServedRun]:
        taken = self._due()[: body["max"]]
        for run in taken:
            run.state = "leased"
            run.attempt += 1
            run.lease_token += 1
            run.leased_at = self.clock()
            run.attempt_ends_at = run.leased_at + run.timeout_s
            run.expires_at = min(run.leased_at + body["visibilitySeconds"], run.attempt_ends_at)
        return taken

    def _holds(self, run: ServedRun | None, token: int) -> bool:
        return run is not None and run.state == "leased" and run.lease_token == token and run.expires_at > self.clock()

    async def _batch(self, request: Request) -> Response:
        verb, items = request.path_params["verb"], (await request.json())["runs"]
        self.calls.append((verb, len(items)))
        if any(self.poison(item) for item in items):
            problem = {"status": 422, "title": "Unprocessable Content", "detail": "poison", "field": "runs"}
            return JSONResponse(problem, 422, media_type="application/problem+json")
        results = [self._one(verb, item) for item in items]
        await self.tell()
        return JSONResponse({"results": results})

    def _one(self, verb: str, item: dict[str, Any]) -> dict[str, Any]:
        run, token = self.runs.get(UUID(item["runId"])), item["leaseToken"]
        answer = {"runId": item["runId"], "status": 200}
        if item["runId"] in self.undecided:
            self.undecided.remove(item["runId"])
            return answer | {"status": 503}
        if run is not None and run.ended_token == token and verb in ("complete", "fail"):
            return answer  # a repetition after a lost answer
        if run is None or not self._holds(run, token):
            return answer | {"status": 409}
        fields: dict[str, Any] = getattr(self, f"_{verb}")(run, item)
        return answer | fields

    def _heartbeat(self, run: ServedRun, item: dict[str, Any]) -> dict[str, Any]:
        if not run.cancel:
            wanted = max(run.expires_at, self.clock() + item.get("visibilitySeconds", 30))
            run.expires_at = min(wanted, run.attempt_ends_at)
        if "progress" in item:
            run.notes.append(item["progress"])
        left_s = run.expires_at - self.clock()
        return {"leaseExpiresAt": _instant(run.expires_at), "leaseSeconds": left_s, "cancel": run.cancel}

    def _complete(self, run: ServedRun, item: dict[str, Any]) -> dict[str, Any]:
        run.state, run.result, run.ended_token = "completed", item.get("result"), run.lease_token
        return {}

    def _fail(self, run: ServedRun, item: dict[str, Any]) -> dict[str, Any]:
        run.errors.append(item["error"])
        run.ended_token = run.lease_token
        if run.cancel:
            run.state = "cancelled"
            return {"outcome": "cancelled"}
        run.retry_after_s = item.get("retryAfterSeconds")
        if item.get("permanent") or run.attempt >= run.max_attempts:
            run.state = "dead"
            return {"outcome": "dead"}
        run.state, run.due_at = "pending", self.clock() + (run.retry_after_s or 0)
        return {"outcome": "retried", "dueAt": _instant(run.due_at)}

    def _snooze(self, run: ServedRun, item: dict[str, Any]) -> dict[str, Any]:
        run.state, run.attempt, run.due_at = "pending", run.attempt - 1, self.clock() + item["delaySeconds"]
        return {"outcome": "snoozed", "dueAt": _instant(run.due_at)}

    def _release(self, run: ServedRun, _: dict[str, Any]) -> dict[str, Any]:
        run.state, run.attempt = "pending", run.attempt - 1
        return {}

    def _leased(self, run: ServedRun) -> dict[str, Any]:
        return {
            "runId": str(run.run_id),
            "jobId": str(run.run_id),
            "attempt": run.attempt,
            "leaseToken": run.lease_token,
            "leaseExpiresAt": _instant(run.expires_at),
            "leaseSeconds": run.expires_at - self.clock(),
            "scheduledFor": _instant(0),
            "dueAt": _instant(run.due_at),
            "queue": "q",
            "payload": run.payload,
        }


def _instant(seconds: float) -> str:
    return (EPOCH + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
