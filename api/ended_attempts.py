"""The miss path of outcomes: a call found no lease of its token. Was it accepted before, or is the lease lost?

A worker whose answer was lost repeats its call, and what was accepted must be told again as accepted. The ledger's rows
say it first, then the events that still wait in the outbox, then the history, which may be a moment behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from api.auth import require_queue
from api.history_client import HistoryAway, HistoryClient, KnownRun
from api.problems import Problem, not_found
from ledger.completions import AttemptEnd, Completion, Ended, Failure, what_ended
from ledger.connection import confirm_commits, session
from ledger.runs import RunState, read_run
from ledger.shards import Shards
from ledger.tokens import Identity
from schemas import http

ASK_AGAIN_S = 0.1
SIDE_BY_SIDE = 8
_ENDED = frozenset({"completed", "dead", "cancelled", "skipped"})
# What a failure can have led to: the event, and the history's state after it.
_OUTCOMES: dict[str, http.FailedAs] = {
    "run_retried": "retried",
    "run_dead": "dead",
    "run_held": "held",
    "run_cancelled": "cancelled",
}
_EVENTS = {"retrying": "run_retried", "dead": "run_dead", "held": "run_held", "cancelled": "run_cancelled"}


class End(NamedTuple):
    """How an attempt ended, wherever that was found."""

    event: str
    lease_token: int | None
    reason: str | None
    due_at: datetime | None


class EndedAttempts:
    """Answers for single runs; no more than a few at a time, so that a flood of misses cannot starve the hot path."""

    def __init__(self, shards: Shards, history: HistoryClient) -> None:
        self._shards = shards
        self._history = history
        self._turns = asyncio.Semaphore(SIDE_BY_SIDE)

    def deadline(self) -> float:
        """The `until` of calls that begin now."""
        return self._history.deadline()

    async def completed(self, identity: Identity, ask: Completion, until: float) -> UUID:
        """Return when the run was completed under this token before.

        until: on the monotonic clock, how long the history may take to catch up. Raises Problem: 404 for no such run,
        409 for a lost lease, 403 for another queue's run, 503 when it cannot be told now.
        """
        async with self._turns:
            row, end = await self._look(identity, ask.run_id, ask.lease_token)
            if row is not None:
                raise lease_lost(_why(row, ask.lease_token))
            if end is not None:
                state = end.event.removeprefix("run_")
            else:
                known = await self._ask_history(identity, ask.run_id, until, lambda known: known.state in _ENDED)
                state = known.state if known.lease_token == ask.lease_token else f"{known.state} by another lease"
        if state != "completed":
            raise lease_lost(f"the run is {state}")
        return ask.run_id

    async def failed(self, identity: Identity, ask: Failure, until: float) -> Ended:
        """What came of the attempt if this failure ended it before. Raises as `completed` does.

        Its reason tells the failure from other ends under the same token, such as an expiry.
        """
        async with self._turns:
            row, waits_in_outbox = await self._look(identity, ask.run_id, ask.lease_token)
            if waits_in_outbox is not None:
                end = End(*(getattr(waits_in_outbox, field) for field in End._fields))
            else:
                end = _grave(row) or await self._end_in_history(identity, ask, row, until)
        outcome = _OUTCOMES.get(end.event)
        # A cancelled run's reason is why it was cancelled, whoever gave the run back.
        reason = end.reason if outcome != "cancelled" else ask.reason
        if outcome is None or (end.lease_token, reason) != (ask.lease_token, ask.reason):
            raise lease_lost("the attempt ended otherwise" if row is None else _why(row, ask.lease_token))
        return Ended(ask.run_id, outcome, end.due_at if outcome == "retried" else None)

    async def why_lost(self, identity: Identity, run_id: UUID, lease_token: int) -> Problem:
        """Why a heartbeat or release found no lease: a 409. Raises Problem 404 for a run that never was, or 403."""
        async with self._turns:
            row, end = await self._look(identity, run_id, lease_token)
            if row is not None:
                return lease_lost(_why(row, lease_token))
            if end is None:
                with suppress(HistoryAway):
                    await self._ask_history(identity, run_id, time.monotonic(), lambda _: True)
        return lease_lost("the run has ended")

    async def _end_in_history(self, identity: Identity, ask: Failure, row: RunState | None, until: float) -> End:
        """The end of the ask's attempt. Raises Problem, or HistoryAway."""
        if row is not None and not _ended_under(row, ask.lease_token):
            raise lease_lost(_why(row, ask.lease_token))
        since = row.version if row else 0
        known = await self._ask_history(
            identity, ask.run_id, until, lambda known: known.state in _ENDED or known.version >= since > 0
        )
        return End(_EVENTS.get(known.state, "run_completed"), known.lease_token, known.reason, known.due_at)

    async def _look(
        self, identity: Identity, run_id: UUID, lease_token: int
    ) -> tuple[RunState | None, AttemptEnd | None]:
        """The ledger's row and the outbox's event of it, each None when it is not there or another tenant's."""
        async with session(self._shards.of_run(run_id)) as conn:
            row = await read_run(conn, run_id)
            end = await what_ended(conn, run_id, lease_token)
            await confirm_commits(conn)  # the answer will be theirs
        row = row if row and row.tenant == identity.tenant else None
        end = end if end and end.tenant == identity.tenant else None
        if found := row or end:
            require_queue(identity, found.queue)
        return row, end

    async def _ask_history(
        self, identity: Identity, run_id: UUID, until: float, caught_up: Callable[[KnownRun], bool]
    ) -> KnownRun:
        """The history's word once it is recent enough. Raises Problem 404, or HistoryAway when it stays behind."""
        while True:
            known = await self._history.run(run_id)
            if known is not None and known.tenant == identity.tenant:
                require_queue(identity, known.queue)
                if caught_up(known):
                    return known
            if time.monotonic() >= until:
                break
            await asyncio.sleep(ASK_AGAIN_S)
        if known is None or known.tenant != identity.tenant:
            raise not_found("run")
        raise HistoryAway("the history has not caught up with this run")


def _ended_under(row: RunState, lease_token: int) -> bool:
    """Whether the token's attempt is over and no other has begun."""
    return row.lease_token == lease_token and row.state in ("pending", "held")


def _why(row: RunState, lease_token: int) -> str:
    if row.lease_token > lease_token:
        return f"the run was leased again, under token {row.lease_token}"
    if row.lease_token < lease_token:
        return f"the run was never leased under token {lease_token}"
    return "the lease has expired" if row.state in ("leased", "pending") else f"the run is {row.state}"


def _grave(row: RunState | None) -> End | None:
    """A dead run's last end."""
    if row is None or row.state != "dead":
        return None
    return End("run_dead", row.lease_token, row.reason, None)


def lease_lost(why: str) -> Problem:
    return Problem(409, f"the lease is lost: {why}", field="leaseToken")
