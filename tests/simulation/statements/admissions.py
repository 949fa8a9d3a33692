"""The overlap rule and the deadline for the start (`ledger/admissions.py`). No run goes in turn here."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ledger.admissions import LOCK_SIBLINGS, READY_OR_WAITING, REPLACE_OVERLAPPED, SKIP_LATE, SKIP_OVERLAPPING
from tests.simulation.postgres import Rows, Transaction, models
from tests.simulation.rows import Run
from tests.simulation.statements.fence import Statement
from tests.simulation.statements.jobs import cancel, drop_run, runs_of


def _asked(tx: Transaction, params: Any) -> list[Run]:
    """`_ASKED`."""
    found = (tx.get("runs", run_id) for run_id in params["run_ids"])
    return [
        run for run in found
        if run is not None and run.overlap != 0 and run.state == "pending" and run.due_at <= params["now"]
    ]  # fmt: skip


def _place(run: Run) -> tuple[Any, ...]:
    return (run.due_at, run.scheduled_for, run.run_id)


def _before(tx: Transaction, run: Run, now: datetime) -> list[Run]:
    """`_IS_BEFORE`: who of the run's siblings is active."""
    return [
        other for other in runs_of(tx, run.job_id)
        if other.run_id != run.run_id and (
            other.state == "leased" or other.lease_token > 0
            or (other.state == "pending" and other.due_at <= now and _place(other) < _place(run))
        )
    ]  # fmt: skip


@models(LOCK_SIBLINGS)
def lock_siblings(tx: Transaction, params: Any) -> Statement:
    asked = (tx.get("runs", run_id) for run_id in params["run_ids"])
    jobs = {run.job_id for run in asked if run is not None and run.overlap != 0}
    siblings = [run.run_id for run in tx.all("runs") if run.job_id in jobs]
    locked: Rows = []
    for run_id in sorted(siblings, key=lambda run_id: run_id.int):
        if (yield from tx.lock("runs", run_id)) is not None:
            locked.append((run_id,))
    return locked


@models(SKIP_OVERLAPPING)
def skip_overlapping(tx: Transaction, params: Any) -> Rows:
    skipped: Rows = []
    blocked = [
        (run, before) for run in _asked(tx, params)
        if run.overlap == 1 and run.lease_token == 0 and run.run_id in params["locked"]
        and (before := _before(tx, run, params["now"]))
    ]  # fmt: skip
    for run, before in blocked:
        active = min(before, key=lambda other: (other.state != "leased", other.lease_token == 0, _place(other)))
        drop_run(tx, run, "run_skipped", params["now"], f"overlap: run {active.run_id} is active")
        skipped.append((run.run_id,))
    return skipped


@models(REPLACE_OVERLAPPED)
def replace_overlapped(tx: Transaction, params: Any) -> Rows:
    doomed = {
        other.run_id: other
        for run in _asked(tx, params) if run.overlap == 2 and run.lease_token == 0
        for other in _before(tx, run, params["now"]) if other.run_id in params["locked"]
    }  # fmt: skip
    for run in doomed.values():
        cancel(tx, run, params["now"], "replaced")
    return [(run.run_id,) for run in doomed.values() if run.state != "leased"]


@models(READY_OR_WAITING)
def ready_or_waiting(tx: Transaction, params: Any) -> Rows:
    judged: Rows = []
    now, asked_ids = params["now"], set(params["run_ids"])
    for job_id in dict.fromkeys(run.job_id for run in _asked(tx, params)):
        siblings = runs_of(tx, job_id)
        busy = any(run.state == "leased" for run in siblings)
        waiting = [run for run in siblings if run.overlap != 0 and run.state == "pending" and run.due_at <= now]
        for place, run in enumerate(sorted(waiting, key=_place)):
            ready = place == 0 and not busy
            if ready or run.run_id in asked_ids:
                judged.append((run.run_id, ready))
    return judged


@models(SKIP_LATE)
def skip_late(tx: Transaction, params: Any) -> Statement:
    skipped: Rows = []
    for run_id in params["run_ids"]:
        if not _is_late(tx.get("runs", run_id), params["now"]):
            continue
        run = yield from tx.lock("runs", run_id)
        if _is_late(run, params["now"]):
            drop_run(tx, run, "run_skipped", params["now"], "start deadline", due_at=run.due_at)
            skipped.append((run_id,))
    return skipped


def _is_late(run: Run | None, now: datetime) -> bool:
    return run is not None and run.state == "pending" and run.start_by is not None and run.start_by < now
