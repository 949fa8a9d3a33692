"""Jobs, their cursors, and the runs that commands make of them.

Stands for the statements of `ledger/jobs.py`, `ledger/advances.py`, `ledger/edits.py`, `ledger/unstarted_runs.py`,
`ledger/runs.py: TRIGGER_JOBS` and `ledger/cancellations.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from ledger.advances import ADVANCE_JOBS, Advance
from ledger.cancellations import CANCEL_RUNS, OWNERS_OF_RUNS
from ledger.edits import UPDATE_JOBS
from ledger.jobs import CREATE_JOBS, DELETE_JOBS, PAUSE_JOBS, READ_JOBS, RESUME_JOBS, Policies
from ledger.jobs import Job as JobRow
from ledger.overlap_changes import FOLLOW_OVERLAP
from ledger.run_locks import LOCK_RUNS
from ledger.runs import TRIGGER_JOBS
from ledger.unstarted_runs import DROP_UNSTARTED, READ_UNSTARTED
from tests.simulation.postgres import Rows, Transaction, models
from tests.simulation.rows import Job, Run
from tests.simulation.statements.fence import Statement


def of_each(params: Any, *names: str) -> Iterator[tuple[Any, ...]]:
    """The rows of an `unnest` of these parameters."""
    return zip(*(params[name] for name in names), strict=True)


def pending(run: Run) -> tuple[Any, ...]:
    """RUN_COLUMNS."""
    return (
        run.run_id, run.job_id, run.tenant, run.queue, run.lane, run.version, run.scheduled_for, run.due_at, run.overlap
    )  # fmt: skip


def make_run(
    tx: Transaction, job: Job, run_id: UUID, scheduled_for: datetime, due_at: datetime, **more: Any
) -> Generator[int, Any, Run | None]:
    """`make_run()` with ON CONFLICT DO NOTHING: None when there is one of that id."""
    if (yield from tx.find_place("runs", run_id)) is not None:
        return None
    version = 1 if job.edited_at is None else 2 * job.version - 1
    start_by = more.pop("start_by", _start_by(job, due_at))
    run = Run(
        run_id, job.job_id, job.partition, job.tenant, job.queue, job.lane, job.max_attempts, scheduled_for, due_at,
        job.payload, more.pop("overlap", job.overlap), job.timeout_s, start_by, version, **more,
    )  # fmt: skip
    tx.put("runs", run_id, run)
    return run


def _start_by(job: Job, due_at: datetime) -> datetime | None:
    return None if job.start_deadline_s is None else due_at + timedelta(seconds=job.start_deadline_s)


def tell_waiting(tx: Transaction, run: Run, at: datetime, reason: str | None = None) -> None:
    tx.tell(
        "run_scheduled" if run.state == "pending" else "run_held", run, at, attempt=run.attempt,
        scheduled_for=run.scheduled_for, due_at=run.due_at, gated=run.overlap != 0 and run.state == "pending",
        reason=reason,
    )  # fmt: skip


def drop_run(tx: Transaction, run: Run, event: str, at: datetime, reason: str | None, **more: Any) -> None:
    tx.put("runs", run.run_id, None)
    more |= {"attempt": run.attempt, "scheduled_for": run.scheduled_for, "reason": reason}
    tx.tell(event, run, at, version=run.version + 1, **more)


def tell_job(tx: Transaction, event: str, job: Job, at: datetime) -> None:
    more = {"scheduled_for": job.created_at, "due_at": job.next_fire_at, "definition": job.definition}
    tx.tell(event, job, at, **more)


def runs_of(tx: Transaction, job_id: UUID) -> list[Run]:
    return sorted((run for run in tx.all("runs") if run.job_id == job_id), key=lambda run: run.run_id.int)


def _is_unstarted(run: Run) -> bool:
    return run.state != "leased" and run.lease_token == 0


def _in_state(*states: str) -> Callable[[Any], bool]:
    return lambda row: row.state in states


@models(READ_JOBS)
def read_jobs(tx: Transaction, params: Any) -> Rows:
    found = (tx.get("jobs", job_id) for job_id in params[0])
    return [tuple(getattr(job, name) for name in JobRow._fields) for job in found if job is not None]


@models(CREATE_JOBS)
def create_jobs(tx: Transaction, params: Any) -> Statement:
    made: list[Run] = []
    columns = (
        "job_id", "tenant", "queue", "lane", "definition", "payload", "max_attempts", "next_fire_at", "created_at",
        "overlap", "timeout_s", "start_deadline_s", "retry_backoff", "retry_base_s", "retry_max_s", "concurrency_key",
        "run_id", "due_at",
    )  # fmt: skip
    for row in of_each(params, *columns):
        *own, run_id, due_at = row
        if (yield from tx.find_place("jobs", row[0])) is not None:
            continue
        job = Job(own[0], params["partition"], *own[1:9], params["tzdata"], *own[9:])  # type: ignore[call-arg]
        tx.put("jobs", job.job_id, job)
        tell_job(tx, "job_created", job, params["now"])
        run = yield from make_run(tx, job, run_id, row[7], due_at)
        if run is not None:
            tell_waiting(tx, run, params["now"])
            made.append(run)
    return [pending(run) for run in made]


@models(PAUSE_JOBS)
def pause_jobs(tx: Transaction, params: Any) -> Statement:
    seen = {job_id: [run.run_id for run in runs_of(tx, job_id)] for job_id in params["job_ids"]}
    held: Rows = []
    for job_id in params["job_ids"]:
        job = yield from tx.lock_where("jobs", job_id, _in_state("active"))
        if job is None:
            continue
        job = job.copied()
        job.state, job.paused_at, job.version = "paused", params["now"], job.version + 1
        tx.put("jobs", job_id, job)
        tell_job(tx, "job_paused", job, params["now"])
        for run_id in seen[job_id]:
            run = yield from tx.lock_where("runs", run_id, _in_state("pending"))
            if run is not None:
                run = run.copied()
                run.state, run.version = "held", run.version + 1
                tx.put("runs", run_id, run)
                tell_waiting(tx, run, params["now"])
                held.append((run_id,))
    return held


@models(RESUME_JOBS)
def resume_jobs(tx: Transaction, params: Any) -> Statement:
    waiting: list[Run] = []
    now = params["now"]
    for job_id, next_fire_at, skipped_run_id, run_id, due_at in of_each(
        params, "job_id", "next_fire_at", "skipped_run_id", "run_id", "due_at"
    ):
        seen = runs_of(tx, job_id)
        job = yield from tx.lock_where("jobs", job_id, _in_state("paused"))
        if job is None:
            continue
        job = job.copied()
        job.state, job.paused_at, job.version, job.next_fire_at = "active", None, job.version + 1, next_fire_at
        tx.put("jobs", job_id, job)
        tell_job(tx, "job_resumed", job, now)
        for before in seen:
            run = yield from tx.lock_where("runs", before.run_id, _in_state("held"))
            if run is None:
                continue
            if run.run_id == skipped_run_id:
                drop_run(tx, run, "run_skipped", now, "paused")
                continue
            run = run.copied()
            run.state, run.version = "pending", run.version + 1
            tx.put("runs", run.run_id, run)
            waiting.append(run)
        if run_id is not None:
            run = yield from make_run(tx, job, run_id, next_fire_at, due_at)
            if run is not None:
                waiting.append(run)
    for run in waiting:
        tell_waiting(tx, run, now)
    return [pending(run) for run in waiting]


@models(DELETE_JOBS)
def delete_jobs(tx: Transaction, params: Any) -> Statement:
    dropped: Rows = []
    for job_id in params["job_ids"]:
        seen = runs_of(tx, job_id)
        job = yield from tx.lock_where("jobs", job_id, _in_state("active", "paused"))
        if job is None:
            continue
        job = job.copied()
        job.state, job.paused_at, job.next_fire_at, job.version = "deleted", None, None, job.version + 1
        tx.put("jobs", job_id, job)
        tell_job(tx, "job_deleted", job, params["now"])
        for before in seen:
            run = yield from tx.lock_where("runs", before.run_id, _in_state("pending", "held"))
            if run is not None:
                drop_run(tx, run, "run_cancelled", params["now"], "deleted")
                dropped.append((run.run_id,))
    return dropped


def _is_at(tx: Transaction, move: Advance, job: Job) -> bool:
    """The cursor's compare-and-set."""
    is_there = (job.version, job.next_fire_at) == (move.version, move.fired_at)
    return job.state == "active" and (is_there or not tx.keeps("cursor"))


def _waits_unstarted(run: Run) -> bool:
    return run.state == "pending" and run.lease_token == 0


@models(ADVANCE_JOBS)
def advance_jobs(tx: Transaction, params: Any) -> Statement:
    """The cursor's move, the run of its new occurrence, and what is skipped."""
    made: list[Run] = []
    now = params["now"]
    for move in map(Advance._make, of_each(params, *Advance._fields)):
        job = yield from tx.lock_where("jobs", move.job_id, partial(_is_at, tx, move))
        if job is None:
            continue
        job = job.copied()
        job.next_fire_at, job.version = move.next_fire_at, job.version + (move.range_count is not None)
        tx.put("jobs", job.job_id, job)
        if move.skipped_run_id is not None:
            run = yield from tx.lock_where("runs", move.skipped_run_id, _waits_unstarted)
            if run is not None:
                drop_run(tx, run, "run_skipped", now, move.skip_reason)
        if move.range_count is not None:
            what = {"count": move.range_count, "reason": move.range_reason}
            tx.tell("occurrences_skipped", job, now, scheduled_for=move.range_first, due_at=move.range_last, **what)
        if move.run_id is not None:
            assert move.next_fire_at is not None
            assert move.due_at is not None
            run = yield from make_run(tx, job, move.run_id, move.next_fire_at, move.due_at)
            if run is not None:
                tell_waiting(tx, run, now)
                made.append(run)
    return [pending(run) for run in made]


@models(LOCK_RUNS)
def lock_runs(tx: Transaction, params: Any) -> Statement:
    """No job here changes its overlap, and none of its runs goes in turn."""
    of_jobs = {run.run_id for job_id in params["job_ids"] for run in runs_of(tx, job_id) if run.state != "leased"}
    for run_id in sorted(of_jobs.union(params["run_ids"]), key=lambda run_id: run_id.int):
        if tx.get("runs", run_id) is not None:
            yield from tx.lock("runs", run_id)
    return []


@models(FOLLOW_OVERLAP)
def follow_overlap(tx: Transaction, params: Any) -> Rows:
    """Edits here leave a job's overlap as it is, so there is nothing to follow."""
    for job_id in params["job_ids"]:
        job = tx.get("jobs", job_id)
        assert all(run.overlap in (job.overlap, 3) for run in runs_of(tx, job_id))
    return []


_DEFINED = ("queue", "lane", "definition", "payload", "max_attempts", "next_fire_at", *Policies._fields)
_KEPT_TOO = ("queue", "lane", "payload", "max_attempts", "overlap", "timeout_s")


@models(UPDATE_JOBS)
def update_jobs(tx: Transaction, params: Any) -> Statement:
    waiting: list[Run] = []
    now, reason = params["now"], params["reason"]
    for job_id, replaced_run_id, run_id, due_at, *defined in of_each(
        params, "job_id", "replaced_run_id", "run_id", "due_at", *_DEFINED
    ):
        job = yield from tx.lock_where("jobs", job_id, _in_state("active", "paused"))
        if job is None:
            continue
        job = job.copied()
        for name, value in zip(_DEFINED, defined, strict=True):
            setattr(job, name, value)
        job.version, job.edited_at = job.version + 1, now
        tx.put("jobs", job_id, job)
        tell_job(tx, "job_updated", job, now)
        if replaced_run_id is not None and replaced_run_id != run_id:
            run = yield from tx.lock_where("runs", replaced_run_id, _is_unstarted)
            if run is not None:
                drop_run(tx, run, "run_cancelled", now, reason)
        if run_id is None:
            continue
        kept = yield from tx.lock_where("runs", run_id, _is_unstarted)
        if kept is not None:
            kept = kept.copied()
            for name in _KEPT_TOO:
                setattr(kept, name, getattr(job, name))
            kept.due_at, kept.start_by, kept.version = due_at, _start_by(job, due_at), kept.version + 1
            tx.put("runs", run_id, kept)
            waiting.append(kept)
        elif run_id != replaced_run_id:
            state = "held" if job.state == "paused" else "pending"
            run = yield from make_run(tx, job, run_id, job.next_fire_at, due_at, state=state)
            if run is not None:
                waiting.append(run)
    for run in waiting:
        tell_waiting(tx, run, now, reason)
    return [pending(run) for run in waiting if run.state == "pending"]


@models(READ_UNSTARTED)
def read_unstarted(tx: Transaction, params: Any) -> Rows:
    _, job_ids = params
    return [
        (run.run_id, run.job_id, run.scheduled_for)
        for job_id in job_ids
        for run in runs_of(tx, job_id)
        if _is_unstarted(run)
    ]


@models(DROP_UNSTARTED)
def drop_unstarted(tx: Transaction, params: Any) -> Statement:
    dropped: Rows = []
    for run_id in params["run_ids"]:
        run = yield from tx.lock_where("runs", run_id, _is_unstarted)
        if run is not None:
            drop_run(tx, run, "run_cancelled", params["now"], "edited")
            dropped.append((run_id,))
    return dropped


@models(TRIGGER_JOBS)
def trigger_jobs(tx: Transaction, params: Any) -> Statement:
    made: list[Run] = []
    for job_id, run_id, scheduled_for, due_at in of_each(params, "job_id", "run_id", "scheduled_for", "due_at"):
        job = tx.get("jobs", job_id)
        at = due_at or min(scheduled_for, params["now"])
        run = yield from make_run(tx, job, run_id, scheduled_for, at, start_by=None)
        if run is not None:
            tell_waiting(tx, run, params["now"], params["reason"])
            made.append(run)
    return [pending(run) for run in made]


def cancel(tx: Transaction, run: Run, at: datetime, reason: str) -> None:
    """CANCEL_DOOMED, for a locked run: it is gone, or its worker will be told."""
    if run.state != "leased":
        drop_run(tx, run, "run_cancelled", at, reason)
    elif run.cancel_reason is None:
        run = run.copied()
        run.cancel_reason, run.version = reason, run.version + 1
        tx.put("runs", run.run_id, run)
        tx.tell(
            "run_cancel_requested", run, at, attempt=run.attempt, lease_token=run.lease_token, due_at=run.due_at,
            scheduled_for=run.scheduled_for, lease_expires_at=run.lease_expires_at, worker_id=run.worker_id,
            reason=reason,
        )  # fmt: skip


@models(CANCEL_RUNS)
def cancel_runs(tx: Transaction, params: Any) -> Statement:
    outcomes: Rows = []
    for run_id in params["run_ids"]:
        run = yield from tx.lock_where("runs", run_id, lambda _: True)
        if run is not None:
            outcomes.append((run_id, "requested" if run.state == "leased" else "cancelled"))
            cancel(tx, run, params["now"], "cancelled")
    return outcomes


@models(OWNERS_OF_RUNS)
def owners_of_runs(tx: Transaction, params: Any) -> Rows:
    found = [tx.get("runs", run_id) for run_id in params["run_ids"]]
    dead = [tx.get("dead_runs", run_id) for run_id in params["run_ids"]]
    return [(run.run_id, run.job_id, run.tenant, run.state) for run in found if run is not None] + [
        (run.run_id, run.job_id, run.tenant, "dead") for run in dead if run is not None
    ]
