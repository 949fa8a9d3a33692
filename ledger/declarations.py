"""Declared jobs: those that a file owns as a set, with what a change to them would meet.

A set keeps its deleted jobs too: their ids are used up, and a job that is declared again needs another one.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from ledger.connection import Connection
from ledger.jobs import Job
from ledger.partitions import held_here


class DeclaredJob(NamedTuple):
    """pending_runs: runs that wait for a worker, retries among them; held_runs: until the job is resumed."""

    job: Job
    pending_runs: int
    leased_runs: int
    held_runs: int


_JOB_COLUMNS = ", ".join(f"j.{name}" for name in Job._fields)

# The runs of a job are few, and found by (partition, job_id).
READ_DECLARED_JOBS = f"""
SELECT {_JOB_COLUMNS}, n.pending, n.leased, n.held
FROM jobs j CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE r.state = 'pending') AS pending, count(*) FILTER (WHERE r.state = 'leased') AS leased,
           count(*) FILTER (WHERE r.state = 'held') AS held
    FROM runs r WHERE r.partition = j.partition AND r.job_id = j.job_id
) n
WHERE j.tenant = %(tenant)s AND j.declared_as IS NOT NULL AND split_part(j.declared_as, '/', 1) = %(declared_set)s
  AND (%(queues)b::text[] IS NULL OR j.queue = ANY (%(queues)b::text[]))
  AND (%(after)s::uuid IS NULL OR j.job_id > %(after)s::uuid) AND {held_here("j")}
ORDER BY j.job_id
LIMIT %(limit)s
"""


async def read_declared_jobs(
    conn: Connection,
    tenant: str,
    declared_set: str,
    *,
    queues: list[str] | None = None,
    after: UUID | None = None,
    limit: int,
) -> list[DeclaredJob]:
    """A page of a set's jobs in the order of their ids, deleted ones included. queues: only of these."""
    asked = {"tenant": tenant, "declared_set": declared_set, "queues": queues, "after": after, "limit": limit}
    rows = await (await conn.execute(READ_DECLARED_JOBS, asked)).fetchall()
    return [DeclaredJob(Job(*row[:-3]), *row[-3:]) for row in rows]
