"""Jobs by the million: the rows that creating them makes, by COPY. For moving in from elsewhere, and for benchmarks.

Creating jobs goes by the commands topic, which whoever has a lot of them uses too. Here nothing is told to anybody: no
event, no owner's memory. So each batch is in a transaction of the partition's owner, who is nobody but the loader: a
takeover before the load ends whatever owner there is, and whoever takes over after it reads the partition anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from ledger.fence import OwnerTransaction
from ledger.jobs import POLICY_COLUMNS, NewJob
from schemas.zones import TZDATA_VERSION

_POLICY_TYPES = ("int2", "float8", "float8", "int2", "float8", "float8")

COPY_JOBS = f"""
COPY jobs (job_id, partition, tenant, queue, lane, definition, payload, max_attempts, next_fire_at, created_at,
           tzdata_version, {POLICY_COLUMNS})
FROM STDIN (FORMAT BINARY)
"""
_JOB_TYPES = (
    "uuid", "int4", "text", "text", "int2", "text", "text", "int2", "timestamptz", "timestamptz", "text",
    *_POLICY_TYPES,
)  # fmt: skip

COPY_RUNS = """
COPY runs (run_id, job_id, partition, tenant, queue, lane, max_attempts, scheduled_for, due_at, payload, overlap,
           timeout_s, start_by)
FROM STDIN (FORMAT BINARY)
"""
_RUN_TYPES = (
    "uuid", "uuid", "int4", "text", "text", "int2", "int2", "timestamptz", "timestamptz", "text", "int2", "float8",
    "timestamptz",
)  # fmt: skip


async def copy_jobs(tx: OwnerTransaction, jobs: Sequence[NewJob]) -> None:
    """Write jobs of the transaction's partition, none of which exists, with their first runs; as ledger/jobs.py does.

    At most some thousands: the transaction's time is bounded. Raises psycopg's UniqueViolation for an id that exists.
    """
    partition = tx.fence.partition
    await _copy(tx, COPY_JOBS, _JOB_TYPES, (_job_row(partition, job) for job in jobs))
    await _copy(tx, COPY_RUNS, _RUN_TYPES, (_run_row(partition, job) for job in jobs if job.run_id is not None))


async def _copy(tx: OwnerTransaction, statement: str, types: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    async with tx.conn.cursor().copy(statement.encode()) as copy:
        copy.set_types(types)
        for row in rows:
            await copy.write_row(row)


def _job_row(partition: int, job: NewJob) -> Sequence[Any]:
    return (
        job.job_id, partition, job.tenant, job.queue, job.lane, job.definition, job.payload, job.max_attempts,
        job.next_fire_at, job.created_at, TZDATA_VERSION, *job.policies,
    )  # fmt: skip


def _run_row(partition: int, job: NewJob) -> Sequence[Any]:
    return (
        job.run_id, job.job_id, partition, job.tenant, job.queue, job.lane, job.max_attempts, job.next_fire_at,
        job.due_at, job.payload, job.policies.overlap, job.policies.timeout_s, _start_by(job),
    )  # fmt: skip


def _start_by(job: NewJob) -> Any:
    deadline_s = job.policies.start_deadline_s
    return None if deadline_s is None or job.due_at is None else job.due_at + timedelta(seconds=deadline_s)
