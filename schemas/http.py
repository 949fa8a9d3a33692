"""The bodies of the HTTP API: what it takes and what it answers, in camelCase JSON.

Requests refuse unknown fields, so that a typo never passes silently. Instants are RFC 3339 in UTC with Z. Payloads and
results are any JSON, carried as they came and never looked into.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from schemas.commands import (
    CatchUp,
    ConcurrencyKey,
    DeclaredAs,
    Instant,
    Lane,
    Name,
    Overlap,
    PositiveSeconds,
    RetryBackoff,
)
from schemas.commands import RetrySeconds as BackoffSeconds

RESULT_MAX_BYTES = 64 * 1024
RUNS_A_CALL = 1_000
QUEUES_A_CALL = 100
LEASE_WAIT_MAX_S = 60  # what proxies let a request wait, by their defaults
NULL = Raw(b"null")

# Its rules, and what is wrong with one, are told by schemas/schedule_json.py.
ScheduleJson = Annotated[
    dict[str, Any],
    Meta(
        description="One of cron (and zone), everySeconds, runAt or delaySeconds, and what goes with it.",
        examples=[{"cron": "0 9 * * MON-FRI", "zone": "Europe/Paris"}, {"everySeconds": 300}, {"delaySeconds": 60}],
    ),
]
JobVersion = Annotated[int, Meta(ge=1, le=2**31 - 1)]
LeaseToken = Annotated[int, Meta(ge=0, le=2**63 - 1)]
VisibilitySeconds = Annotated[float, Meta(ge=1, le=3600)]
WorkerId = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+\Z", examples=["worker-1"])]
ErrorText = Annotated[str, Meta(max_length=4_000)]
Progress = Annotated[str, Meta(max_length=1_000)]
RetrySeconds = Annotated[float, Meta(ge=0, le=366 * 86_400)]


class Request(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """A body that a client sends."""


class Answer(Struct, rename="camel"):
    """A body that the API sends."""


class NoBody(Request):
    """Of calls that say everything in their path."""


# -- jobs


class NewJob(Request):
    """POST /v1/jobs. The fields of schemas.commands.JobSpec, with the payload as JSON instead of text."""

    queue: Name
    schedule: ScheduleJson
    lane: Lane = "normal"
    name: Annotated[str, Meta(max_length=200)] | None = None
    payload: Raw | UnsetType = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 5
    timeout_seconds: PositiveSeconds | None = None
    catch_up: CatchUp = "latest"
    overlap: Overlap = "allow"
    start_deadline_seconds: PositiveSeconds | None = None
    retry_backoff: RetryBackoff = "exponential"
    retry_base_seconds: BackoffSeconds = 1.0
    retry_max_seconds: BackoffSeconds = 600.0
    catch_up_limit: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    declared_as: DeclaredAs | None = None
    concurrency_key: ConcurrencyKey | None = None


class JobUpdate(NewJob):
    """PUT /v1/jobs/{id}: the whole definition. effective_from: the new schedule fires only after it.

    if_version: refuse it (409) when the job is at another version by then.
    """

    effective_from: Instant | None = None
    if_version: JobVersion | None = None


class JobDeletion(Request):
    """DELETE /v1/jobs/{id}, in its query string. if_version: as of JobUpdate."""

    if_version: JobVersion | None = None


class Trigger(Request):
    """POST /v1/jobs/{id}/trigger. payload: instead of the job's own."""

    payload: Raw | UnsetType = UNSET


class JobCreated(Answer):
    job_id: UUID
    next_run_at: datetime | None


class CommandAccepted(Answer):
    """202: Kafka has the command; its effect was not seen yet."""

    job_id: UUID
    command_id: UUID


class JobChanged(Answer):
    job_id: UUID
    state: str
    next_run_at: datetime | None


class JobTriggered(Answer):
    job_id: UUID
    run_id: UUID


class JobView(Answer, kw_only=True):
    """GET /v1/jobs/{id}."""

    job_id: UUID
    tenant: str
    name: str | None
    queue: str
    lane: str
    schedule: dict[str, Any]
    payload: Raw
    state: Literal["active", "paused", "deleted"]
    version: int
    next_run_at: datetime | None
    created_at: datetime
    paused_at: datetime | None
    max_attempts: int
    timeout_seconds: float | None
    catch_up: str
    overlap: str
    start_deadline_seconds: float | None
    retry_backoff: str
    retry_base_seconds: float
    retry_max_seconds: float
    catch_up_limit: int
    declared_as: str | None
    concurrency_key: str | None


class RunView(Answer, kw_only=True, omit_defaults=True):
    """GET /v1/runs/{id}. state unknown: it has left the ledger, and the history does not tell its end yet.

    start_by: the last instant at which it may start. progress: the running attempt's last note. cancel_requested: its
    worker is told to stop.
    """

    run_id: UUID
    job_id: UUID
    state: str
    queue: str
    lane: str
    attempt: int | None
    max_attempts: int | None = None
    scheduled_for: datetime | None
    due_at: datetime | None = None
    lease_expires_at: datetime | None = None
    worker_id: str | None = None
    start_by: datetime | None = None
    attempt_ends_at: datetime | None = None
    progress: str | None = None
    cancel_requested: bool = False
    reason: str | None = None
    result: Raw | UnsetType = UNSET


# -- schedules


class PreviewRequest(Request):
    """POST /v1/schedules/preview. start: an instant, now unless given. job_id: what `H` and the jitter hash."""

    schedule: ScheduleJson
    start: str | None = msgspec.field(name="from", default=None)
    count: Annotated[int, Meta(ge=1, le=1_000)] = 5
    job_id: UUID | None = None


class PreviewedFire(Answer):
    """local: scheduled_for on the zone's wall clock. mark: moved out of a gap, or on a reading that occurs twice."""

    scheduled_for: datetime
    local: str
    zone: str
    mark: Literal["gap", "fold"] | None
    due_at: datetime


class Preview(Answer):
    """tzdata: the version of the time zones that the fires come from."""

    fires: list[PreviewedFire]
    tzdata: str


# -- leases


class LeaseRequest(Request):
    """POST /v1/queues/{queue}/lease. request_id: repeat the call with it to get the same runs again."""

    worker_id: WorkerId
    max: Annotated[int, Meta(ge=1, le=RUNS_A_CALL)]
    visibility_seconds: VisibilitySeconds = 30.0
    wait_seconds: Annotated[float, Meta(ge=0, le=LEASE_WAIT_MAX_S)] = 0.0
    request_id: UUID | None = None


class QueuesLease(LeaseRequest, kw_only=True):
    """POST /v1/lease: of several queues in one call."""

    queues: Annotated[list[Name], Meta(min_length=1, max_length=QUEUES_A_CALL)]


class LeasedRun(Answer):
    """lease_seconds: how long the lease lasts from the answer on; less than was asked for near an attempt's end."""

    run_id: UUID
    job_id: UUID
    attempt: int
    lease_token: int
    lease_expires_at: datetime
    lease_seconds: float
    scheduled_for: datetime
    due_at: datetime
    queue: str
    payload: Raw


class Leased(Answer):
    """waited_seconds: from the call's coming until the ledger was asked; lease_seconds last from then on at least."""

    runs: list[LeasedRun]
    waited_seconds: float


# -- outcomes: the single form has the run in its path, the batch form in each item


class Beat(Request):
    """progress: a note on how far the attempt is, shown with the run."""

    lease_token: LeaseToken
    visibility_seconds: VisibilitySeconds = 30.0
    progress: Progress | None = None


class Complete(Request):
    lease_token: LeaseToken
    result: Raw | UnsetType = UNSET


class Fail(Request):
    lease_token: LeaseToken
    error: ErrorText
    permanent: bool = False
    retry_after_seconds: RetrySeconds | None = None


class Release(Request):
    lease_token: LeaseToken


class Snooze(Request):
    """Give the run back until later; the attempt is not charged."""

    lease_token: LeaseToken
    delay_seconds: RetrySeconds


class RunBeat(Beat, kw_only=True):
    run_id: UUID


class RunComplete(Complete, kw_only=True):
    run_id: UUID


class RunFail(Fail, kw_only=True):
    run_id: UUID


class RunRelease(Release, kw_only=True):
    run_id: UUID


class RunSnooze(Snooze, kw_only=True):
    run_id: UUID


class BeatBatch(Request):
    runs: Annotated[list[RunBeat], Meta(max_length=RUNS_A_CALL)]


class CompleteBatch(Request):
    runs: Annotated[list[RunComplete], Meta(max_length=RUNS_A_CALL)]


class FailBatch(Request):
    runs: Annotated[list[RunFail], Meta(max_length=RUNS_A_CALL)]


class ReleaseBatch(Request):
    runs: Annotated[list[RunRelease], Meta(max_length=RUNS_A_CALL)]


class SnoozeBatch(Request):
    runs: Annotated[list[RunSnooze], Meta(max_length=RUNS_A_CALL)]


class Done(Answer):
    """{}: nothing to say."""


class Extended(Answer):
    """cancel: stop the handler, the run is not wanted any more; the lease is not extended then.

    lease_seconds: how long the lease lasts from the answer on.
    """

    lease_expires_at: datetime
    lease_seconds: float
    cancel: bool


# held: to be retried once its paused job is resumed. cancelled: that was asked for, or its job was deleted.
FailedAs = Literal["retried", "dead", "held", "cancelled"]
SnoozedAs = Literal["snoozed", "held", "cancelled"]


class Failed(Answer, omit_defaults=True):
    outcome: FailedAs
    due_at: datetime | None = None


class Snoozed(Answer, omit_defaults=True):
    outcome: SnoozedAs
    due_at: datetime | None = None


class RunAnswer(Answer, omit_defaults=True, kw_only=True):
    """One item of a batch's answer: the status that the single form would have had, and that form's fields.

    409: the lease is lost. 503: it is not known yet whether an earlier try was accepted; ask again.
    """

    run_id: UUID
    status: int
    detail: str | None = None
    lease_expires_at: datetime | None = None
    lease_seconds: float | None = None
    cancel: bool | UnsetType = UNSET
    outcome: FailedAs | SnoozedAs | None = None
    due_at: datetime | None = None


class BatchAnswer(Answer):
    results: list[RunAnswer]


# -- health


class Readiness(Answer):
    """GET /readyz: each part is ok or away. 503 when the ledger's home is away, and while the process is not `ready`.

    state: `starting` until it hears hints, for a few seconds at most; `leaving` once it was told to stop.
    ledger: `away: shard 1, 2` when those are, and home is not.
    """

    state: str
    ledger: str
    kafka: str
    history: str


# -- errors


class FieldProblem(Answer):
    field: str
    detail: str


class ProblemDocument(Answer, omit_defaults=True):
    """RFC 9457. field: the offending field by its JSON name, dotted; errors when there are several."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"
    field: str | None = None
    retry_after_seconds: float | None = None
    errors: list[FieldProblem] | None = None


def json_text(raw: Raw | UnsetType) -> str | None:
    """A JSON value as the ledger keeps it; None for null, and for none. Raises UnicodeDecodeError."""
    if raw is UNSET:
        return None
    text = bytes(raw).decode()
    return None if text == "null" else text


def json_raw(text: str | None) -> Raw:
    """The ledger's JSON text as a value to embed."""
    return NULL if text is None else Raw(text)


def encode(answer: Struct) -> bytes:
    """A body's wire form."""
    return msgspec.json.encode(answer)
