"""What drained runs leave behind, to measure with who reads it.

A run is scheduled, leased and completed. An outbox row has the events of one transaction, `A_ROW` runs side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.commands import PARTITIONS
from schemas.ids import new_id, partition_of_job, run_id_for

EVENTS_A_RUN = 3
A_ROW = 100
WORKER = "worker-host-17-4711-0f3a9c"
Columns = dict[str, Any]


def outbox_rows(runs: int) -> Iterator[Columns]:
    """Columns of outbox rows, in the order of a drain: all runs are scheduled, then they are leased and completed."""
    now = datetime.now(UTC)
    due = [(new_id(), now + timedelta(milliseconds=number)) for number in range(runs)]
    for start in range(0, runs, A_ROW):
        yield _scheduled(due[start : start + A_ROW], now)
    for start in range(0, runs, A_ROW):
        yield _leased(due[start : start + A_ROW], now)
        yield _completed(due[start : start + A_ROW], now)


def _scheduled(runs: list[Any], now: datetime) -> Columns:
    return _row("run_scheduled", 1, runs, now) | _times(runs) | {"gated": [False] * len(runs)}


def _leased(runs: list[Any], now: datetime) -> Columns:
    expires = [now + timedelta(seconds=30)] * len(runs)
    return _row("run_leased", 2, runs, now) | _attempt(len(runs)) | _times(runs) | {"lease_expires_at": expires}


def _completed(runs: list[Any], now: datetime) -> Columns:
    return _row("run_completed", 3, runs, now) | _attempt(len(runs)) | {"results": ["null"] * len(runs)}


def _times(runs: list[Any]) -> Columns:
    times = [at for _, at in runs]
    return {"scheduled_for": times, "due_at": times}


def _row(event: str, version: int, runs: list[Any], now: datetime) -> Columns:
    count = len(runs)
    partitions = [partition_of_job(job_id, PARTITIONS) for job_id, _ in runs]
    return {
        "event": event,
        "at": now,
        "job_ids": [job_id for job_id, _ in runs],
        "run_ids": [
            run_id_for(job_id, at, partition) for (job_id, at), partition in zip(runs, partitions, strict=True)
        ],
        "partitions": partitions,
        "tenants": ["bench"] * count,
        "queues": ["drain"] * count,
        "lanes": [1] * count,
        "versions": [version] * count,
    }


def _attempt(count: int) -> Columns:
    return {"attempts": [1] * count, "lease_tokens": [1] * count, "worker_ids": [WORKER] * count}
