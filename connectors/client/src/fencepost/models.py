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
    retry_backoff: str | None = None
    retry_base_seconds: float | None = None
    retry_max_seconds: float | None = None
    catch_up_limit: int | None = None
    concurrency_key: str | None = None


class BackfilledRun(Struct, rename="camel", kw_only=True, frozen=True):
    """run_id: None of a dry run."""

    scheduled_for: datetime
    run_id: UUID | None = None


class BackfillAnswer(Struct, rename="camel", kw_only=True, frozen=True):
    """The occurrences of a range, each with its run.

    applied, command_id: as of CommandAnswer; what was not seen applied tells no runs.
    """

    job_id: UUID
    applied: bool = True
    command_id: UUID | None = None
    dry_run: bool = False
    count: int | None = None
    runs: list[BackfilledRun] = []


class RunAnswer(Struct, rename="camel", kw_only=True, frozen=True):
    """What became of a command about one run. applied, command_id: as of CommandAnswer.

    cancel_requested: the run is being executed; its worker is told to stop with its next heartbeat.
    """

    run_id: UUID
    applied: bool = True
    command_id: UUID | None = None
    state: str | None = None
    cancel_requested: bool | None = None
    due_at: datetime | None = None


class Run(Struct, rename="camel", kw_only=True, frozen=True):
    """A run, living or ended. state: pending, leased, held, dead, completed, cancelled or unknown.

    start_by: the last instant at which it may start. progress: the running attempt's last note.
    """

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
    start_by: datetime | None = None
    attempt_ends_at: datetime | None = None
    progress: str | None = None
    cancel_requested: bool | None = None
    reason: str | None = None
    result: Any = None


class DeadRun(Struct, rename="camel", kw_only=True, frozen=True):
    """A run that failed for good. reason: of its last failure."""

    run_id: UUID
    job_id: UUID
    queue: str
    died_at: datetime
    reason: str
    lane: str | None = None
    attempt: int | None = None
    max_attempts: int | None = None
    scheduled_for: datetime | None = None
    worker_id: str | None = None


class DeadPage(Struct, frozen=True):
    """Dead runs in the order in which they died. next: what to give as `after` for the next page; None on the last."""

    runs: list[DeadRun]
    next: str | None = None


class DeadFilter(Struct, rename="camel", kw_only=True, frozen=True, omit_defaults=True):
    """Which dead runs. since, until: died at or after, died before. reason: a part of it, in any case."""

    queue: str | None = None
    job_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    reason: str | None = None


class DeadReplayAnswer(Struct, rename="camel", kw_only=True, frozen=True):
    """matched: all that the filter matches. replayed: how many of them the call sent on their way; sample: the first.

    next: as of DeadPage, when the limit left some out. applied: false when some were not seen applied in time.
    """

    matched: int
    replayed: int
    applied: bool = True
    dry_run: bool = False
    sample: list[DeadRun] = []
    next: str | None = None


class LaneCounts(Struct, frozen=True):
    high: int = 0
    normal: int = 0
    low: int = 0


class Queue(Struct, rename="camel", kw_only=True, frozen=True):
    """paused: the queue itself. tenant_paused: every queue of the tenant. waiting: runs that are due, by lane.

    rate_per_second: at which the made-up runs of jobs with catchUp all come due; None: at once. max_live_runs,
    max_live_runs_per_key: how many runs may be leased at once, of the queue and of those with one concurrency key;
    None: any number. live_runs: how many are; None while the queue has no such limit.
    """

    queue: str
    paused: bool
    waiting: LaneCounts
    paused_at: datetime | None = None
    tenant_paused: bool = False
    rate_per_second: float | None = None
    max_live_runs: int | None = None
    max_live_runs_per_key: int | None = None
    live_runs: int | None = None


class Tenant(Struct, rename="camel", kw_only=True, frozen=True):
    """paused_queues: those that are paused by themselves.

    leases_per_second: how many runs its workers may lease, over all queues; None: as many as they like.
    lease_burst: how many at once after a while without any; None: those of a second.
    max_pending_runs: from how many on, waiting and leased ones, no job is created; None: any.
    weight: how large its share is beside other tenants that compete with it; None: 1.
    """

    tenant: str
    paused: bool
    paused_at: datetime | None = None
    paused_queues: list[str] = []
    leases_per_second: float | None = None
    lease_burst: int | None = None
    max_pending_runs: int | None = None
    weight: int | None = None


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
    """A run that is ours until its lease ends. lease_token: larger for every lease of a run; send it on writes.

    lease_seconds: how long it lasted when the server answered; less than was asked for near an attempt's end.
    """

    run_id: UUID
    job_id: UUID
    attempt: int
    lease_token: int
    lease_expires_at: datetime
    scheduled_for: datetime
    due_at: datetime
    queue: str
    payload: Any = None
    lease_seconds: float | None = None


class LeaseAnswer(Struct, rename="camel", frozen=True):
    """waited_seconds: how long the server had waited when the leases began, or what is left of them was looked up."""

    runs: list[LeasedRun]
    waited_seconds: float = 0.0


class Beat(Struct, rename="camel", frozen=True, omit_defaults=True):
    """A heartbeat: the lease shall last visibility_seconds from now. progress: a note of at most 1,000 characters."""

    run_id: UUID
    lease_token: int
    visibility_seconds: float = 30
    progress: str | None = None


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


class Snoozing(Struct, rename="camel", frozen=True):
    """Gives a run back until delay_seconds from now; the attempt is not charged."""

    run_id: UUID
    lease_token: int
    delay_seconds: float


FailedAs = Literal["retried", "dead", "held", "cancelled"]
SnoozedAs = Literal["snoozed", "held", "cancelled"]


class OutcomeAnswer(Struct, rename="camel", kw_only=True, frozen=True):
    """One run's part of a batch answer.

    status 409: the lease is lost, and nothing was written. 503: it is not known yet what became of an earlier try;
    send it again. lease_expires_at, lease_seconds and cancel are of heartbeats; outcome and due_at of failures and
    snoozes.
    """

    run_id: UUID
    status: int
    lease_expires_at: datetime | None = None
    lease_seconds: float | None = None
    cancel: bool = False
    outcome: FailedAs | SnoozedAs | None = None
    due_at: datetime | None = None


class BatchAnswer(Struct, frozen=True):
    results: list[OutcomeAnswer]


class BeatAnswer(Struct, rename="camel", kw_only=True, frozen=True):
    """cancel: the server wants the handler to stop, and does not extend the lease any more."""

    lease_expires_at: datetime
    lease_seconds: float | None = None
    cancel: bool = False


class FailureAnswer(Struct, rename="camel", kw_only=True, frozen=True):
    """dead: no attempts are left, or the failure was permanent. due_at: of the next attempt.

    held: it is retried once its paused job is resumed. cancelled: it is not, as that was asked for, or its job was
    deleted.
    """

    outcome: FailedAs
    due_at: datetime | None = None


class SnoozeAnswer(Struct, rename="camel", kw_only=True, frozen=True):
    """due_at: when it may be leased again. held, cancelled: as of FailureAnswer."""

    outcome: SnoozedAs
    due_at: datetime | None = None


class Column(Struct, frozen=True):
    name: str
    type: str


class QueryAnswer(Struct, rename="camel", frozen=True):
    """truncated: there were more rows than the limit."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    truncated: bool = False
