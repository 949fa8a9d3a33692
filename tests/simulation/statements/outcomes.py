"""How attempts end (`ledger/completions.py`), and where runs go that come back undone (`ledger/returns.py`)."""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from ledger.completions import (
    COMPLETE_RUNS,
    END_REPLACED,
    EXPIRE_LEASES,
    FAIL_RUNS,
    LEASE_EXPIRIES,
    WHAT_ENDED,
)
from tests.simulation.postgres import Rows, Transaction, models
from tests.simulation.rows import DeadRun, Job, Run
from tests.simulation.statements.fence import Statement
from tests.simulation.statements.jobs import of_each

_TICK = timedelta(microseconds=1)


class End(NamedTuple):
    """A row of `ended`. job: as the statement saw it when it began; it is not locked. attempt: charged from now on."""

    run: Run
    job: Job | None
    attempt: int
    due_at: datetime
    reason: str | None
    dead: bool = False


def fate(end: End, otherwise: str) -> str:
    """`fate()`."""
    if end.run.cancel_reason is not None:
        return "cancelled"
    if end.dead:
        return "dead"
    state = None if end.job is None else end.job.state
    return {"paused": "held", "deleted": "cancelled"}.get(state or "", otherwise)


def retry_delay_s(tx: Transaction, run: Run, job: Job | None, asked_s: float | None) -> float:
    """`retry_delay_s()`: full jitter, but never at once."""
    if asked_s is not None:
        return max(0.0, min(7 * 86400.0, asked_s))
    backoff, base_s, max_s = (0, 1.0, 600.0) if job is None else (job.retry_backoff, job.retry_base_s, job.retry_max_s)
    grown = (2.0**run.attempt, float(run.attempt), 1.0)[backoff]
    return max(0.000001, (1 - tx.shard.scheduler.random.random()) * min(max_s, base_s * grown))


def holds(tx: Transaction, run: Run | None, token: int) -> bool:
    """Whether this token's lease lives."""
    if run is None or run.state != "leased" or run.lease_expires_at is None:
        return False
    is_its_token = run.lease_token == token or not tx.keeps("token check")
    return is_its_token and (run.lease_expires_at > tx.now or not tx.keeps("expiry check"))


def free_slot(tx: Transaction, run: Run) -> Statement:
    """`FREE_SLOTS`."""
    if run.overlap != 0 and tx.keeps("freed slot"):
        holder = yield from tx.lock("job_slots", run.job_id)
        if holder == run.run_id:
            tx.put("job_slots", run.job_id, None)
    return []


def take_back(
    tx: Transaction, ends: list[End], otherwise: str, now: datetime
) -> Generator[int, Any, list[tuple[End, str]]]:
    """`TAKE_BACK` and what `_RETRY_OR_BURY` adds, over locked rows."""
    fates: list[tuple[End, str]] = []
    for end in ends:
        what = fate(end, otherwise)
        fates.append((end, what))
        run = end.run
        yield from free_slot(tx, run)
        told = {"attempt": end.attempt, "lease_token": run.lease_token, "scheduled_for": run.scheduled_for}
        told |= {"worker_id": run.worker_id, "reason": end.reason}
        if what in ("cancelled", "dead"):
            tx.put("runs", run.run_id, None)
            if what == "cancelled":
                told["reason"] = run.cancel_reason or "deleted"
            else:
                tx.place("dead_runs", run.run_id, _grave(run, end.reason))
            tx.tell(f"run_{what}", run, now, version=run.version + 1, **told)
            continue
        back = run.copied()
        back.state, back.version, back.attempt = "held" if what == "held" else "pending", run.version + 1, end.attempt
        back.due_at, back.lease_expires_at, back.worker_id, back.attempt_ends_at = end.due_at, None, None, None
        back.start_by = run.start_by if end.attempt < run.attempt and end.due_at == run.due_at else None
        tx.put("runs", run.run_id, back)
        if what == "released":
            del told["worker_id"]
        tx.tell(f"run_{what}", back, now, due_at=end.due_at, gated=run.overlap != 0 and what != "held", **told)
    return fates


def _grave(run: Run, reason: str | None) -> DeadRun:
    return DeadRun(
        run.run_id, run.job_id, run.partition, run.tenant, run.queue, run.lane, run.version + 1, run.attempt,
        run.max_attempts, run.lease_token, run.scheduled_for, run.worker_id, reason,
    )  # fmt: skip


def _tell_end(tx: Transaction, event: str, run: Run, **more: Any) -> None:
    tx.tell(
        event, run, tx.now, version=run.version + 1, attempt=run.attempt, lease_token=run.lease_token,
        scheduled_for=run.scheduled_for, worker_id=run.worker_id, **more,
    )  # fmt: skip


@models(COMPLETE_RUNS)
def complete_runs(tx: Transaction, params: Any) -> Statement:
    done: Rows = []
    for run_id, token, result in of_each(params, "run_ids", "lease_tokens", "results"):
        if not holds(tx, tx.get("runs", run_id), token):
            continue
        run = yield from tx.lock("runs", run_id)
        if not holds(tx, run, token) or run.cancel_reason == "replaced":
            continue
        yield from free_slot(tx, run)
        tx.put("runs", run_id, None)
        _tell_end(tx, "run_completed", run, result=result)
        done.append((run_id, None))
    return done


@models(END_REPLACED)
def end_replaced(tx: Transaction, params: Any) -> Statement:
    for run_id, token in of_each(params, "run_ids", "lease_tokens"):
        seen = tx.get("runs", run_id)
        if seen is None or seen.lease_token != token or seen.cancel_reason != "replaced":
            continue
        run = yield from tx.lock("runs", run_id)
        if run is not None and run.lease_token == token and run.cancel_reason == "replaced":
            yield from free_slot(tx, run)
            tx.put("runs", run_id, None)
            _tell_end(tx, "run_cancelled", run, reason="replaced")
    return []


@models(FAIL_RUNS)
def fail_runs(tx: Transaction, params: Any) -> Statement:
    jobs = _jobs_of(tx, params["run_ids"])
    ends: list[End] = []
    for run_id, token, reason, permanent, asked_s in of_each(
        params, "run_ids", "lease_tokens", "reasons", "permanent", "retry_after_s"
    ):
        if not holds(tx, tx.get("runs", run_id), token):
            continue
        run = yield from tx.lock("runs", run_id)
        if holds(tx, run, token):
            ends.append(_ended(tx, run, jobs[run_id], tx.now, reason, permanent=permanent, asked_s=asked_s))
    return _retried((yield from take_back(tx, ends, "retried", tx.now)))


@models(EXPIRE_LEASES)
def expire_leases(tx: Transaction, params: Any) -> Statement:
    now = params["now"]
    jobs = _jobs_of(tx, params["run_ids"])
    ends: list[End] = []
    for run_id in params["run_ids"]:
        if not _is_expired(tx, tx.get("runs", run_id), now):
            continue
        run = yield from tx.lock("runs", run_id)
        if _is_expired(tx, run, now):
            is_late = run.attempt_ends_at is not None and run.attempt_ends_at <= now
            ends.append(_ended(tx, run, jobs[run_id], now, "timed out" if is_late else "lease expired"))
    return _retried((yield from take_back(tx, ends, "retried", now)))


def _is_expired(tx: Transaction, run: Run | None, now: datetime) -> bool:
    if run is None or run.state != "leased" or run.lease_expires_at is None:
        return False
    return run.lease_expires_at <= now or not tx.keeps("lease extended")


def _jobs_of(tx: Transaction, run_ids: list[UUID]) -> dict[UUID, Job | None]:
    """JOB_OF_RUN, as of the statement's beginning."""
    return {run_id: tx.get("jobs", run.job_id) for run_id in run_ids if (run := tx.get("runs", run_id)) is not None}


def _ended(
    tx: Transaction, run: Run, job: Job | None, now: datetime, reason: str,
    *, permanent: bool = False, asked_s: float | None = None,
) -> End:  # fmt: skip
    dead = permanent or (run.attempt >= run.max_attempts and tx.keeps("attempts"))
    delay = timedelta(seconds=retry_delay_s(tx, run, job, asked_s))
    return End(run, job, run.attempt, now + max(delay, _TICK), reason, dead)


def _retried(fates: list[tuple[End, str]]) -> Rows:
    return [(end.run.run_id, what, end.due_at if what == "retried" else None, None) for end, what in fates]


@models(LEASE_EXPIRIES)
def lease_expiries(tx: Transaction, params: Any) -> Rows:
    found = (tx.get("runs", run_id) for run_id in params[0])
    return [(run.run_id, run.lease_expires_at) for run in found if run is not None and run.state == "leased"]


@models(WHAT_ENDED)
def what_ended(tx: Transaction, params: Any) -> Rows:
    run_id, token, ends = params["run_id"], params["lease_token"], params["ends"]
    for told in sorted(tx.shard.outbox.values(), key=lambda told: -told.row):
        if told.run_id == run_id and told.event in ends and token in (None, told.lease_token):
            return [
                (
                    told.event, told.lease_token, told.tenant, told.queue, told.lane, told.job_id, told.attempt,
                    told.scheduled_for, told.worker_id, told.due_at, told.reason, told.result,
                )
            ]  # fmt: skip
    return []
