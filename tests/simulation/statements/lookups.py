"""What is read: by owners that rebuild their memory, by polls, by calls that found no lease, by the relay.

Of `ledger/runs.py`, `ledger/jobs.py` and `ledger/outbox.py`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ledger.connection import CONFIRM_COMMITS
from ledger.jobs import READ_OVERDUE_JOBS, READ_PARTITION_JOBS
from ledger.outbox import DELETE_FROM_OUTBOX, LAST_UNPUBLISHED, OLDEST_UNPUBLISHED, READ_OUTBOX
from ledger.partitions import IS_TOLD_SINCE
from ledger.runs import FIND_DUE, READ_OVERDUE_RUNS, READ_PARTITION_RUNS, READ_RUN, READ_RUNS
from tests.simulation.postgres import Rows, Transaction, models
from tests.simulation.rows import Job, Run
from tests.simulation.statements.jobs import pending


def _live(run: Run) -> tuple[Any, ...]:
    return (*pending(run), run.state, run.lease_expires_at)


def _timed(job: Job) -> tuple[Any, ...]:
    return (job.job_id, job.version, job.next_fire_at, job.created_at, job.definition)


@models(READ_PARTITION_JOBS, READ_OVERDUE_JOBS)
def read_partition_jobs(tx: Transaction, params: Any) -> Rows:
    number, *overdue_s = params
    jobs = [job for job in tx.all("jobs") if (job.partition, job.state) == (number, "active") and job.next_fire_at]
    if overdue_s:
        jobs = [job for job in jobs if job.next_fire_at < tx.now - timedelta(seconds=overdue_s[0])]
    return [_timed(job) for job in jobs]


@models(READ_PARTITION_RUNS, READ_OVERDUE_RUNS)
def read_partition_runs(tx: Transaction, params: Any) -> Rows:
    number, *overdue_s = params
    runs = [run for run in tx.all("runs") if run.partition == number and run.state != "held"]
    if overdue_s:
        before = tx.now - timedelta(seconds=overdue_s[0])
        runs = [run for run in runs if (run.lease_expires_at or run.due_at) < before]
    return [_live(run) for run in runs]


@models(READ_RUNS)
def read_runs(tx: Transaction, params: Any) -> Rows:
    found = (tx.get("runs", run_id) for run_id in params[0])
    return [_live(run) for run in found if run is not None and run.state != "held"]


@models(CONFIRM_COMMITS)
def confirm_commits(_tx: Transaction, _params: Any) -> Rows:
    """This Postgres has no standby: what is visible is committed."""
    return []


@models(FIND_DUE)
def find_due(tx: Transaction, params: Any) -> Rows:
    due: Rows = []
    asked = set(zip(params["tenants"], params["queues"], params["lanes"], strict=True))
    runs = [run for run in tx.all("runs") if (run.tenant, run.queue, run.lane) in asked and run.state == "pending"]
    for run in sorted(runs, key=lambda run: (run.tenant, run.queue, run.lane, run.due_at)):
        partition = tx.get("partitions", run.partition)
        may_start = run.due_at <= tx.now and (run.start_by is None or run.start_by >= tx.now)
        may_take_slot = run.overlap == 0 or tx.get("job_slots", run.job_id) is None or not tx.keeps("slot")
        if partition is not None and may_start and may_take_slot:
            due.append((run.tenant, run.queue, run.lane, run.run_id, partition.epoch))
    return due[: params["limit"]]


@models(READ_RUN)
def read_run(tx: Transaction, params: Any) -> Rows:
    run: Run | None = tx.get("runs", params["run_id"])
    if run is not None:
        return [
            (
                run.run_id, run.job_id, run.tenant, run.queue, run.lane, run.state, run.version, run.attempt,
                run.max_attempts, run.lease_token, run.scheduled_for, run.due_at, run.lease_expires_at, run.worker_id,
                None, run.overlap, run.start_by, run.attempt_ends_at, run.cancel_reason, None, None,
            )
        ]  # fmt: skip
    dead = tx.get("dead_runs", params["run_id"])
    if dead is None:
        return []
    return [
        (
            dead.run_id, dead.job_id, dead.tenant, dead.queue, dead.lane, "dead", dead.version, dead.attempt,
            dead.max_attempts, dead.lease_token, dead.scheduled_for, None, None, dead.worker_id, dead.reason, 0, None,
            None, None, None, None,
        )
    ]  # fmt: skip


@models(READ_OUTBOX)
def read_outbox(tx: Transaction, params: Any) -> Rows:
    """In id order, which is not the order of commits."""
    return sorted(tx.shard.outbox.values(), key=lambda told: told.row)[: params[0]]


@models(LAST_UNPUBLISHED)
def last_unpublished(tx: Transaction, _params: Any) -> Rows:
    return [(max(tx.shard.outbox, default=None),)]


@models(OLDEST_UNPUBLISHED)
def oldest_unpublished(tx: Transaction, _params: Any) -> Rows:
    first = min(tx.shard.outbox, default=None)
    return [] if first is None else [(first, (tx.now - tx.shard.outbox[first].at).total_seconds())]


@models(IS_TOLD_SINCE)
def is_told_since(tx: Transaction, params: Any) -> Rows:
    """Every epoch from that one on is a takeover, and the first of them the owner's."""
    number, since, epoch = params["partition"], params["since"], params["epoch"]
    owners = [
        taken and taken.owner for each in range(since, epoch + 1) for taken in [tx.get("takeovers", (number, each))]
    ]
    return [(None not in owners and owners[:1] == [params["owner"]],)]


@models(DELETE_FROM_OUTBOX)
def delete_from_outbox(tx: Transaction, params: Any) -> Rows:
    for row in params[0]:
        tx.shard.outbox.pop(row, None)
    return []
