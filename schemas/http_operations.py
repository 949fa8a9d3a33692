"""The bodies of what operators do beside a job's own calls: backfills, cancelled and dead runs, pauses of queues.

The rules of schemas/http.py hold here too.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import UNSET, Meta, Raw, UnsetType, field

from schemas.commands import Instant, Name
from schemas.http import Answer, Request

DEAD_A_CALL = 1_000

Reason = Annotated[str, Meta(min_length=1, max_length=1_000, pattern=r"^[^\x00]+\Z")]
Limit = Annotated[int, Meta(ge=1, le=DEAD_A_CALL)]
Cursor = Annotated[str, Meta(min_length=1, max_length=200)]

# -- backfill


class Backfill(Request):
    """POST /v1/jobs/{id}/backfill: run the occurrences after `from` up to and with `to` beside the schedule.

    payload: instead of the job's own. dry_run: only tell which they are.
    """

    after: Instant = field(name="from")
    through: Instant = field(name="to")
    payload: Raw | UnsetType = UNSET
    dry_run: bool = False


class BackfilledRun(Answer, omit_defaults=True):
    """run_id: None of a dry run."""

    scheduled_for: datetime
    run_id: UUID | None = None


class Backfilled(Answer, kw_only=True):
    job_id: UUID
    dry_run: bool
    count: int
    runs: list[BackfilledRun]


# -- single runs


class RunCancelled(Answer, kw_only=True):
    """state leased: its worker is told to stop with its next heartbeat; cancelled: nobody will execute it; completed:
    its worker was faster.
    """

    run_id: UUID
    state: str
    cancel_requested: bool


class RunReplayed(Answer, kw_only=True):
    """state pending: it waits for a worker again, with all its attempts; held: until its job is resumed."""

    run_id: UUID
    state: str
    due_at: datetime | None


class RunCommandAccepted(Answer):
    """202: Kafka has the command; its effect was not seen yet."""

    run_id: UUID
    command_id: UUID


# -- dead letters


class DeadFilter(Request):
    """Which dead runs. since, until: died at or after, died before. reason: a part of it, in any case."""

    queue: Name | None = None
    job_id: UUID | None = None
    since: Instant | None = None
    until: Instant | None = None
    reason: Reason | None = None
    after: Cursor | None = None


class DeadQuery(DeadFilter):
    """GET /v1/dead, in its query string. after: the `next` of the page before."""

    limit: Limit = 100


class DeadReplay(DeadFilter):
    """POST /v1/dead/replay. limit: how many this call replays, those that died first.

    dry_run: only tell which. per_second: their pace; the first is due at start_at, which is at once unless given.
    """

    limit: Limit = DEAD_A_CALL
    dry_run: bool = False
    per_second: Annotated[float, Meta(gt=0, le=100_000)] | None = None
    start_at: Instant | None = None


class DeadRun(Answer, kw_only=True):
    run_id: UUID
    job_id: UUID
    queue: str
    lane: str
    attempt: int
    max_attempts: int
    scheduled_for: datetime
    died_at: datetime
    worker_id: str | None
    reason: str


class DeadPage(Answer, kw_only=True):
    """In the order in which they died. next: what to give as `after` for the next page; None on the last."""

    runs: list[DeadRun]
    next: str | None


class DeadReplayed(Answer, kw_only=True):
    """matched: all that the filter matches. replayed: how many of them this call sent on their way.

    sample: the first few. next: as in DeadPage, when the limit left some out.
    """

    matched: int
    replayed: int
    dry_run: bool
    sample: list[DeadRun]
    next: str | None


# -- queues and the tenant


class LaneCounts(Answer, kw_only=True):
    high: int
    normal: int
    low: int


LiveRuns = Annotated[int, Meta(ge=1, le=1_000_000)]


class QueueSettings(Request):
    """PATCH /v1/queues/{queue}: what is named changes, the rest stays. null: back to no limit.

    rate_per_second: how many runs a second its workers are meant to take. Today one thing goes by it: the made-up runs
    of jobs with catchUp all come due at this rate. It limits no other run.
    max_live_runs: how many of its runs may be leased at once. max_live_runs_per_key: how many of those whose jobs have
    the same concurrencyKey. A lower limit takes no lease away.
    """

    rate_per_second: Annotated[float, Meta(gt=0, le=1_000_000)] | UnsetType | None = UNSET
    max_live_runs: LiveRuns | UnsetType | None = UNSET
    max_live_runs_per_key: LiveRuns | UnsetType | None = UNSET


class QueueView(Answer, kw_only=True):
    """paused: the queue itself. tenant_paused: every queue of the tenant. waiting: runs that are due, by lane.

    rate_per_second, max_live_runs, max_live_runs_per_key: as they were set; None: no limit. live_runs: how many are
    leased, or are about to be, of a queue with a limit of them; None: it has none, and nobody counts.
    """

    queue: str
    paused: bool
    paused_at: datetime | None
    tenant_paused: bool
    rate_per_second: float | None
    max_live_runs: int | None
    max_live_runs_per_key: int | None
    live_runs: int | None
    waiting: LaneCounts


class TenantSettings(Request):
    """PATCH /v1/tenant: what is named changes, the rest stays. null: back to no limit.

    leases_per_second: how many runs its workers may lease, over all of its queues. lease_burst: how many at once after
    a while without any; null: those of a second. max_pending_runs: from how many on, waiting and leased ones, no job is
    created. weight: of its share where tenants compete; null: 1.
    """

    leases_per_second: Annotated[float, Meta(gt=0, le=1_000_000)] | UnsetType | None = UNSET
    lease_burst: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType | None = UNSET
    max_pending_runs: Annotated[int, Meta(ge=1, le=1_000_000_000)] | UnsetType | None = UNSET
    weight: Annotated[int, Meta(ge=1, le=1_000)] | UnsetType | None = UNSET


class TenantView(Answer, kw_only=True):
    """leases_per_second, lease_burst, max_pending_runs, weight: as they were set; None: no limit, a weight of 1."""

    tenant: str
    paused: bool
    paused_at: datetime | None
    paused_queues: list[str]
    leases_per_second: float | None
    lease_burst: int | None
    max_pending_runs: int | None
    weight: int | None
