"""Dead letters: runs that failed for good, listed by what is known of them, and replayed with new attempts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ledger.connection import Connection
from ledger.fence import OwnerTransaction, hold_job_states
from ledger.outbox import emit
from ledger.partitions import held_here
from ledger.runs import RUN_COLUMNS, PendingRun


class DeadRun(NamedTuple):
    """A run that failed for good. reason: the last failure's. The first two fields are its place in the list."""

    died_at: datetime
    run_id: UUID
    job_id: UUID
    tenant: str
    queue: str
    lane: int
    attempt: int
    max_attempts: int
    scheduled_for: datetime
    worker_id: str | None
    payload: str | None
    reason: str


class DeadFilter(NamedTuple):
    """Which dead runs of a tenant. None asks for nothing in particular.

    queues: any of these. since, until: died at or after, died before. reason: a part of it, in any case.
    """

    tenant: str
    queues: Sequence[str] | None = None
    job_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    reason: str | None = None


_MATCHES = f"""
    {held_here("d")} AND tenant = %(tenant)s AND (%(queues)b::text[] IS NULL OR queue = ANY (%(queues)b::text[]))
      AND (%(job_id)s::uuid IS NULL OR job_id = %(job_id)s::uuid)
      AND died_at >= coalesce(%(since)s::timestamptz, '-infinity')
      AND died_at < coalesce(%(until)s::timestamptz, 'infinity')
      AND (%(reason)s::text IS NULL OR position(lower(%(reason)s::text) IN lower(reason)) > 0)
"""

LIST_DEAD = f"""
SELECT {", ".join(DeadRun._fields)} FROM dead_runs d
WHERE {_MATCHES} AND (died_at, run_id) > (coalesce(%(after_at)s::timestamptz, '-infinity'), %(after_id)s::uuid)
ORDER BY died_at, run_id LIMIT %(limit)s
"""
_FIRST_ID = UUID(int=0)


async def list_dead(
    conn: Connection, which: DeadFilter, *, limit: int = 100, after: tuple[datetime, UUID] | None = None
) -> list[DeadRun]:
    """Dead runs in the order in which they died, at most `limit`. after: (died_at, run_id) of the last one seen."""
    after_at, after_id = after or (None, _FIRST_ID)
    asked = {**_asked(which), "limit": limit, "after_at": after_at, "after_id": after_id}
    return [DeadRun(*row) for row in await (await conn.execute(LIST_DEAD, asked)).fetchall()]


COUNT_DEAD = f"SELECT count(*) FROM dead_runs d WHERE {_MATCHES}"


async def count_dead(conn: Connection, which: DeadFilter) -> int:
    """How many dead runs there are of these."""
    row = await (await conn.execute(COUNT_DEAD, _asked(which))).fetchone()
    assert row is not None
    count: int = row[0]
    return count


def _asked(which: DeadFilter) -> dict[str, Any]:
    return which._asdict() | {"queues": None if which.queues is None else list(which.queues)}


class Replay(NamedTuple):
    """due_at: None for at once."""

    run_id: UUID
    due_at: datetime | None = None


class Replayed(NamedTuple):
    """run_ids: every run that got new attempts. waiting: those of them whose job is not paused."""

    run_ids: list[UUID]
    waiting: list[PendingRun]


_WHEN = {"attempts": "attempt", "scheduled_for": "scheduled_for", "due_at": "due_at", "reasons": "'replayed'::text"}

# The policies are those the job has now; the rest is the run's own. Its lease token goes on growing from where it was.
REPLAY_RUNS = f"""
WITH back AS (
    DELETE FROM dead_runs d
    USING unnest(%(run_ids)b::uuid[], %(due_at)b::timestamptz[]) AS a (run_id, due_at), jobs j
    WHERE d.run_id = a.run_id AND d.partition = %(partition)s AND j.job_id = d.job_id AND j.state <> 'deleted'
    RETURNING d.*, coalesce(a.due_at, %(now)s::timestamptz, now()) AS due_at, j.overlap, j.timeout_s,
              j.concurrency_key, CASE j.state WHEN 'paused' THEN 'held' ELSE 'pending' END AS state
), replayed AS (
    INSERT INTO runs (run_id, job_id, partition, tenant, queue, lane, state, version, max_attempts, lease_token,
                      scheduled_for, due_at, payload, overlap, timeout_s, concurrency_key)
    SELECT run_id, job_id, partition, tenant, queue, lane, state, version + 1, max_attempts, lease_token,
           scheduled_for, due_at, payload, overlap, timeout_s, concurrency_key
    FROM back
    RETURNING *
), run_event AS (
    {emit("run_scheduled", "replayed WHERE state = 'pending'", **_WHEN)}
), hold_event AS (
    {emit("run_held", "replayed WHERE state = 'held'", **_WHEN)}
)
SELECT {RUN_COLUMNS}, state FROM replayed
"""


async def replay_runs(tx: OwnerTransaction, replays: Sequence[Replay], *, now: datetime | None = None) -> Replayed:
    """Give dead runs of the partition (distinct ones) new attempts, unless their job was deleted.

    A replay waits its turn under its job's overlap rule: it is not skipped.
    """
    replays = sorted(replays, key=lambda replay: replay.run_id)
    run_ids = [replay.run_id for replay in replays]
    await hold_job_states(tx.conn, run_ids)
    given = {"run_ids": run_ids, "due_at": [replay.due_at for replay in replays], "partition": tx.fence.partition}
    rows = await (await tx.conn.execute(REPLAY_RUNS, {**given, "now": now})).fetchall()
    return Replayed([row[0] for row in rows], [PendingRun(*row[:-1]) for row in rows if row[-1] == "pending"])
