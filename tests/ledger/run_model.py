"""What runs and jobs should do, in plain Python: it shares no line with the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

MAX_ATTEMPTS = 3
OVERLAPS = ALLOW, SKIP, REPLACE = range(3)
IN_TURN = 3  # of a run only


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
    def of(
        cls, job_id: UUID, job: ModelJob, due_at: datetime, *, deadline: bool = True, in_turn: bool = False
    ) -> ModelRun:
        """A run as its job says."""
        start_by = due_at + job.start_deadline if deadline and job.start_deadline is not None else None
        run = cls(job_id, due_at, due_at, IN_TURN if in_turn and job.overlap else job.overlap, job.timeout, start_by)
        run.told.append((job.first_version, "run_scheduled"))
        return run

    @property
    def in_turn(self) -> bool:
        """It is still to start, after all others."""
        return self.overlap == IN_TURN and self.token == 0

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


def order(runs: Runs, run_id: UUID) -> tuple[bool, datetime, datetime, int]:
    run = runs[run_id]
    return run.in_turn, run.due_at, run.scheduled_for, run_id.int


def is_its_turn(runs: Runs, run_id: UUID) -> bool:
    """Nothing of its job that has started waits to go on, and it is the first that waits in turn."""
    others = [run for run in runs.items() if run[1].job_id == runs[run_id].job_id and run[1].state == "pending"]
    return not any(
        other.token > 0 or (other.in_turn and order(runs, other_id) < order(runs, run_id)) for other_id, other in others
    )


def leasable(runs: Runs, asked: Iterable[UUID], now: datetime) -> set[UUID]:
    """Which of the runs asked for get leased: of a job that does not allow overlap one at most, the first due."""
    taken = {run.job_id for run in runs.values() if run.state == "leased" and run.overlap != ALLOW}
    given = set()
    may = [each for each in asked if runs[each].may_start(now) and (not runs[each].in_turn or is_its_turn(runs, each))]
    for run_id in sorted(may, key=lambda each: order(runs, each)):
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
            waits = other.state == "pending" and other.due_at <= now and not other.in_turn
            waits = waits and order(runs, other_id) < order(runs, run_id)
            if other.state == "leased" or (other.state in ("pending", "held") and other.token > 0) or waits:
                yield other_id


def admit(runs: Runs, asked: Iterable[UUID], now: datetime) -> tuple[set[UUID], set[UUID]]:
    """Apply the overlap rules; returns (ready, waiting). Ready are those whose turn it is in the jobs asked for."""
    gated = [
        each for each in asked if runs[each].state == "pending" and runs[each].due_at <= now and runs[each].overlap
    ]
    before = {each: list(active_before(runs, each, now)) for each in gated if runs[each].token == 0}
    for run_id, others in before.items():
        if runs[run_id].overlap == SKIP and others:
            runs[run_id].become("gone", "run_skipped")
    for other_id in {other for run_id, others in before.items() if runs[run_id].overlap == REPLACE for other in others}:
        cancel(runs[other_id], "replaced")
    left = {each for each in gated if runs[each].state == "pending"}
    ready = {first for job_id in {runs[each].job_id for each in left} for first in next_of(runs, job_id, now)}
    return ready, left - ready


def next_of(runs: Runs, job_id: UUID, now: datetime) -> Iterator[UUID]:
    """The run of the job whose turn it is, if there is one."""
    of_job = [run_id for run_id, run in runs.items() if run.job_id == job_id]
    waiting = [each for each in of_job if runs[each].state == "pending" and runs[each].due_at <= now]
    busy = any(runs[each].state == "leased" for each in of_job)
    if waiting and not busy:
        first = min(waiting, key=lambda each: order(runs, each))
        if not runs[first].in_turn or is_its_turn(runs, first):
            yield first


def change_overlap(runs: Runs, job_id: UUID, overlap: int, now: datetime) -> None:
    """An edit has made it the job's: all that the job has is under it from now on."""
    for run in runs.values():
        if run.job_id == job_id and run.state in ("pending", "leased", "held"):
            follow(run, overlap, now)


def follow(run: ModelRun, overlap: int, now: datetime) -> None:
    due = run.state != "leased" and run.token == 0 and run.due_at <= now
    if overlap != ALLOW and (run.overlap == IN_TURN or (run.overlap == ALLOW and due)):
        overlap = IN_TURN
    if run.overlap != overlap:
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
