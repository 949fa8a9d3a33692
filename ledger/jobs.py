"""Jobs: what commands make of them, and the cursor that decides each occurrence once.

Only a partition's owner writes its jobs, so what it reads inside its fenced transaction stays true until it commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ledger.connection import Connection
from ledger.fence import OwnerTransaction, change_job_states, hold_job_states
from ledger.outbox import emit
from ledger.runs import RUN_COLUMNS, PendingRun


class Job(NamedTuple):
    """definition: the spec as JSON without its payload. next_fire_at: the pending occurrence, or None."""

    job_id: UUID
    partition: int
    tenant: str
    state: str
    version: int
    queue: str
    lane: int
    definition: str
    payload: str | None
    max_attempts: int
    next_fire_at: datetime | None
    created_at: datetime
    paused_at: datetime | None


_JOB_COLUMNS = ", ".join(Job._fields)

READ_JOBS = f"SELECT {_JOB_COLUMNS} FROM jobs WHERE job_id = ANY(%s)"


async def read_jobs(conn: Connection, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
    """Those of the jobs that exist, deleted ones included."""
    rows = await (await conn.execute(READ_JOBS, (list(job_ids),))).fetchall()
    return {job.job_id: job for job in (Job(*row) for row in rows)}


READ_PARTITION_JOBS = f"SELECT {_JOB_COLUMNS} FROM jobs WHERE partition = %s AND state <> 'deleted'"


async def read_partition_jobs(conn: Connection, partition: int) -> list[Job]:
    """All jobs of a partition, to rebuild an owner's memory from."""
    rows = await (await conn.execute(READ_PARTITION_JOBS, (partition,))).fetchall()
    return [Job(*row) for row in rows]


class NewJob(NamedTuple):
    """A job to create, with its first occurrence: run_id and due_at are None exactly when next_fire_at is."""

    job_id: UUID
    tenant: str
    queue: str
    lane: int
    definition: str
    payload: str | None
    max_attempts: int
    next_fire_at: datetime | None
    created_at: datetime
    run_id: UUID | None
    due_at: datetime | None


CREATE_JOBS = f"""
WITH made AS (
    INSERT INTO jobs (job_id, partition, tenant, queue, lane, definition, payload, max_attempts, next_fire_at,
                      created_at)
    SELECT job_id, %(partition)s, tenant, queue, lane, definition, payload, max_attempts, next_fire_at, created_at
    FROM unnest(%(job_id)s::uuid[], %(tenant)s::text[], %(queue)s::text[], %(lane)s::smallint[], %(definition)s::text[],
                %(payload)s::text[], %(max_attempts)s::smallint[], %(next_fire_at)s::timestamptz[],
                %(created_at)s::timestamptz[])
             AS n (job_id, tenant, queue, lane, definition, payload, max_attempts, next_fire_at, created_at)
    ON CONFLICT (job_id) DO NOTHING
    RETURNING *
), first AS (
    INSERT INTO runs (run_id, job_id, partition, tenant, queue, lane, max_attempts, scheduled_for, due_at, payload)
    SELECT n.run_id, m.job_id, m.partition, m.tenant, m.queue, m.lane, m.max_attempts, m.next_fire_at, n.due_at,
           m.payload
    FROM unnest(%(job_id)s::uuid[], %(run_id)s::uuid[], %(due_at)s::timestamptz[]) AS n (job_id, run_id, due_at), made m
    WHERE m.job_id = n.job_id AND n.run_id IS NOT NULL
    ON CONFLICT (run_id) DO NOTHING
    RETURNING *
), job_event AS (
    {emit("job_created", "made", definitions="definition", scheduled_for="created_at", due_at="next_fire_at")}
), run_event AS (
    {emit("run_scheduled", "first", scheduled_for="scheduled_for", due_at="due_at")}
)
SELECT {RUN_COLUMNS} FROM first
"""


async def create_jobs(tx: OwnerTransaction, jobs: Sequence[NewJob], *, now: datetime | None = None) -> list[PendingRun]:
    """Create jobs (of distinct ids, none of them existing) with their first runs; returns those runs."""
    columns = {field: [getattr(job, field) for job in jobs] for field in NewJob._fields}
    cursor = await tx.conn.execute(CREATE_JOBS, {**columns, "partition": tx.fence.partition, "now": now})
    return [PendingRun(*row) for row in await cursor.fetchall()]


PAUSE_JOBS = f"""
WITH changed AS (
    UPDATE jobs j SET state = 'paused', paused_at = coalesce(%(now)s::timestamptz, now()), version = j.version + 1,
                      updated_at = now()
    WHERE j.job_id = ANY(%(job_ids)s::uuid[]) AND j.state = 'active'
    RETURNING j.*
), held AS (
    UPDATE runs r SET state = 'held', version = r.version + 1
    FROM changed j
    WHERE r.partition = j.partition AND r.job_id = j.job_id AND r.state = 'pending'
    RETURNING r.*
), job_event AS (
    {emit("job_paused", "changed", definitions="definition", scheduled_for="created_at", due_at="next_fire_at")}
), run_event AS (
    {emit("run_held", "held", attempts="attempt", scheduled_for="scheduled_for", due_at="due_at")}
)
SELECT run_id FROM held
"""


async def pause_jobs(tx: OwnerTransaction, job_ids: Sequence[UUID], *, now: datetime | None = None) -> list[UUID]:
    """Pause active jobs and put their pending runs aside; returns the ids of those.

    A leased run goes on; should it come back, it is put aside then (see ledger/returns.py).
    """
    await change_job_states(tx)
    cursor = await tx.conn.execute(PAUSE_JOBS, {"job_ids": list(job_ids), "now": now})
    return [row[0] for row in await cursor.fetchall()]


class Resumption(NamedTuple):
    """How a paused job goes on.

    next_fire_at: its cursor from now on. skipped_run_id: the held run of an occurrence that passed during the pause,
    or None. run_id, due_at: the run of next_fire_at, or None when it is there already (held) or no occurrence is left.
    """

    job_id: UUID
    next_fire_at: datetime | None
    skipped_run_id: UUID | None
    run_id: UUID | None
    due_at: datetime | None


RESUME_JOBS = f"""
WITH asked AS (
    SELECT * FROM unnest(%(job_id)s::uuid[], %(next_fire_at)s::timestamptz[], %(skipped_run_id)s::uuid[],
                         %(run_id)s::uuid[], %(due_at)s::timestamptz[])
                  AS a (job_id, next_fire_at, skipped_run_id, run_id, due_at)
), changed AS (
    UPDATE jobs j SET state = 'active', paused_at = NULL, version = j.version + 1, next_fire_at = a.next_fire_at,
                      updated_at = now()
    FROM asked a WHERE j.job_id = a.job_id AND j.state = 'paused'
    RETURNING j.*, a.skipped_run_id, a.run_id, a.due_at
), skipped AS (
    DELETE FROM runs r USING changed c WHERE r.run_id = c.skipped_run_id AND r.state = 'held'
    RETURNING r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane, r.version + 1 AS version, r.attempt,
              r.scheduled_for
), released AS (
    UPDATE runs r SET state = 'pending', version = r.version + 1
    FROM changed c
    WHERE r.partition = c.partition AND r.job_id = c.job_id AND r.state = 'held'
      AND r.run_id IS DISTINCT FROM c.skipped_run_id
    RETURNING r.*
), next AS (
    INSERT INTO runs (run_id, job_id, partition, tenant, queue, lane, max_attempts, scheduled_for, due_at, payload)
    SELECT run_id, job_id, partition, tenant, queue, lane, max_attempts, next_fire_at, due_at, payload
    FROM changed WHERE run_id IS NOT NULL
    ON CONFLICT (run_id) DO NOTHING
    RETURNING *
), waiting AS (
    SELECT * FROM released UNION ALL SELECT * FROM next
), job_event AS (
    {emit("job_resumed", "changed", definitions="definition", scheduled_for="created_at", due_at="next_fire_at")}
), skip_event AS (
    {
    emit(
        "run_skipped",
        "skipped",
        attempts="attempt",
        scheduled_for="scheduled_for",
        reasons="'its job was paused'::text",
    )
}
), run_event AS (
    {emit("run_scheduled", "waiting", attempts="attempt", scheduled_for="scheduled_for", due_at="due_at")}
)
SELECT {RUN_COLUMNS} FROM waiting
"""


async def resume_jobs(
    tx: OwnerTransaction, resumptions: Sequence[Resumption], *, now: datetime | None = None
) -> list[PendingRun]:
    """Let paused jobs go on; returns the runs that wait from now on."""
    await change_job_states(tx)
    columns = {field: [getattr(each, field) for each in resumptions] for field in Resumption._fields}
    cursor = await tx.conn.execute(RESUME_JOBS, {**columns, "now": now})
    return [PendingRun(*row) for row in await cursor.fetchall()]


DELETE_JOBS = f"""
WITH changed AS (
    UPDATE jobs j SET state = 'deleted', paused_at = NULL, next_fire_at = NULL, version = j.version + 1,
                      updated_at = now()
    WHERE j.job_id = ANY(%(job_ids)s::uuid[]) AND j.state <> 'deleted'
    RETURNING j.*
), dropped AS (
    DELETE FROM runs r USING changed j
    WHERE r.partition = j.partition AND r.job_id = j.job_id AND r.state <> 'leased'
    RETURNING r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane, r.version + 1 AS version, r.attempt,
              r.scheduled_for
), job_event AS (
    {emit("job_deleted", "changed", definitions="definition", scheduled_for="created_at")}
), run_event AS (
    {
    emit(
        "run_cancelled",
        "dropped",
        attempts="attempt",
        scheduled_for="scheduled_for",
        reasons="'its job was deleted'::text",
    )
}
)
SELECT run_id FROM dropped
"""


async def delete_jobs(tx: OwnerTransaction, job_ids: Sequence[UUID], *, now: datetime | None = None) -> list[UUID]:
    """End jobs and drop the runs that nobody has leased; returns the ids of those.

    A leased run may still be completed; should it come back, it is dropped then (see ledger/returns.py).
    """
    await change_job_states(tx)
    cursor = await tx.conn.execute(DELETE_JOBS, {"job_ids": list(job_ids), "now": now})
    return [row[0] for row in await cursor.fetchall()]


class Advance(NamedTuple):
    """Moves a job's cursor from fired_at, if it is still there under this version, to next_fire_at with its run."""

    job_id: UUID
    version: int
    fired_at: datetime
    next_fire_at: datetime | None
    run_id: UUID | None
    due_at: datetime | None


ADVANCE_JOBS = f"""
WITH moved AS (
    UPDATE jobs j SET next_fire_at = a.next_fire_at
    FROM unnest(%(job_id)s::uuid[], %(version)s::int[], %(fired_at)s::timestamptz[], %(next_fire_at)s::timestamptz[],
                %(run_id)s::uuid[], %(due_at)s::timestamptz[])
             AS a (job_id, version, fired_at, next_fire_at, run_id, due_at)
    WHERE j.job_id = a.job_id AND j.version = a.version AND j.next_fire_at = a.fired_at AND j.state = 'active'
    RETURNING j.*, a.run_id, a.due_at
), next AS (
    INSERT INTO runs (run_id, job_id, partition, tenant, queue, lane, max_attempts, scheduled_for, due_at, payload)
    SELECT run_id, job_id, partition, tenant, queue, lane, max_attempts, next_fire_at, due_at, payload
    FROM moved WHERE run_id IS NOT NULL
    ON CONFLICT (run_id) DO NOTHING
    RETURNING *
), run_event AS (
    {emit("run_scheduled", "next", scheduled_for="scheduled_for", due_at="due_at")}
)
SELECT {RUN_COLUMNS} FROM next
"""


async def advance_jobs(
    tx: OwnerTransaction, advances: Sequence[Advance], *, now: datetime | None = None
) -> list[PendingRun]:
    """Decide the next occurrence of jobs whose pending one has come; returns the new runs.

    A job that was changed or advanced meanwhile is left alone: each occurrence is decided exactly once.
    """
    advances = sorted(advances, key=lambda advance: advance.job_id)
    await hold_job_states(tx.conn, [advance.run_id for advance in advances if advance.run_id])
    columns = {field: [getattr(each, field) for each in advances] for field in Advance._fields}
    cursor = await tx.conn.execute(ADVANCE_JOBS, {**columns, "now": now})
    return [PendingRun(*row) for row in await cursor.fetchall()]
