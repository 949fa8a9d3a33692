"""Leases (`ledger/leases.py`, `ledger/lease_requests.py`) and slots of jobs without overlap (`ledger/slots.py`)."""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ledger.lease_requests import RECALL_LEASES
from ledger.leases import EXTEND_LEASES, LEASE_GATED_RUNS, LEASE_RUNS, RELEASE_RUNS
from tests.simulation.postgres import Rows, Transaction, models
from tests.simulation.rows import LeaseRequest, Run
from tests.simulation.statements.fence import Statement
from tests.simulation.statements.jobs import of_each
from tests.simulation.statements.outcomes import End, holds, take_back

Ask = tuple[UUID, int, str, float, UUID | None]
_FIRST = -1


def _asks(params: Any) -> list[Ask]:
    return list(of_each(params, "run_ids", "epochs", "worker_ids", "visibility_s", "request_ids"))


def _may_be_leased(tx: Transaction, run: Run | None, epoch: int, gated: bool) -> bool:
    """`_leasable()`. The partition's row is held still by the fence; pauses of queues are left out here."""
    if run is None:
        return False
    partition = tx.get("partitions", run.partition)
    if partition is None or (tx.keeps("epoch of a hint") and partition.epoch != epoch):
        return False
    is_due = run.due_at <= tx.now or not tx.keeps("due")
    is_in_time = run.start_by is None or run.start_by >= tx.now
    return run.state == "pending" and is_due and is_in_time and (run.overlap != 0) == gated


def _lease(tx: Transaction, run: Run, ask: Ask) -> Run:
    """`_TAKE` and its event."""
    _, _, worker_id, visibility_s, _ = ask
    now = tx.statement_now
    run = run.copied()
    run.state, run.version, run.attempt = "leased", run.version + 1, run.attempt + 1
    run.lease_token += tx.keeps("token grows")
    run.worker_id = worker_id
    run.attempt_ends_at = None if run.timeout_s is None else now + timedelta(seconds=run.timeout_s)
    run.lease_expires_at = now + timedelta(seconds=_lease_s(run, visibility_s))
    tx.put("runs", run.run_id, run)
    tx.tell(
        "run_leased", run, tx.now, attempt=run.attempt, lease_token=run.lease_token, scheduled_for=run.scheduled_for,
        due_at=run.due_at, lease_expires_at=run.lease_expires_at, worker_id=worker_id,
    )  # fmt: skip
    return run


def _remember(tx: Transaction, request_id: UUID | None, leased: list[Run]) -> Statement:
    """`_REMEMBER`. All that a statement leases here is of one call."""
    if request_id is not None and tx.keeps("request ids"):
        known = (yield from tx.lock("lease_requests", request_id)) or LeaseRequest(request_id, [], [])
        run_ids = [*known.run_ids, *(run.run_id for run in leased)]
        tokens = [*known.lease_tokens, *(run.lease_token for run in leased)]
        tx.put("lease_requests", request_id, LeaseRequest(request_id, run_ids, tokens))
    return []


def _lease_s(run: Run, visibility_s: float) -> float:
    return visibility_s if run.timeout_s is None else min(visibility_s, run.timeout_s)


def _answered(tx: Transaction, taken: list[tuple[Run, Ask]]) -> Statement:
    if taken:
        yield from _remember(tx, taken[0][1][4], [run for run, _ in taken])
    return [_answer(run, _lease_s(run, ask[3])) for run, ask in taken]


def _answer(run: Run, lease_s: float) -> tuple[Any, ...]:
    return (
        run.run_id, run.job_id, run.attempt, run.lease_token, run.lease_expires_at, run.scheduled_for, run.due_at,
        run.queue, run.payload, lease_s,
    )  # fmt: skip


@models(LEASE_RUNS)
def lease_runs(tx: Transaction, params: Any) -> Statement:
    taken: list[tuple[Run, Ask]] = []
    for ask in [ask for ask in _asks(params) if _may_be_leased(tx, tx.get("runs", ask[0]), ask[1], gated=False)]:
        run = yield from tx.lock("runs", ask[0])
        if _may_be_leased(tx, run, ask[1], gated=False):
            taken.append((_lease(tx, run, ask), ask))
    return (yield from _answered(tx, taken))


@models(LEASE_GATED_RUNS)
def lease_gated_runs(tx: Transaction, params: Any) -> Statement:
    """`take_slots()`: all rows are locked before any slot is asked for. Then the lease, for those that have one."""
    gated: list[tuple[Run, Ask]] = []
    for ask in [ask for ask in _asks(params) if _may_be_leased(tx, tx.get("runs", ask[0]), ask[1], gated=True)]:
        run = yield from tx.lock("runs", ask[0])
        if _may_be_leased(tx, run, ask[1], gated=True):
            gated.append((run, ask))
    taken: list[tuple[Run, Ask]] = []
    for run, ask in sorted(gated, key=lambda each: (each[0].job_id, each[0].due_at, each[0].scheduled_for)):
        if (yield from _take_slot(tx, run)):
            taken.append((_lease(tx, run, ask), ask))
    return (yield from _answered(tx, taken))


def _take_slot(tx: Transaction, run: Run) -> Generator[int, Any, bool]:
    if (yield from tx.find_place("job_slots", run.job_id)) is not None:
        return not tx.keeps("slot")
    tx.put("job_slots", run.job_id, run.run_id)
    return True


@models(RECALL_LEASES)
def recall_leases(tx: Transaction, params: Any) -> Rows:
    noted = tx.get("lease_requests", params["request_id"])
    if noted is None:
        return []
    recalled: Rows = []
    for run_id, token in zip(noted.run_ids, noted.lease_tokens, strict=True):
        run = tx.get("runs", run_id)
        if run is not None and run.lease_token == token and run.state == "leased" and run.lease_expires_at > tx.now:
            recalled.append(_answer(run, (run.lease_expires_at - tx.statement_now).total_seconds()))
    return recalled


@models(EXTEND_LEASES)
def extend_leases(tx: Transaction, params: Any) -> Statement:
    extended: Rows = []
    for run_id, token, visibility_s in of_each(params, "run_ids", "lease_tokens", "visibility_s"):
        if not holds(tx, tx.get("runs", run_id), token):
            continue
        run = yield from tx.lock("runs", run_id)
        if not holds(tx, run, token):
            continue
        now = tx.statement_now
        if run.cancel_reason is None:
            run = run.copied()
            run.lease_expires_at = _extended(run, now, visibility_s)
            tx.put("runs", run_id, run)
            tx.acts.append(("extended", run_id, token, run.lease_expires_at))
        left_s = (run.lease_expires_at - now).total_seconds()
        extended.append((run_id, run.lease_expires_at, run.cancel_reason is not None, left_s))
    return extended


def _extended(run: Run, now: datetime, visibility_s: float) -> datetime:
    assert run.lease_expires_at is not None
    until = max(run.lease_expires_at, now + timedelta(seconds=visibility_s))
    return until if run.attempt_ends_at is None else min(until, run.attempt_ends_at)


@models(RELEASE_RUNS)
def release_runs(tx: Transaction, params: Any) -> Statement:
    jobs = {run_id: tx.get("jobs", run.job_id) for run_id in params["run_ids"] if (run := tx.get("runs", run_id))}
    ends: list[End] = []
    for run_id, token, delay_s in of_each(params, "run_ids", "lease_tokens", "delays_s"):
        if not holds(tx, tx.get("runs", run_id), token):
            continue
        run = yield from tx.lock("runs", run_id)
        if holds(tx, run, token):
            due_at = run.due_at if delay_s is None else tx.now + timedelta(seconds=delay_s)
            ends.append(End(run, jobs[run_id], run.attempt - 1, due_at, None))
    fates = yield from take_back(tx, ends, "released", tx.now)
    return [(end.run.run_id, fate, end.due_at if fate == "released" else None, None) for end, fate in fates]
