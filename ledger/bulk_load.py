"""Jobs by the million: the rows that creating them makes, by COPY. For moving in from elsewhere, and for benchmarks.

Creating jobs goes by the commands topic, which whoever has a lot of them uses too. Here nothing is told to anybody: no
event, no owner's memory. So each batch is in a transaction of the partition's owner, who is nobody but the loader: a
takeover before the load ends whatever owner there is, and whoever takes over after it reads the partition anew, since
the loader's epoch is one of which nobody knows anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from ledger.fence import OwnerTransaction
from ledger.jobs import POLICY_COLUMNS, NewJob, Policies
from ledger.partitions import leave_untold
from schemas.zones import TZDATA_VERSION

# The columns that are each job's own come first. The others are the same for many, and are packed once for all of them.
COPY_JOBS = f"""
COPY jobs (job_id, partition, tenant, queue, lane, definition, payload, max_attempts, next_fire_at, created_at,
           tzdata_version, {POLICY_COLUMNS})
FROM STDIN (FORMAT BINARY)
"""
COPY_RUNS = """
COPY runs (run_id, job_id, due_at, start_by, partition, tenant, queue, lane, max_attempts, scheduled_for, payload,
           overlap, timeout_s, concurrency_key)
FROM STDIN (FORMAT BINARY)
"""
_JOB_FIELDS, _RUN_FIELDS = 11 + len(Policies._fields), 14

_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_FIELDS, _LENGTH = struct.Struct(">h"), struct.Struct(">i")
_INT2, _INT4, _INT8, _FLOAT8 = (struct.Struct(f">i{kind}") for kind in "hiqd")  # each with its length before it
_UUID = _LENGTH.pack(16)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # Postgres's
_MICROSECOND = timedelta(microseconds=1)


async def copy_jobs(tx: OwnerTransaction, jobs: Sequence[NewJob]) -> None:
    """Write jobs of the transaction's partition, none of which exists, with their first runs; as ledger/jobs.py does.

    At most some thousands: the transaction's time is bounded. Raises psycopg's UniqueViolation for an id that exists.
    """
    await leave_untold(tx)
    partition = _INT4.pack(4, tx.fence.partition)
    await _copy(tx, COPY_JOBS, (_job_row(partition, job) for job in jobs))
    await _copy(tx, COPY_RUNS, (_run_row(partition, job) for job in jobs if job.run_id is not None))


async def _copy(tx: OwnerTransaction, statement: str, rows: Iterable[bytes]) -> None:
    async with tx.conn.cursor().copy(statement.encode()) as copy:
        await copy.write(b"".join((_HEAD, *rows, _TAIL)))


def _job_row(partition: bytes, job: NewJob) -> bytes:
    shared = _shared_of_job(
        job.tenant, job.queue, job.lane, job.definition, job.payload, job.max_attempts, job.next_fire_at,
        job.created_at, job.policies,
    )  # fmt: skip
    return b"".join((_FIELDS.pack(_JOB_FIELDS), _UUID, job.job_id.bytes, partition, shared))


def _run_row(partition: bytes, job: NewJob) -> bytes:
    assert job.run_id is not None
    assert job.due_at is not None
    deadline_s = job.policies.start_deadline_s
    start_by = None if deadline_s is None else job.due_at + timedelta(seconds=deadline_s)
    shared = _shared_of_run(
        job.tenant, job.queue, job.lane, job.max_attempts, job.next_fire_at, job.payload, job.policies.overlap,
        job.policies.timeout_s, job.policies.concurrency_key,
    )  # fmt: skip
    ids = (_UUID, job.run_id.bytes, _UUID, job.job_id.bytes)
    return b"".join((_FIELDS.pack(_RUN_FIELDS), *ids, _instant(job.due_at), _instant(start_by), partition, shared))


@lru_cache(maxsize=1_000)
def _shared_of_job(
    tenant: str,
    queue: str,
    lane: int,
    definition: str,
    payload: str | None,
    max_attempts: int,
    next_fire_at: datetime | None,
    created_at: datetime,
    policies: Policies,
) -> bytes:
    head = (_text(tenant), _text(queue), _INT2.pack(2, lane), _text(definition), _text(payload))
    instants = (_instant(next_fire_at), _instant(created_at))
    its_policies = (_policy(field, value) for field, value in policies._asdict().items())
    return b"".join((*head, _INT2.pack(2, max_attempts), *instants, _text(TZDATA_VERSION), *its_policies))


def _policy(field: str, value: Any) -> bytes:
    if field == "concurrency_key":
        return _text(value)
    return _INT2.pack(2, value) if field in ("overlap", "retry_backoff") else _number(value)


@lru_cache(maxsize=1_000)
def _shared_of_run(
    tenant: str,
    queue: str,
    lane: int,
    max_attempts: int,
    scheduled_for: datetime | None,
    payload: str | None,
    overlap: int,
    timeout_s: float | None,
    concurrency_key: str | None,
) -> bytes:
    head = (_text(tenant), _text(queue), _INT2.pack(2, lane), _INT2.pack(2, max_attempts), _instant(scheduled_for))
    return b"".join((*head, _text(payload), _INT2.pack(2, overlap), _number(timeout_s), _text(concurrency_key)))


def _text(value: str | None) -> bytes:
    if value is None:
        return _NULL
    encoded = value.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def _instant(value: datetime | None) -> bytes:
    return _NULL if value is None else _INT8.pack(8, (value - _EPOCH) // _MICROSECOND)


def _number(value: Any) -> bytes:
    return _NULL if value is None else _FLOAT8.pack(8, value)
