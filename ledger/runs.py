"""Runs that are to run or running: how they come into being beside the schedule, and how they are looked up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ledger.connection import Connection
from ledger.fence import OwnerTransaction
from ledger.outbox import emit


class PendingRun(NamedTuple):
    """What an owner must remember of a run that waits."""

    run_id: UUID
    job_id: UUID
    tenant: str
    queue: str
    lane: int
    version: int
    scheduled_for: datetime
    due_at: datetime


RUN_COLUMNS = ", ".join(PendingRun._fields)


class ManualRun(NamedTuple):
    """A run beside the schedule, at once. payload: instead of the job's own, or None."""

    job_id: UUID
    run_id: UUID
    scheduled_for: datetime
    payload: str | None


TRIGGER_JOBS = f"""
WITH made AS (
    INSERT INTO runs (run_id, job_id, partition, tenant, queue, lane, max_attempts, scheduled_for, due_at, payload)
    SELECT m.run_id, j.job_id, j.partition, j.tenant, j.queue, j.lane, j.max_attempts, m.scheduled_for,
           least(m.scheduled_for, coalesce(%(now)s::timestamptz, now())), coalesce(m.payload, j.payload)
    FROM unnest(%(job_id)s::uuid[], %(run_id)s::uuid[], %(scheduled_for)s::timestamptz[], %(payload)s::text[])
             AS m (job_id, run_id, scheduled_for, payload), jobs j
    WHERE j.job_id = m.job_id
    ON CONFLICT (run_id) DO NOTHING
    RETURNING *
), event AS (
    {emit("run_scheduled", "made", scheduled_for="scheduled_for", due_at="due_at", reasons="'triggered'::text")}
)
SELECT {RUN_COLUMNS} FROM made
"""


async def trigger_jobs(
    tx: OwnerTransaction, runs: Sequence[ManualRun], *, now: datetime | None = None
) -> list[PendingRun]:
    """Make manual runs of existing jobs; returns those that were not there yet."""
    columns = {field: [getattr(run, field) for run in runs] for field in ManualRun._fields}
    cursor = await tx.conn.execute(TRIGGER_JOBS, {**columns, "now": now})
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
    state: str
    lease_expires_at: datetime | None


READ_PARTITION_RUNS = f"""
SELECT {RUN_COLUMNS}, state, lease_expires_at FROM runs WHERE partition = %s AND state <> 'held'
"""


async def read_partition_runs(conn: Connection, partition: int) -> AsyncIterator[LiveRun]:
    """All pending and leased runs of a partition, streamed: memory stays bounded however many there are."""
    async with conn.transaction(), conn.cursor(name="partition_runs") as cursor:
        # A large partition takes longer than a writer may; nothing waits for a reader.
        await conn.execute("SET LOCAL transaction_timeout = 0")
        cursor.itersize = 5_000
        await cursor.execute(READ_PARTITION_RUNS, (partition,))
        async for row in cursor:
            yield LiveRun(*row)


class DueRun(NamedTuple):
    """A run that could be leased now, as a hint would tell it."""

    tenant: str
    queue: str
    lane: int
    run_id: UUID
    epoch: int


FIND_DUE = """
SELECT asked.tenant, asked.queue, lanes.lane, due.run_id, p.epoch
FROM unnest(%(tenants)s::text[], %(queues)s::text[]) AS asked (tenant, queue),
     generate_series(0, 2) AS lanes (lane),
     LATERAL (
         SELECT r.run_id, r.partition FROM runs r
         WHERE r.tenant = asked.tenant AND r.queue = asked.queue AND r.lane = lanes.lane
           AND r.due_at <= coalesce(%(now)s::timestamptz, now()) AND r.state = 'pending'
         ORDER BY r.due_at LIMIT %(limit)s
     ) AS due,
     partitions p
WHERE p.partition = due.partition
"""


async def find_due(
    conn: Connection, queues: Sequence[tuple[str, str]], limit: int, *, now: datetime | None = None
) -> list[DueRun]:
    """Up to `limit` due runs of each lane of each (tenant, queue), oldest first: what hints may have missed."""
    cursor = await conn.execute(
        FIND_DUE,
        {
            "tenants": [tenant for tenant, _ in queues],
            "queues": [queue for _, queue in queues],
            "limit": limit,
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


READ_RUN = """
SELECT run_id, job_id, tenant, queue, lane, state, version, attempt, max_attempts, lease_token, scheduled_for, due_at,
       lease_expires_at, worker_id, NULL
FROM runs WHERE run_id = %(run_id)s
UNION ALL
SELECT run_id, job_id, tenant, queue, lane, 'dead', version, attempt, max_attempts, lease_token, scheduled_for, NULL,
       NULL, worker_id, reason
FROM dead_runs WHERE run_id = %(run_id)s
"""


async def read_run(conn: Connection, run_id: UUID) -> RunState | None:
    """A run that is waiting, running, held or dead; None when it was never made, or finished."""
    row = await (await conn.execute(READ_RUN, {"run_id": run_id})).fetchone()
    return RunState(*row) if row else None


READ_RUNS = f"""
SELECT {RUN_COLUMNS}, state, lease_expires_at FROM runs WHERE run_id = ANY(%s) AND state <> 'held'
"""


async def read_runs(conn: Connection, run_ids: Sequence[UUID]) -> list[LiveRun]:
    """Those of the runs that are pending or leased."""
    return [LiveRun(*row) for row in await (await conn.execute(READ_RUNS, (list(run_ids),))).fetchall()]
