"""What the HTTP API takes and answers, as structs. Field names are those of its JSON, in snake case."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct


class CommandAnswer(Struct, rename="camel", kw_only=True, frozen=True):
    """What became of a job command.

    applied: false when the server has it (in Kafka) but did not see it applied within two seconds; then only job_id
    and command_id are known. run_id: of a trigger.
    """

    job_id: UUID
    applied: bool = True
    command_id: UUID | None = None
    next_run_at: datetime | None = None
    state: str | None = None
    run_id: UUID | None = None


class Job(Struct, rename="camel", kw_only=True, frozen=True):
    """A job as the ledger has it. schedule: its JSON form."""

    job_id: UUID
    queue: str
    schedule: dict[str, Any]
    state: Literal["active", "paused", "deleted"]
    tenant: str | None = None
    name: str | None = None
    lane: str = "normal"
    payload: Any = None
    version: int | None = None
    next_run_at: datetime | None = None
    created_at: datetime | None = None
    paused_at: datetime | None = None
    max_attempts: int | None = None
    timeout_seconds: float | None = None
    catch_up: str | None = None
    overlap: str | None = None
    start_deadline_seconds: float | None = None


class Run(Struct, rename="camel", kw_only=True, frozen=True):
    """A run, living or ended. state: pending, leased, held, dead, completed, cancelled or unknown."""

    run_id: UUID
    state: str
    job_id: UUID | None = None
    queue: str | None = None
    lane: str | None = None
    attempt: int | None = None
    max_attempts: int | None = None
    scheduled_for: datetime | None = None
    due_at: datetime | None = None
    lease_expires_at: datetime | None = None
    worker_id: str | None = None
    reason: str | None = None
    result: Any = None


class PreviewedFire(Struct, rename="camel", kw_only=True, frozen=True):
    """One coming fire. local: the time on the wall clock of zone and its offset, in ISO 8601; it may have seconds
    before 1972. due_at: scheduled_for and the job's jitter.

    mark: `gap` when it was moved out of an hour that does not exist, `fold` when its local time occurs twice.
    """

    scheduled_for: datetime
    local: str
    zone: str
    due_at: datetime
    mark: Literal["gap", "fold"] | None = None


class Preview(Struct, frozen=True):
    """tzdata: the version of the time zones that the server computes with."""

    fires: list[PreviewedFire]
    tzdata: str


class LeasedRun(Struct, rename="camel", kw_only=True, frozen=True):
    """A run that is ours until its lease ends. lease_token: larger for every lease of a run; send it on writes."""

    run_id: UUID
    job_id: UUID
    attempt: int
    lease_token: int
    lease_expires_at: datetime
    scheduled_for: datetime
    due_at: datetime
    queue: str
    payload: Any = None


class LeaseAnswer(Struct, rename="camel", frozen=True):
    runs: list[LeasedRun]


class Beat(Struct, rename="camel", frozen=True):
    """A heartbeat: the lease shall last visibility_seconds from now."""

    run_id: UUID
    lease_token: int
    visibility_seconds: float = 30


class Completion(Struct, rename="camel", frozen=True, omit_defaults=True):
    """result: a JSON value of at most 64 KiB (or `msgspec.Raw` with its text)."""

    run_id: UUID
    lease_token: int
    result: Any = None


class Failure(Struct, rename="camel", frozen=True, omit_defaults=True):
    """error: at most 4,000 characters. retry_after_seconds: instead of the server's back-off."""

    run_id: UUID
    lease_token: int
    error: str
    permanent: bool = False
    retry_after_seconds: float | None = None


class Release(Struct, rename="camel", frozen=True):
    """Gives a run back unexecuted; the attempt is not charged."""

    run_id: UUID
    lease_token: int


FailedAs = Literal["retried", "dead", "held", "cancelled"]


class OutcomeAnswer(Struct, rename="camel", kw_only=True, frozen=True):
    """One run's part of a batch answer.

    status 409: the lease is lost, and nothing was written. 503: it is not known yet what became of an earlier try;
    send it again. lease_expires_at and cancel are of heartbeats; outcome and due_at of failures.
    """

    run_id: UUID
    status: int
    lease_expires_at: datetime | None = None
    cancel: bool = False
    outcome: FailedAs | None = None
    due_at: datetime | None = None


class BatchAnswer(Struct, frozen=True):
    results: list[OutcomeAnswer]


class BeatAnswer(Struct, rename="camel", kw_only=True, frozen=True):
    """cancel: the server wants the handler to stop."""

    lease_expires_at: datetime
    cancel: bool = False


class FailureAnswer(Struct, rename="camel", kw_only=True, frozen=True):
    """dead: no attempts are left, or the failure was permanent. due_at: of the next attempt.

    held: it is retried once its paused job is resumed. cancelled: it is not, as its job was deleted.
    """

    outcome: FailedAs
    due_at: datetime | None = None


class Column(Struct, frozen=True):
    name: str
    type: str


class QueryAnswer(Struct, rename="camel", frozen=True):
    """truncated: there were more rows than the limit."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    truncated: bool = False
