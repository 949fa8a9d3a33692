"""Which runs are of their job's schedule: the id of such a run is derived from the job and the nominal time."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from uuid import UUID

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HASH_BITS = (1 << 62) - 1


def is_of_schedule(run_id: str, job_id: str, scheduled_for: datetime) -> bool:
    """False for a run that was triggered or backfilled: something of its own is in its id."""
    try:
        run, job = UUID(run_id), UUID(job_id)
    except ValueError:
        return False
    return run.int & _HASH_BITS == _hash(job, scheduled_for)


def scheduled_run_id(job_id: str, scheduled_for: datetime, partition: int) -> str:
    """The id of the run of an occurrence: UUIDv8, 48 bits of its time in ms, 12 of the partition, 62 of a hash."""
    job = UUID(job_id)
    high = (_micros(scheduled_for) // 1000 & (1 << 48) - 1) << 16 | 0x8000 | partition
    return str(UUID(int=high << 64 | 1 << 63 | _hash(job, scheduled_for)))


def partition_of(run_id: str) -> int:
    """The partition that is written into a run's id."""
    return UUID(run_id).int >> 64 & 0xFFF


def _hash(job_id: UUID, scheduled_for: datetime) -> int:
    named = job_id.bytes + _micros(scheduled_for).to_bytes(8, "big", signed=True)
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big") & _HASH_BITS


def _micros(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND
