"""GET /v1/dead and POST /v1/dead/replay: runs that failed for good, listed and given new attempts at a pace."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from uuid import UUID

from api.auth import require_queue
from api.command_calls import CommandCalls, command_head, idempotency_key
from api.endpoints import Accepted, Call
from api.problems import invalid
from ledger.commands import APPLIED
from ledger.dead_letters import DeadFilter, DeadRun, count_dead, list_dead
from ledger.shards import Shards
from ledger.tokens import Identity
from schemas import http_operations as http
from schemas.commands import LANES, ReplayRun

SAMPLE = 10

Place = tuple[datetime, UUID]


class DeadLetters:
    def __init__(self, shards: Shards, commands: CommandCalls) -> None:
        self._shards = shards
        self._commands = commands

    async def list(self, call: Call[http.DeadQuery]) -> http.DeadPage:
        """List runs that failed for good, in the order in which they died."""
        body = call.body
        which, after = _filter(call.identity, body), _place(body.after)
        found = await self._first(which, body.limit + 1, after)
        page = found[: body.limit]
        return http.DeadPage(runs=[_view(run) for run in page], next=_cursor(page) if len(found) > len(page) else None)

    async def replay(self, call: Call[http.DeadReplay]) -> http.DeadReplayed | Accepted[http.DeadReplayed]:
        """Give dead runs all their attempts again, those first that died first.

        202 when some were not seen applied in time.
        """
        idempotency_key(call)  # one that cannot be is refused, also when there is nothing to replay
        body = call.body
        which, after = _filter(call.identity, body), _place(body.after)
        matched = sum(await self._shards.ask_all(lambda conn: count_dead(conn, which)))
        found = await self._first(which, body.limit + 1, after)
        chosen = found[: body.limit]
        outcomes = [] if body.dry_run else await self._commands.apply_all(list(_commands(call, chosen)))
        answer = http.DeadReplayed(
            matched=matched,
            replayed=sum(outcome is None or outcome.outcome == APPLIED for outcome in outcomes),
            dry_run=body.dry_run,
            sample=[_view(run) for run in chosen[:SAMPLE]],
            next=_cursor(chosen) if len(found) > len(chosen) else None,
        )
        return Accepted(answer) if None in outcomes else answer

    async def _first(self, which: DeadFilter, limit: int, after: Place | None) -> Sequence[DeadRun]:
        """Those that died first, on whichever shard."""
        found = await self._shards.ask_all(lambda conn: list_dead(conn, which, limit=limit, after=after))
        return sorted(chain.from_iterable(found), key=lambda run: (run.died_at, run.run_id))[:limit]


def _commands(call: Call[http.DeadReplay], runs: Sequence[DeadRun]) -> Iterator[ReplayRun]:
    """In the order of death; with a pace each is due that much later than the one before."""
    body = call.body
    apart_s = 1 / body.per_second if body.per_second else 0.0
    first = body.start_at or (datetime.now(UTC) if apart_s else None)
    for position, run in enumerate(runs):
        due_at = first and first + timedelta(seconds=position * apart_s)
        yield ReplayRun(**command_head(call, "replay", run.job_id, run_id=run.run_id), run_id=run.run_id, due_at=due_at)


def _filter(identity: Identity, body: http.DeadFilter) -> DeadFilter:
    """Raises Problem 403 for a queue that the token may not see; without one it sees those that it may."""
    if body.queue is not None:
        require_queue(identity, body.queue)
    queues = identity.queues if body.queue is None else [body.queue]
    return DeadFilter(identity.tenant, queues, body.job_id, body.since, body.until, body.reason)


def _cursor(page: Sequence[DeadRun]) -> str:
    """The place behind the last run of a page, as text that means nothing to callers."""
    last = page[-1]
    return base64.urlsafe_b64encode(f"{last.died_at.astimezone(UTC).isoformat()} {last.run_id}".encode()).decode()


def _place(cursor: str | None) -> Place | None:
    """Raises Problem 422 for one that no page gave."""
    if cursor is None:
        return None
    try:
        at, _, run_id = base64.b64decode(cursor, altchars=b"-_", validate=True).decode().partition(" ")
        died_at = datetime.fromisoformat(at)
        if died_at.tzinfo is None:
            raise ValueError(at)
        return died_at, UUID(run_id)
    except (ValueError, binascii.Error):
        raise invalid("after", "it is no `next` of an earlier page") from None


def _view(run: DeadRun) -> http.DeadRun:
    return http.DeadRun(
        run_id=run.run_id,
        job_id=run.job_id,
        queue=run.queue,
        lane=LANES[run.lane],
        attempt=run.attempt,
        max_attempts=run.max_attempts,
        scheduled_for=run.scheduled_for,
        died_at=run.died_at,
        worker_id=run.worker_id,
        reason=run.reason,
    )
