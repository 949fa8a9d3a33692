"""Ids and the partitioner: pure functions on which the server and producers in every language agree."""

from __future__ import annotations

import os
import time
from uuid import UUID, uuid5

# Fixed for ever: the same (tenant, key) gives the same id in every process and every version.
IDEMPOTENCY_NAMESPACE = UUID("6f1b4c5e-51c7-5a39-9d5c-2a6f0f3b8e11")

_MASK32 = 0xFFFFFFFF


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
    """The partition of a job's commands: the Java client's default partitioner over the id's canonical text."""
    return (murmur2(str(job_id).encode()) & 0x7FFFFFFF) % partitions


def idempotent_id(tenant: str, key: str) -> UUID:
    """The id of whatever `tenant` creates under an idempotency key."""
    return uuid5(IDEMPOTENCY_NAMESPACE, f"{tenant}\x00{key}")


def new_id() -> UUID:
    """A UUIDv7 (RFC 9562): 48 bits of the wall clock in ms, then random bits."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)
