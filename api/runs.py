"""GET /v1/runs/{id}: a run that lives from the ledger, one that has ended from the history."""

from __future__ import annotations

from uuid import UUID

from msgspec import UNSET

from api.auth import require_queue
from api.endpoints import Call
from api.history_client import HistoryClient, KnownRun
from api.problems import not_found
from ledger.completions import AttemptEnd, what_ended
from ledger.connection import session
from ledger.runs import RunState, read_run
from ledger.shards import Shards
from ledger.tokens import Identity
from schemas import http
from schemas.commands import LANES

# A skipped occurrence was cancelled before anybody could lease it; its reason says why.
_ENDED = {"completed": "completed", "dead": "dead", "cancelled": "cancelled", "skipped": "cancelled"}


FoundRun = RunState | AttemptEnd | KnownRun


class Runs:
    def __init__(self, shards: Shards, history: HistoryClient) -> None:
        self._shards = shards
        self._history = history

    async def show(self, call: Call[http.NoBody]) -> http.RunView:
        """Show a run, wherever it is in its life."""
        run_id = call.id("run")
        return run_view(run_id, await self.find(call.identity, run_id))

    async def find(self, identity: Identity, run_id: UUID) -> FoundRun:
        """A run wherever it is. Raises Problem 404 or 403, or HistoryAway for one that only the history can know."""
        async with session(self._shards.of_run(run_id)) as conn:
            row = await read_run(conn, run_id)
            end = None if row else await what_ended(conn, run_id)
        found = row or end or await self._history.run(run_id)
        if found is None or found.tenant != identity.tenant:
            raise not_found("run")
        require_queue(identity, found.queue)
        return found


def run_view(run_id: UUID, found: FoundRun) -> http.RunView:
    """The answer from wherever the run was found; what that place does not know stays away."""
    match found:
        case RunState():
            return live_view(found)
        case AttemptEnd():
            return ended_view(run_id, found)
    return history_view(found)


def live_view(row: RunState) -> http.RunView:
    return http.RunView(
        run_id=row.run_id,
        job_id=row.job_id,
        state=row.state,
        queue=row.queue,
        lane=LANES[row.lane],
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        scheduled_for=row.scheduled_for,
        due_at=row.due_at,
        lease_expires_at=row.lease_expires_at,
        worker_id=row.worker_id,
        start_by=row.start_by,
        attempt_ends_at=row.attempt_ends_at,
        progress=row.progress,
        cancel_requested=row.cancel_reason is not None,
        reason=row.reason,
    )


def ended_view(run_id: UUID, end: AttemptEnd) -> http.RunView:
    """A run that has just left the table: its event waits in the outbox."""
    return http.RunView(
        run_id=run_id,
        job_id=end.job_id,
        state=_ENDED.get(end.event.removeprefix("run_"), "unknown"),
        queue=end.queue,
        lane=LANES[end.lane],
        attempt=end.attempt,
        scheduled_for=end.scheduled_for,
        worker_id=end.worker_id,
        reason=end.reason,
        result=UNSET if end.result is None else http.json_raw(end.result),
    )


def history_view(known: KnownRun) -> http.RunView:
    return http.RunView(
        run_id=known.run_id,
        job_id=known.job_id,
        state=_ENDED.get(known.state, "unknown"),
        queue=known.queue,
        lane=known.lane,
        attempt=known.attempt,
        scheduled_for=known.scheduled_for,
        due_at=known.due_at,
        worker_id=known.worker_id,
        reason=known.reason,
        result=known.result,
    )
