"""The rows of the ledger's tables, as `ledger/schema.sql` has them, as far as the protocol reads them.

A row is replaced, never changed: what a transaction writes is seen by others once it is committed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Self
from uuid import UUID

from msgspec import Struct

from tests.simulation.scheduler import START


class Row(Struct):
    """Of any table."""

    def copied(self) -> Self:
        """For the row that takes its place."""
        return self.__copy__()  # type: ignore[attr-defined,no-any-return]


class Taken(Row):
    """A takeover that the ledger remembers."""

    partition: int
    epoch: int
    owner: str


class Partition(Row):
    """moved: the number of the move that has shut the partition on this shard, or not opened it yet.

    settled: the last move that was over here.
    """

    partition: int
    epoch: int = 0
    owner: str | None = None
    consumed_offset: int = 0
    moved: int | None = None
    settled: int = 0
    decided_through: datetime = START


class Job(Row):
    job_id: UUID
    partition: int
    tenant: str
    queue: str
    lane: int
    definition: str
    payload: str | None
    max_attempts: int
    next_fire_at: datetime | None
    created_at: datetime
    tzdata_version: str | None
    overlap: int = 0
    timeout_s: float | None = None
    start_deadline_s: float | None = None
    retry_backoff: int = 0
    retry_base_s: float = 1.0
    retry_max_s: float = 600.0
    concurrency_key: str | None = None
    state: str = "active"
    version: int = 1
    paused_at: datetime | None = None
    edited_at: datetime | None = None


class Run(Row):
    run_id: UUID
    job_id: UUID
    partition: int
    tenant: str
    queue: str
    lane: int
    max_attempts: int
    scheduled_for: datetime
    due_at: datetime
    payload: str | None
    overlap: int
    timeout_s: float | None
    start_by: datetime | None
    version: int = 1
    state: str = "pending"
    attempt: int = 0
    lease_token: int = 0
    lease_expires_at: datetime | None = None
    worker_id: str | None = None
    attempt_ends_at: datetime | None = None
    cancel_reason: str | None = None


class DeadRun(Row):
    run_id: UUID
    job_id: UUID
    partition: int
    tenant: str
    queue: str
    lane: int
    version: int
    attempt: int
    max_attempts: int
    lease_token: int
    scheduled_for: datetime
    worker_id: str | None
    reason: str | None


class LeaseRequest(Row):
    request_id: UUID
    run_ids: list[UUID]
    lease_tokens: list[int]


class Outcome(Row):
    """Of a command, in `applied_commands`."""

    command_id: UUID
    outcome: str
    detail: str | None
    field: str | None
    applied_at: datetime


class Told(Row):
    """An event in the outbox, and later in `run-events`. row: the outbox row that it was told in, on its shard."""

    shard: int
    row: int
    event: str
    at: datetime
    partition: int
    job_id: UUID
    run_id: UUID | None
    version: int
    tenant: str
    queue: str
    lane: int
    attempt: int | None = None
    lease_token: int | None = None
    scheduled_for: datetime | None = None
    due_at: datetime | None = None
    lease_expires_at: datetime | None = None
    worker_id: str | None = None
    reason: str | None = None
    result: str | None = None
    definition: str | None = None
    count: int | None = None
    gated: bool = False
