"""What a due run must pass before its owner hints it: its job's overlap rule, and the deadline for its start.

Whatever is decided here, a job's slot (see ledger/leases.py) keeps two of its gated runs from being leased at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ledger.cancellations import CANCEL_DOOMED
from ledger.connection import Connection
from ledger.fence import OwnerTransaction
from ledger.outbox import emit


class Admission(NamedTuple):
    """What became of the runs that were asked for, all of them; see the events for why.

    ready: may be hinted, at most one of a job, maybe one that was not asked for and goes before those that were.
    waiting: stay pending until it is their turn. over: skipped or replaced just now, or not pending and due any more.
    """

    ready: list[UUID]
    waiting: list[UUID]
    over: list[UUID]


# All runs of the jobs of those asked for, but for a backfill's long line: who waits in turn hinders nobody. After it,
# the later statements of the transaction see what every lease and every end of one has made of these runs, and nothing
# changes them until the transaction ends. They see runs, too, that were committed while it waited: such a one may be
# leased at this moment, so what is not locked is judged next time.
LOCK_SIBLINGS = """
SELECT r.run_id FROM runs r
WHERE r.partition = %(partition)s AND r.job_id = ANY (ARRAY(
    SELECT a.job_id FROM runs a WHERE a.run_id = ANY (%(run_ids)b::uuid[]) AND a.overlap <> 0))
  AND NOT (r.overlap = 3 AND r.lease_token = 0 AND r.state = 'pending')
ORDER BY r.run_id FOR UPDATE
"""

_ASKED = """
    SELECT r.* FROM unnest(%(run_ids)b::uuid[]) AS a (run_id), runs r
    WHERE r.run_id = a.run_id AND r.partition = %(partition)s AND r.overlap <> 0 AND r.state = 'pending'
      AND r.due_at <= coalesce(%(now)s::timestamptz, now())
"""
# Whether sibling s of the fresh run r came before it and is not over: it is leased, or was and waits for a retry, or it
# waits for its first lease and was due before. One that is still to go in turn never counts.
_IS_BEFORE = """
    s.partition = r.partition AND s.job_id = r.job_id AND s.run_id <> r.run_id
      AND (s.state = 'leased' OR s.lease_token > 0
           OR (s.state = 'pending' AND s.overlap <> 3 AND s.due_at <= coalesce(%(now)s::timestamptz, now())
               AND (s.due_at, s.scheduled_for, s.run_id) < (r.due_at, r.scheduled_for, r.run_id)))
"""

# A run that was leased before has passed the rule: it is neither skipped nor does it replace, it waits for its turn.
SKIP_OVERLAPPING = f"""
WITH asked AS ({_ASKED}), blocked AS (
    SELECT r.run_id, active.run_id AS active_id
    FROM asked r, LATERAL (
        SELECT s.run_id FROM runs s WHERE {_IS_BEFORE}
        ORDER BY s.state = 'leased' DESC, s.lease_token > 0 DESC, s.due_at, s.scheduled_for, s.run_id LIMIT 1
    ) AS active
    WHERE r.overlap = 1 AND r.lease_token = 0 AND r.run_id = ANY (%(locked)b::uuid[])
), skipped AS (
    DELETE FROM runs r USING blocked b WHERE r.run_id = b.run_id
    RETURNING r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane, r.version + 1 AS version, r.attempt,
              r.scheduled_for, 'overlap: run ' || b.active_id || ' is active' AS reason
), skip_event AS (
    {emit("run_skipped", "skipped", attempts="attempt", scheduled_for="scheduled_for", reasons="reason")}
)
SELECT run_id FROM skipped
"""

REPLACE_OVERLAPPED = f"""
WITH asked AS ({_ASKED}), doomed AS (
    SELECT DISTINCT s.run_id, s.state, 'replaced'::text AS reason
    FROM asked r, runs s
    WHERE r.overlap = 2 AND r.lease_token = 0 AND {_IS_BEFORE} AND s.run_id = ANY (%(locked)b::uuid[])
), {CANCEL_DOOMED}
SELECT run_id FROM gone
"""

# Of a job's due runs the first one is ready while none is leased: those that go in turn come last, and start only when
# nothing that has started waits for its next attempt.
READY_OR_WAITING = f"""
WITH asked AS ({_ASKED}), siblings AS (
    SELECT r.run_id, r.job_id, r.state, r.lease_token, r.due_at, r.scheduled_for,
           r.overlap = 3 AND r.lease_token = 0 AS in_turn,
           r.overlap <> 0 AND r.state = 'pending' AND r.due_at <= coalesce(%(now)s::timestamptz, now()) AS waits
    FROM runs r
    WHERE r.partition = %(partition)s AND r.job_id = ANY (ARRAY(SELECT job_id FROM asked))
), line AS (
    SELECT run_id, waits, in_turn, bool_or(state = 'leased') OVER (PARTITION BY job_id) AS busy,
           bool_or(state = 'pending' AND lease_token > 0) OVER (PARTITION BY job_id) AS started,
           row_number() OVER (PARTITION BY job_id, waits ORDER BY in_turn, due_at, scheduled_for, run_id) AS place
    FROM siblings
)
SELECT run_id, ready FROM (
    SELECT run_id, place = 1 AND NOT busy AND NOT (in_turn AND started) AS ready FROM line WHERE waits) AS judged
WHERE ready OR run_id = ANY (%(run_ids)b::uuid[])
"""


async def admit_runs(tx: OwnerTransaction, run_ids: Sequence[UUID], *, now: datetime | None = None) -> Admission:
    """Apply the overlap rule of their jobs to due runs that are gated, before any of them is hinted.

    skip: a run is skipped while another of its job is active: leased, waiting for a retry, or waiting since before.
    replace: those others are cancelled, a leased one through its worker's next heartbeat. A run that goes in turn is
    neither skipped, nor does it replace any, nor is it active before it has started.
    """
    asked = {"run_ids": sorted(run_ids), "partition": tx.fence.partition, "now": now}
    siblings = await (await tx.conn.execute(LOCK_SIBLINGS, asked)).fetchall()
    asked["locked"] = [row[0] for row in siblings]
    await tx.conn.execute(SKIP_OVERLAPPING, asked)
    await tx.conn.execute(REPLACE_OVERLAPPED, asked)
    left: dict[UUID, bool] = dict(await (await tx.conn.execute(READY_OR_WAITING, asked)).fetchall())
    return Admission(
        [run_id for run_id, ready in left.items() if ready],
        [run_id for run_id, ready in left.items() if not ready],
        [run_id for run_id in run_ids if run_id not in left],
    )


FIND_LATE = """
SELECT run_id FROM runs
WHERE partition = %(partition)s AND start_by < coalesce(%(now)s::timestamptz, now()) AND state = 'pending'
ORDER BY start_by LIMIT %(limit)s
"""


async def find_late(conn: Connection, partition: int, limit: int, *, now: datetime | None = None) -> list[UUID]:
    """Up to `limit` runs that have not started and may not start any more, by their deadlines, for `skip_late`."""
    asked = {"partition": partition, "limit": limit, "now": now}
    return [row[0] for row in await (await conn.execute(FIND_LATE, asked)).fetchall()]


SKIP_LATE = f"""
WITH skipped AS (
    DELETE FROM runs r USING unnest(%(run_ids)b::uuid[]) AS a (run_id)
    WHERE r.run_id = a.run_id AND r.partition = %(partition)s AND r.state = 'pending'
      AND r.start_by < coalesce(%(now)s::timestamptz, now())
    RETURNING r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane, r.version + 1 AS version, r.attempt,
              r.scheduled_for, r.due_at
), skip_event AS (
    {
    emit(
        "run_skipped",
        "skipped",
        attempts="attempt",
        scheduled_for="scheduled_for",
        due_at="due_at",
        reasons="'start deadline'::text",
    )
}
)
SELECT run_id FROM skipped
"""


async def skip_late(tx: OwnerTransaction, run_ids: Sequence[UUID], *, now: datetime | None = None) -> list[UUID]:
    """Skip those of the runs that have not started and may not start any more; returns them. At start_by they may."""
    asked = {"run_ids": sorted(run_ids), "partition": tx.fence.partition, "now": now}
    return [row[0] for row in await (await tx.conn.execute(SKIP_LATE, asked)).fetchall()]
