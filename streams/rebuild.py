"""Timing state from the ledger: for a new owner, for one whose state is another epoch's, and for what events missed."""

from __future__ import annotations

from ledger.connection import Pool, session
from ledger.jobs import Job, TimedJob, read_overdue_jobs, read_partition_jobs
from ledger.runs import LiveRun, read_overdue_runs, read_partition_runs
from schemas.commands import LANES
from schemas.events import Event
from streams.breath import Breath
from streams.effects import job_event
from streams.partition_memory import PartitionMemory
from streams.timers import WaitingRun, to_us
from streams.timing_state import Filling

OVERDUE_S = 10.0  # by then an owner that knows of it has seen to it, or is about to


async def rebuild(memory: PartitionMemory, pool: Pool, partition: int) -> None:
    """Fill an empty memory from the ledger. Its position is the caller's to set, read before this began.

    Streams, with bounded memory, and lets the loop go on between rows.
    """
    filling, breath = memory.state.filling(), Breath()
    async with session(pool) as conn:
        async for jobs in read_partition_jobs(conn, partition):
            for job in jobs:
                filling.add_job(
                    job.job_id.bytes, job.version, to_us(job.next_fire_at), to_us(job.created_at), job.definition
                )
                await breath.take()
            filling.write()
        async for runs in read_partition_runs(conn, partition):
            for run in runs:
                _add_run(filling, run)
                await breath.take()
            filling.write()
    filling.done()


async def reconcile(memory: PartitionMemory, pool: Pool, partition: int) -> None:
    """Look in the ledger for what should have happened by now, and take in what events have not told of it.

    Only that: what is remembered and is no more shows when its time comes, for the ledger is asked before anything is
    done. So a lost event makes a run late, never lost. The rows are looked at in Postgres, and few are sent.
    """
    async with session(pool) as conn:
        async for jobs in read_overdue_jobs(conn, partition, OVERDUE_S):
            memory.fold([_job_event("job_resumed", job) for job in jobs])
        async for runs in read_overdue_runs(conn, partition, OVERDUE_S):
            memory.fold([run_event_of(run) for run in runs])


def take_in(memory: PartitionMemory, run_ids: list[bytes], live: list[LiveRun]) -> None:
    """The ledger, asked for these runs, answered with those that wait or are leased."""
    memory.fold([run_event_of(run) for run in live])
    for run_id in set(run_ids) - {run.run_id.bytes for run in live}:
        memory.forget_run(run_id)
    for run in live:
        if run.lease_expires_at is not None:
            memory.state.rearm_lease(run.run_id.bytes, to_us(run.lease_expires_at))


def _add_run(filling: Filling, run: LiveRun) -> None:
    run_id = run.run_id.bytes
    if run.lease_expires_at is not None:
        filling.add_lease(run_id, to_us(run.lease_expires_at), run.version)
    else:
        waiting = WaitingRun(run.tenant, run.queue, LANES[run.lane], run.job_id.bytes, run.overlap != 0)
        filling.add_waiting(run_id, to_us(run.due_at), run.version, waiting)


def job_event_of(job: Job) -> Event:
    """A job's row as the event that would have led to it."""
    kind = {"active": "job_resumed", "paused": "job_paused", "deleted": "job_deleted"}[job.state]
    return _job_event(kind, job)


def _job_event(kind: str, job: Job | TimedJob) -> Event:
    return job_event(kind, job.job_id, job.version, job.created_at, job.next_fire_at, job.definition)


def run_event_of(run: LiveRun) -> Event:
    """A run's row as the event that would have led to it."""
    return Event(
        "run_leased" if run.state == "leased" else "run_scheduled",
        run.job_id.bytes,
        run.run_id.bytes,
        run.version,
        run.tenant,
        run.queue,
        LANES[run.lane],
        to_us(run.scheduled_for),
        to_us(run.due_at),
        None if run.lease_expires_at is None else to_us(run.lease_expires_at),
        gated=run.overlap != 0,
    )
