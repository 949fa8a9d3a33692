"""What runs and jobs should do, in plain Python: it shares no line with the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

MAX_ATTEMPTS = 3
OVERLAPS = ALLOW, SKIP, REPLACE = range(3)


@dataclass
class ModelJob:
    """cursor: the run of the pending occurrence. edited: its definition was replaced once."""

    overlap: int
    timeout: timedelta | None
    start_deadline: timedelta | None
    cursor: UUID | None
    state: str = "active"
    version: int = 1
    edited: bool = False
    told: list[str] = field(default_factory=lambda: ["job_created"])

    def become(self, state: str, event: str) -> None:
        self.state = state
        self.version += 1
        self.told.append(event)

    @property
    def first_version(self) -> int:
        """Of a run that is made now."""
        return 2 * self.version - 1 if self.edited else 1


@dataclass
class ModelRun:
    job_id: UUID
    scheduled_for: datetime
    due_at: datetime
    overlap: int = ALLOW
    timeout: timedelta | None = None
    start_by: datetime | None = None
    state: str = "pending"
    attempt: int = 0
    token: int = 0
    expires_at: datetime | None = None
    attempt_ends_at: datetime | None = None
    cancel: str | None = None
    slotless: bool = False  # of a leased run: it was leased before its job's overlap was other than allow
    told: list[tuple[int, str]] = field(default_factory=list)

    @classmethod
    def of(cls, job_id: UUID, job: ModelJob, due_at: datetime, *, deadline: bool = True) -> ModelRun:
        """A run as its job says."""
        start_by = due_at + job.start_deadline if deadline and job.start_deadline is not None else None
        run = cls(job_id, due_at, due_at, job.overlap, job.timeout, start_by)
        run.told.append((job.first_version, "run_scheduled"))
        return run

    @property
    def version(self) -> int:
        return self.told[-1][0]

    def tell(self, event: str) -> None:
        self.told.append((self.version + 1, event))

    def become(self, state: str, event: str) -> None:
        self.state = state
        self.expires_at = self.attempt_ends_at = self.cancel = None
        self.slotless = False
        self.tell(event)

    def lease(self, now: datetime, visibility: timedelta) -> None:
        self.become("leased", "run_leased")
        self.attempt, self.token = self.attempt + 1, self.token + 1
        self.attempt_ends_at = None if self.timeout is None else now + self.timeout
        self.expires_at = self.bounded(now + visibility)

    def extend(self, until: datetime) -> None:
        assert self.expires_at is not None
        if self.cancel is None:
            self.expires_at = self.bounded(max(self.expires_at, until))

    def bounded(self, until: datetime) -> datetime:
        return until if self.attempt_ends_at is None else min(until, self.attempt_ends_at)

    def holds(self, token: int, now: datetime) -> bool:
        return self.state == "leased" and self.token == token and self.expires_at is not None and self.expires_at > now

    def may_start(self, now: datetime) -> bool:
        return self.state == "pending" and self.due_at <= now and not self.is_late(now)

    def is_late(self, now: datetime) -> bool:
        return self.state == "pending" and self.start_by is not None and self.start_by < now

    def fate(self, job_state: str, otherwise: str, *, permanent: bool = False) -> str:
        """What its attempt's end makes of it."""
        if self.cancel is not None:
            return "cancelled"
        if permanent:
            return "dead"
        return {"active": otherwise, "paused": "held", "deleted": "cancelled"}[job_state]


Runs = dict[UUID, ModelRun]


def order(runs: Runs, run_id: UUID) -> tuple[datetime, datetime, int]:
    run = runs[run_id]
    return run.due_at, run.scheduled_for, run_id.int


def leasable(runs: Runs, asked: Iterable[UUID], now: datetime) -> set[UUID]:
    """Which of the runs asked for get leased: of a job that does not allow overlap one at most, the first due."""
    taken = {run.job_id for run in runs.values() if run.state == "leased" and run.overlap != ALLOW}
    given = set()
    for run_id in sorted((each for each in asked if runs[each].may_start(now)), key=lambda each: order(runs, each)):
        run = runs[run_id]
        if run.overlap == ALLOW or run.job_id not in taken:
            given.add(run_id)
            if run.overlap != ALLOW:
                taken.add(run.job_id)
    return given


def active_before(runs: Runs, run_id: UUID, now: datetime) -> Iterator[UUID]:
    """The other runs of its job that count as active when it comes."""
    for other_id, other in runs.items():
        if other.job_id == runs[run_id].job_id and other_id != run_id:
            waits = other.state == "pending" and other.due_at <= now and order(runs, other_id) < order(runs, run_id)
            if other.state == "leased" or (other.state in ("pending", "held") and other.token > 0) or waits:
                yield other_id


def admit(runs: Runs, asked: Iterable[UUID], now: datetime) -> tuple[set[UUID], set[UUID]]:
    """Apply the overlap rules; returns (ready, waiting)."""
    gated = [
        each for each in asked if runs[each].state == "pending" and runs[each].due_at <= now and runs[each].overlap
    ]
    before = {each: list(active_before(runs, each, now)) for each in gated if runs[each].token == 0}
    for run_id, others in before.items():
        if runs[run_id].overlap == SKIP and others:
            runs[run_id].become("gone", "run_skipped")
    for other_id in {other for run_id, others in before.items() if runs[run_id].overlap == REPLACE for other in others}:
        cancel(runs[other_id], "replaced")
    left = sorted((each for each in gated if runs[each].state == "pending"), key=lambda each: order(runs, each))
    busy = {run.job_id for run in runs.values() if run.state == "leased"}
    ready = set()
    for run_id in left:
        if runs[run_id].job_id not in busy:
            ready.add(run_id)
            busy.add(runs[run_id].job_id)
    return ready, set(left) - ready


def change_overlap(runs: Runs, job_id: UUID, overlap: int) -> None:
    """An edit has made it the job's: all that the job has is under it from now on."""
    for run in runs.values():
        if run.job_id == job_id and run.state in ("pending", "leased", "held") and run.overlap != overlap:
            run.slotless = run.state == "leased" and overlap != ALLOW and (run.slotless or run.overlap == ALLOW)
            run.overlap = overlap
            if run.state != "leased":
                run.tell("run_held" if run.state == "held" else "run_scheduled")


def cancel(run: ModelRun, reason: str) -> None:
    if run.state != "leased":
        run.become("gone", "run_cancelled")
    elif run.cancel is None:
        run.cancel = reason
        run.tell("run_cancel_requested")
