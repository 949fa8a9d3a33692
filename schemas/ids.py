"""Ids and the partitioner: pure functions that every producer, in any language, must agree on.

Source: ARCHITECTURE, Contracts (Partitions, Ids).
"""

from __future__ import annotations

import hashlib
import os
import time
from datetime import UTC, datetime
from uuid import UUID, uuid5

# A fixed name space, so that the same (tenant, key) gives the same id in every process and every version.
IDEMPOTENCY_NAMESPACE = UUID("6f1b4c5e-51c7-5a39-9d5c-2a6f0f3b8e11")
MAX_PARTITIONS = 4096  # twelve bits of a run id hold its partition

_MASK32 = 0xFFFFFFFF
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = datetime.resolution


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 (seed 0x9747b28c), unsigned. Source: org.apache.kafka.common.utils.Utils."""
    m, length = 0x5BD1E995, len(data)
    h = (0x9747B28C ^ length) & _MASK32
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & _MASK32
        k = (k ^ (k >> 24)) * m & _MASK32
        h = (h * m & _MASK32) ^ k
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * m & _MASK32
    h = (h ^ (h >> 13)) * m & _MASK32
    return h ^ (h >> 15)


def partition_of_job(job_id: UUID, partitions: int) -> int:
    """The partition that owns a job: the Java client's default partitioner over the id's canonical text."""
    return (murmur2(str(job_id).encode()) & 0x7FFFFFFF) % partitions


def run_id_for(job_id: UUID, scheduled_for: datetime, partition: int, nonce: bytes = b"") -> UUID:
    """The id of the run of an occurrence: the same inputs give the same id, so a retried insert conflicts.

    UUIDv8: 48 bits of `scheduled_for` in ms (index locality), 12 bits of partition (so that whoever holds a run id
    knows its partition and shard without a look-up), 62 bits of a hash. `nonce` tells manual runs of one job apart.
    """
    if scheduled_for.tzinfo is None:
        raise ValueError("scheduled_for must be aware")
    micros = (scheduled_for - _EPOCH) // _MICROSECOND
    digest = hashlib.blake2b(job_id.bytes + micros.to_bytes(8, "big", signed=True) + nonce, digest_size=8).digest()
    high = (micros // 1000 & (1 << 48) - 1) << 16 | 0x8000 | partition
    low = (int.from_bytes(digest, "big") & (1 << 62) - 1) | 1 << 63
    return UUID(int=high << 64 | low)


def partition_of_run(run_id: UUID) -> int:
    """The partition written into a run id; any UUID gives a number, which may be no partition of ours."""
    return run_id.int >> 64 & 0xFFF


def idempotent_id(tenant: str, key: str) -> UUID:
    """The id of whatever `tenant` creates under an idempotency key."""
    return uuid5(IDEMPOTENCY_NAMESPACE, f"{tenant}\x00{key}")


def new_id() -> UUID:
    """A UUIDv7 (RFC 9562): 48 bits of the wall clock in ms, then random bits."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)
