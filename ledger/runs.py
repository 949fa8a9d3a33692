"""Runs that are to run or running: how they come into being beside the schedule, and how they are looked up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ledger.connection import Connection, read_batches
from ledger.fence import OwnerTransaction
from ledger.outbox import emit
from ledger.partitions import held_here
from ledger.slots import MAY_TAKE_SLOT
from schemas.commands import LANES


class PendingRun(NamedTuple):
    """What an owner must remember of a run that waits. overlap: 0 allow, 1 skip, 2 replace, 3 in turn; not 0: gated."""

    run_id: UUID
    job_id: UUID
    tenant: str
    queue: str
    lane: int
    version: int
    scheduled_for: datetime
    due_at: datetime
    overlap: int = 0


RUN_COLUMNS = ", ".join(PendingRun._fields)


def make_run(
    source: str,
    *,
    payload: str = "j.payload",
    state: str = "'pending'",
    start_by: bool = True,
    due_at: str = "j.due_at",
    rate_version: str = "NULL",
) -> str:
    """SQL that makes a run of each row `j` of `source` (its FROM clause, maybe with a WHERE), as its job says.

    Needs the columns of jobs in `j`, and j.run_id, j.scheduled_for, j.due_at. start_by: whether the job's deadline for
    the start holds; it counts from j.due_at, also when `due_at` says otherwise. The first version of a run is larger
    than any that a run of the same id can have had which an edit took away: no such run was ever leased, so its version
    grew only when its job's did. (That of a made-up run grows more, but no edit fires for the past.)
    """
    deadline = "j.due_at + j.start_deadline_s * interval '1 second'" if start_by else "NULL"
    return f"""
    INSERT INTO runs (run_id, job_id, partition, tenant, queue, lane, max_attempts, scheduled_for, due_at, payload,
                      overlap, timeout_s, concurrency_key, start_by, version, state, rate_version)
    SELECT j.run_id, j.job_id, j.partition, j.tenant, j.queue, j.lane, j.max_attempts, j.scheduled_for, {due_at},
           {payload}, j.overlap, j.timeout_s, j.concurrency_key, {deadline},
           CASE WHEN j.edited_at IS NULL THEN 1 ELSE 2 * j.version - 1 END, {state}, {rate_version}
    FROM {source}
    """


class ManualRun(NamedTuple):
    """A run beside the schedule. payload: instead of the job's own, or None. due_at: None for at once.

    in_turn: unless its job allows overlap, it waits for others of the job, is never skipped and replaces none.
    """

    job_id: UUID
    run_id: UUID
    scheduled_for: datetime
    payload: str | None
    due_at: datetime | None = None
    in_turn: bool = False


TRIGGER_JOBS = f"""
WITH asked AS (
    SELECT j.job_id, j.partition, j.tenant, j.queue, j.lane, j.max_attempts, j.timeout_s, j.start_deadline_s,
           j.concurrency_key, j.version, j.edited_at, m.run_id, m.scheduled_for,
           coalesce(m.payload, j.payload) AS own_payload,
           coalesce(m.due_at, least(m.scheduled_for, coalesce(%(now)s::timestamptz, now()))) AS due_at,
           CASE WHEN m.in_turn AND j.overlap <> 0 THEN 3 ELSE j.overlap END AS overlap
    FROM unnest(%(job_id)b::uuid[], %(run_id)b::uuid[], %(scheduled_for)b::timestamptz[], %(payload)b::text[],
                %(due_at)b::timestamptz[], %(in_turn)b::bool[])
             AS m (job_id, run_id, scheduled_for, payload, due_at, in_turn),
         jobs j
    WHERE j.job_id = m.job_id
), made AS (
    {make_run("asked j", payload="j.own_payload", start_by=False)}
    ON CONFLICT (run_id) DO NOTHING
    RETURNING *
), event AS (
    {emit("run_scheduled", "made", scheduled_for="scheduled_for", due_at="due_at", reasons="%(reason)s::text")}
)
SELECT {RUN_COLUMNS} FROM made
"""


async def trigger_jobs(
    tx: OwnerTransaction, runs: Sequence[ManualRun], *, reason: str = "triggered", now: datetime | None = None
) -> list[PendingRun]:
    """Make manual runs of existing jobs; returns those that were not there yet. No job's cursor moves.

    reason: the event's, `triggered` or `backfill`. Nobody's clock made them due, so no deadline for their start holds.
    """
    columns = {field: [getattr(run, field) for run in runs] for field in ManualRun._fields}
    cursor = await tx.conn.execute(TRIGGER_JOBS, {**columns, "reason": reason, "now": now})
    return [PendingRun(*row) for row in await cursor.fetchall()]


class LiveRun(NamedTuple):
    """A run of the hot table, for an owner that rebuilds its memory."""

    run_id: UUID
    job_id: UUID
    tenant: str
    queue: str
    lane: int
    version: int
    scheduled_for: datetime
    due_at: datetime
    overlap: int
    state: str
    lease_expires_at: datetime | None


READ_PARTITION_RUNS = f"""
SELECT {RUN_COLUMNS}, state, lease_expires_at FROM runs WHERE partition = %s AND state <> 'held'
"""


def read_partition_runs(conn: Connection, partition: int) -> AsyncIterator[list[LiveRun]]:
    """All pending and leased runs of a partition, in batches."""
    return read_batches(conn, LiveRun, READ_PARTITION_RUNS, (partition,))


READ_OVERDUE_RUNS = f"{READ_PARTITION_RUNS} AND coalesce(lease_expires_at, due_at) < now() - %s * interval '1 second'"


def read_overdue_runs(conn: Connection, partition: int, overdue_s: float) -> AsyncIterator[list[LiveRun]]:
    """Those that have been due for that long, or whose lease has been over: what an owner should long have known."""
    return read_batches(conn, LiveRun, READ_OVERDUE_RUNS, (partition, overdue_s))


class DueRun(NamedTuple):
    """A run that could be leased now, as a hint would tell it."""

    tenant: str
    queue: str
    lane: int
    run_id: UUID
    epoch: int


FIND_DUE = f"""
SELECT asked.tenant, asked.queue, asked.lane, due.run_id, p.epoch
FROM unnest(%(tenants)b::text[], %(queues)b::text[], %(lanes)b::smallint[]) AS asked (tenant, queue, lane),
     LATERAL (
         SELECT r.run_id, r.partition FROM runs r
         WHERE r.tenant = asked.tenant AND r.queue = asked.queue AND r.lane = asked.lane
           AND r.due_at <= coalesce(%(now)s::timestamptz, now()) AND r.state = 'pending'
           AND (r.start_by IS NULL OR r.start_by >= coalesce(%(now)s::timestamptz, now()))
           AND (r.overlap = 0 OR ({MAY_TAKE_SLOT})) AND {held_here("r")}
           AND (r.concurrency_key IS NULL
                OR r.tenant || ' ' || r.queue || ' ' || r.concurrency_key <> ALL (%(full_keys)b::text[]))
         ORDER BY r.due_at LIMIT %(limit)s
     ) AS due,
     partitions p
WHERE p.partition = due.partition AND NOT EXISTS (
    SELECT FROM pauses s WHERE s.tenant = asked.tenant AND (s.queue IS NULL OR s.queue = asked.queue)
       AND s.resumed_at IS NULL)
"""


async def find_due(
    conn: Connection,
    queues: Sequence[tuple[str, str]],
    limit: int,
    *,
    lanes: Mapping[tuple[str, str], Sequence[int]] | None = None,
    full_keys: Sequence[tuple[str, str, str]] = (),
    now: datetime | None = None,
) -> list[DueRun]:
    """Up to `limit` due runs of each lane of each (tenant, queue), oldest first: what hints may have missed.

    lanes: of the queues that are in it no others. full_keys: concurrency keys, each of a tenant's queue, to leave out.

    Only such as could be leased: none of a paused queue, none too late to start, none whose job's slot is taken or
    whose turn it is not.
    """
    asked = [(*queue, lane) for queue in queues for lane in (lanes or {}).get(queue, range(len(LANES)))]
    cursor = await conn.execute(
        FIND_DUE,
        {
            "tenants": [tenant for tenant, _, _ in asked],
            "queues": [queue for _, queue, _ in asked],
            "lanes": [lane for _, _, lane in asked],
            "limit": limit,
            "full_keys": [" ".join(key) for key in full_keys],
            "now": now,
        },
    )
    return [DueRun(*row) for row in await cursor.fetchall()]


class RunState(NamedTuple):
    """A run as the ledger knows it: live, held or dead."""

    run_id: UUID
    job_id: UUID
    tenant: str
    queue: str
    lane: int
    state: str
    version: int
    attempt: int
    max_attempts: int
    lease_token: int
    scheduled_for: datetime
    due_at: datetime | None
    lease_expires_at: datetime | None
    worker_id: str | None
    reason: str | None
    overlap: int
    start_by: datetime | None
    attempt_ends_at: datetime | None
    cancel_reason: str | None
    progress: str | None
    concurrency_key: str | None


READ_RUN = """
SELECT run_id, job_id, tenant, queue, lane, state, version, attempt, max_attempts, lease_token, scheduled_for, due_at,
       lease_expires_at, worker_id, NULL, overlap, start_by, attempt_ends_at, cancel_reason, progress, concurrency_key
FROM runs WHERE run_id = %(run_id)s
UNION ALL
SELECT run_id, job_id, tenant, queue, lane, 'dead', version, attempt, max_attempts, lease_token, scheduled_for, NULL,
       NULL, worker_id, reason, 0, NULL, NULL, NULL, NULL, NULL
FROM dead_runs WHERE run_id = %(run_id)s
"""


async def read_run(conn: Connection, run_id: UUID) -> RunState | None:
    """A run that is waiting, running, held or dead; None when it was never made, or finished."""
    row = await (await conn.execute(READ_RUN, {"run_id": run_id})).fetchone()
    return RunState(*row) if row else None


READ_RUNS = f"""
SELECT {RUN_COLUMNS}, state, lease_expires_at FROM runs WHERE run_id = ANY(%b) AND state <> 'held'
"""


async def read_runs(conn: Connection, run_ids: Sequence[UUID]) -> list[LiveRun]:
    """Those of the runs that are pending or leased."""
    return [LiveRun(*row) for row in await (await conn.execute(READ_RUNS, (list(run_ids),))).fetchall()]
