"""Timing state from the ledger: for a new owner, for one whose state is another epoch's, and for what events missed."""

from __future__ import annotations

from uuid import UUID

from ledger.connection import Pool, session
from ledger.jobs import Job, read_jobs, read_partition_jobs
from ledger.runs import LiveRun, read_partition_runs, read_runs
from schemas.commands import LANES
from schemas.events import Event
from streams.breath import Breath
from streams.effects import job_event
from streams.partition_memory import PartitionMemory
from streams.timing_state import to_us

_BATCH = 2_000


async def rebuild(memory: PartitionMemory, pool: Pool, partition: int) -> None:
    """Fill an empty memory from the ledger. Its position is the caller's to set, read before this began."""
    await _take_jobs(memory, pool, partition)
    await _take_runs(memory, pool, partition)


async def reconcile(memory: PartitionMemory, pool: Pool, partition: int) -> None:
    """Compare the whole memory with the ledger and mend it: a lost event makes a run late, never lost.

    Streams, with bounded memory. What changes meanwhile comes by events and is newer by its version.
    """
    await rebuild(memory, pool, partition)
    last = b""
    while batch := memory.state.run_ids(last, _BATCH):
        await refresh_runs(memory, pool, batch)
        last = batch[-1]
    last = b""
    while batch := memory.state.job_ids(last, _BATCH):
        await _drop_lost_jobs(memory, pool, batch)
        last = batch[-1]


async def refresh_runs(memory: PartitionMemory, pool: Pool, run_ids: list[bytes]) -> None:
    """Make the memory of these runs what the ledger says now."""
    async with session(pool) as conn:
        live = await read_runs(conn, [UUID(bytes=run_id) for run_id in run_ids])
    take_in(memory, run_ids, live)


def take_in(memory: PartitionMemory, run_ids: list[bytes], live: list[LiveRun]) -> None:
    """The ledger, asked for these runs, answered with those that wait or are leased."""
    memory.fold([run_event_of(run) for run in live])
    for run_id in set(run_ids) - {run.run_id.bytes for run in live}:
        memory.forget_run(run_id)
    for run in live:
        if run.lease_expires_at is not None:
            memory.state.rearm_lease(run.run_id.bytes, to_us(run.lease_expires_at))


async def _take_jobs(memory: PartitionMemory, pool: Pool, partition: int) -> None:
    async with session(pool) as conn:
        jobs = await read_partition_jobs(conn, partition)
    breath = Breath()
    for start in range(0, len(jobs), _BATCH):
        await breath.take()
        memory.fold([job_event_of(job) for job in jobs[start : start + _BATCH]])


async def _take_runs(memory: PartitionMemory, pool: Pool, partition: int) -> None:
    batch: list[Event] = []
    async with session(pool) as conn:
        async for run in read_partition_runs(conn, partition):
            batch.append(run_event_of(run))
            if len(batch) == _BATCH:
                memory.fold(batch)
                batch.clear()
    memory.fold(batch)


async def _drop_lost_jobs(memory: PartitionMemory, pool: Pool, job_ids: list[bytes]) -> None:
    async with session(pool) as conn:
        jobs = await read_jobs(conn, [UUID(bytes=job_id) for job_id in job_ids])
    for job_id in job_ids:
        job = jobs.get(UUID(bytes=job_id))
        if job is None or job.state != "active" or job.next_fire_at is None:
            memory.forget_job(job_id)


def job_event_of(job: Job) -> Event:
    """A job's row as the event that would have led to it."""
    kind = {"active": "job_resumed", "paused": "job_paused", "deleted": "job_deleted"}[job.state]
    return job_event(kind, job.job_id, job.version, job.created_at, job.next_fire_at, job.definition)


def run_event_of(run: LiveRun) -> Event:
    """A run's row as the event that would have led to it."""
    return {
        "type": "run_leased" if run.state == "leased" else "run_scheduled",
        "tenant": run.tenant,
        "jobId": str(run.job_id),
        "runId": str(run.run_id),
        "version": run.version,
        "queue": run.queue,
        "lane": LANES[run.lane],
        "scheduledFor": run.scheduled_for,
        "dueAt": run.due_at,
        "leaseExpiresAt": run.lease_expires_at,
        "reason": "read from the ledger",
        "gated": run.overlap != 0,
    }
