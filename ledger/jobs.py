"""Jobs: what commands make of them. The cursor that decides each occurrence once is moved in ledger/advances.py.

Only a partition's owner writes its jobs, so what it reads inside its fenced transaction stays true until it commits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ledger.connection import Connection, read_batches
from ledger.fence import OwnerTransaction, change_job_states
from ledger.outbox import emit
from ledger.runs import RUN_COLUMNS, PendingRun, make_run
from schemas.commands import OVERLAPS, RETRY_BACKOFFS, JobSpec
from schemas.zones import TZDATA_VERSION


class Job(NamedTuple):
    """definition: the spec as JSON without its payload. next_fire_at: the pending occurrence, or None.

    tzdata_version: the rules that next_fire_at was computed with. edited_at: when its pending run was last replaced.
    """

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
    tzdata_version: str | None
    edited_at: datetime | None


_JOB_COLUMNS = ", ".join(Job._fields)

READ_JOBS = f"SELECT {_JOB_COLUMNS} FROM jobs WHERE job_id = ANY(%b)"


async def read_jobs(conn: Connection, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
    """Those of the jobs that exist, deleted ones included."""
    rows = await (await conn.execute(READ_JOBS, (list(job_ids),))).fetchall()
    return {job.job_id: job for job in (Job(*row) for row in rows)}


class TimedJob(NamedTuple):
    """What an owner must remember of a job with a pending occurrence. definition: as in Job."""

    job_id: UUID
    version: int
    next_fire_at: datetime
    created_at: datetime
    definition: str


# A job that fires once needs no timer beside its run's. Most of them are told by how their definition is written, which
# costs less than to read it; the others are for the reader to leave out.
READ_PARTITION_JOBS = f"""
SELECT {", ".join(TimedJob._fields)} FROM jobs
WHERE partition = %s AND state = 'active' AND next_fire_at IS NOT NULL
  AND definition NOT LIKE '%%"schedule":{{"runAt":%%' AND definition NOT LIKE '%%"schedule":{{"delaySeconds":%%'
"""


def read_partition_jobs(conn: Connection, partition: int) -> AsyncIterator[list[TimedJob]]:
    """The jobs of a partition that have a pending occurrence, without most of those that fire once, in batches."""
    return read_batches(conn, TimedJob, READ_PARTITION_JOBS, (partition,))


READ_OVERDUE_JOBS = f"{READ_PARTITION_JOBS} AND next_fire_at < now() - %s * interval '1 second'"


def read_overdue_jobs(conn: Connection, partition: int, overdue_s: float) -> AsyncIterator[list[TimedJob]]:
    """The same, but only those whose occurrence came that long ago and is not decided: few, if all goes well."""
    return read_batches(conn, TimedJob, READ_OVERDUE_JOBS, (partition, overdue_s))


class Policies(NamedTuple):
    """The policies of a job that statements read: columns of jobs. overlap, retry_backoff: the index of the word."""

    overlap: int = 0
    timeout_s: float | None = None
    start_deadline_s: float | None = None
    retry_backoff: int = 0
    retry_base_s: float = 1.0
    retry_max_s: float = 600.0
    concurrency_key: str | None = None


def policies_of(spec: JobSpec) -> Policies:
    return Policies(
        OVERLAPS.index(spec.overlap),
        spec.timeout_seconds,
        spec.start_deadline_seconds,
        RETRY_BACKOFFS.index(spec.retry_backoff),
        spec.retry_base_seconds,
        spec.retry_max_seconds,
        spec.concurrency_key,
    )


POLICY_COLUMNS = ", ".join(Policies._fields)
# The parameters that `policy_parameters` makes, as arguments of an unnest.
POLICY_ARRAYS = """%(overlap)b::smallint[], %(timeout_s)b::float8[], %(start_deadline_s)b::float8[],
    %(retry_backoff)b::smallint[], %(retry_base_s)b::float8[], %(retry_max_s)b::float8[], %(concurrency_key)b::text[]"""


def policy_parameters(all_of: Sequence[Policies]) -> dict[str, list[Any]]:
    """The columns of many jobs' policies, by name."""
    return {field: [getattr(policies, field) for policies in all_of] for field in Policies._fields}


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
    policies: Policies = Policies()


# IS TRUE keeps the planner from turning IN into a join, which could only be a nested loop over all pairs here.
CREATE_JOBS = f"""
WITH new AS MATERIALIZED (
    SELECT *, %(partition)s::int AS partition, next_fire_at AS scheduled_for, 1 AS version,
           NULL::timestamptz AS edited_at
    FROM unnest(%(job_id)b::uuid[], %(tenant)b::text[], %(queue)b::text[], %(lane)b::smallint[], %(definition)b::text[],
                %(payload)b::text[], %(max_attempts)b::smallint[], %(next_fire_at)b::timestamptz[],
                %(created_at)b::timestamptz[], %(run_id)b::uuid[], %(due_at)b::timestamptz[], {POLICY_ARRAYS})
             AS n (job_id, tenant, queue, lane, definition, payload, max_attempts, next_fire_at, created_at,
                   run_id, due_at, {POLICY_COLUMNS})
), made AS (
    INSERT INTO jobs (job_id, partition, tenant, queue, lane, definition, payload, max_attempts, next_fire_at,
                      created_at, tzdata_version, {POLICY_COLUMNS})
    SELECT job_id, partition, tenant, queue, lane, definition, payload, max_attempts, next_fire_at, created_at,
           %(tzdata)s, {POLICY_COLUMNS}
    FROM new
    ON CONFLICT (job_id) DO NOTHING
    RETURNING *
), first AS (
    {make_run("new AS j WHERE j.run_id IS NOT NULL AND (j.job_id IN (SELECT job_id FROM made)) IS TRUE")}
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
    columns = {field: [getattr(job, field) for job in jobs] for field in NewJob._fields if field != "policies"}
    columns |= policy_parameters([job.policies for job in jobs])
    given = {"partition": tx.fence.partition, "tzdata": TZDATA_VERSION, "now": now}
    cursor = await tx.conn.execute(CREATE_JOBS, columns | given)
    return [PendingRun(*row) for row in await cursor.fetchall()]


PAUSE_JOBS = f"""
WITH changed AS (
    UPDATE jobs j SET state = 'paused', paused_at = coalesce(%(now)s::timestamptz, now()), version = j.version + 1,
                      updated_at = now()
    WHERE j.job_id = ANY(%(job_ids)b::uuid[]) AND j.state = 'active'
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
    SELECT * FROM unnest(%(job_id)b::uuid[], %(next_fire_at)b::timestamptz[], %(skipped_run_id)b::uuid[],
                         %(run_id)b::uuid[], %(due_at)b::timestamptz[])
                  AS a (job_id, next_fire_at, skipped_run_id, run_id, due_at)
), changed AS (
    UPDATE jobs j SET state = 'active', paused_at = NULL, version = j.version + 1, next_fire_at = a.next_fire_at,
                      tzdata_version = %(tzdata)s, updated_at = now()
    FROM asked a WHERE j.job_id = a.job_id AND j.state = 'paused'
    RETURNING j.*, a.skipped_run_id, a.run_id, a.due_at, a.next_fire_at AS scheduled_for
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
    {make_run("changed j WHERE j.run_id IS NOT NULL")}
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
        reasons="'paused'::text",
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
    cursor = await tx.conn.execute(RESUME_JOBS, {**columns, "tzdata": TZDATA_VERSION, "now": now})
    return [PendingRun(*row) for row in await cursor.fetchall()]


DELETE_JOBS = f"""
WITH changed AS (
    UPDATE jobs j SET state = 'deleted', paused_at = NULL, next_fire_at = NULL, version = j.version + 1,
                      updated_at = now()
    WHERE j.job_id = ANY(%(job_ids)b::uuid[]) AND j.state <> 'deleted'
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
        reasons="'deleted'::text",
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
