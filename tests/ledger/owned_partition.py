"""An owned partition with jobs in it: what most tests of the ledger start from.

Time is NOW and instants around it, given to the ledger, so that nothing here waits for a clock.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from ledger.admissions import Admission, admit_runs, find_late, skip_late
from ledger.cancellations import Cancelled, cancel_runs
from ledger.completions import Completion, Ended, Failure, complete_runs, expire_leases, fail_runs
from ledger.connection import Connection, Pool, session
from ledger.dead_letters import Replay, Replayed, replay_runs
from ledger.edits import Edit, update_jobs
from ledger.fence import Fence, api_transaction, owner_transaction, take_over
from ledger.jobs import Job, NewJob, create_jobs, delete_jobs, pause_jobs, read_jobs
from ledger.leases import (
    Beat,
    ExtendedLease,
    HeldLease,
    LeaseAsk,
    LeasedRun,
    Snooze,
    Snoozed,
    extend_leases,
    lease_runs,
    release_runs,
    snooze_runs,
)
from ledger.outbox import read_outbox
from ledger.runs import ManualRun, PendingRun, RunState, read_run, trigger_jobs
from schemas.ids import run_id_for

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


class Told(NamedTuple):
    """One event of the outbox, out of its row's arrays."""

    event: str
    version: int
    fields: dict[str, Any]


class OwnedPartition:
    """The partition's owner and the API beside it."""

    def __init__(self, pool: Pool, fence: Fence) -> None:
        self.pool, self.fence = pool, fence

    @classmethod
    async def take(cls, pool: Pool, partition: int = 3, owner: str = "owner-1") -> OwnedPartition:
        return cls(pool, (await take_over(pool, partition, owner)).fence)

    def new_job(self, due_at: datetime | None = NOW, **changes: Any) -> NewJob:
        """A job that has its first occurrence at due_at; None: it has none."""
        job_id = uuid4()
        run_id = run_id_for(job_id, due_at, self.fence.partition) if due_at else None
        job = NewJob(job_id, "acme", "mail", 1, '{"queue":"mail"}', '{"n":1}', 3, due_at, NOW, run_id, due_at)
        return job._replace(**changes)

    async def create(self, *jobs: NewJob) -> None:
        async with owner_transaction(self.pool, self.fence) as tx:
            await create_jobs(tx, jobs, now=NOW)

    async def job_with_run(self, **changes: Any) -> NewJob:
        job = self.new_job(**changes)
        await self.create(job)
        return job

    async def runs(self, count: int, **changes: Any) -> list[UUID]:
        """That many due runs, each of a job of its own."""
        jobs = [self.new_job(**changes) for _ in range(count)]
        await self.create(*jobs)
        return [job.run_id for job in jobs if job.run_id]

    def ask(self, run_id: UUID, **changes: Any) -> LeaseAsk:
        return LeaseAsk(run_id, self.fence.epoch, "worker-1", 30.0)._replace(**changes)

    async def lease(self, *run_ids: UUID, now: datetime = NOW, **changes: Any) -> list[LeasedRun]:
        async with api_transaction(self.pool, run_ids) as conn:
            return await lease_runs(conn, [self.ask(run_id, **changes) for run_id in run_ids], now=now)

    async def leased_run(self, now: datetime = NOW, **changes: Any) -> LeasedRun:
        """A run that a worker holds until 30 s after now."""
        job = await self.job_with_run(**changes)
        assert job.run_id
        [leased] = await self.lease(job.run_id, now=now)
        return leased

    async def complete(self, *completions: Completion, now: datetime = NOW) -> list[UUID]:
        async with api_transaction(self.pool, [each.run_id for each in completions]) as conn:
            return [done.run_id for done in await complete_runs(conn, completions, now=now)]

    async def fail(self, *failures: Failure, now: datetime = NOW) -> list[Ended]:
        async with api_transaction(self.pool, [each.run_id for each in failures]) as conn:
            return await fail_runs(conn, failures, now=now)

    async def release(self, *leases: HeldLease, now: datetime = NOW) -> list[UUID]:
        async with api_transaction(self.pool, [each.run_id for each in leases]) as conn:
            return [released.run_id for released in await release_runs(conn, leases, now=now)]

    async def beat(self, *beats: Beat, now: datetime = NOW) -> list[ExtendedLease]:
        async with api_transaction(self.pool, [each.run_id for each in beats]) as conn:
            return await extend_leases(conn, beats, now=now)

    async def snooze(self, *snoozes: Snooze, now: datetime = NOW) -> list[Snoozed]:
        async with api_transaction(self.pool, [each.run_id for each in snoozes]) as conn:
            return await snooze_runs(conn, snoozes, now=now)

    async def expire(self, *run_ids: UUID, now: datetime) -> list[Ended]:
        async with owner_transaction(self.pool, self.fence) as tx:
            return await expire_leases(tx.conn, run_ids, now=now)

    async def pause(self, *job_ids: UUID, now: datetime = NOW) -> list[UUID]:
        async with owner_transaction(self.pool, self.fence) as tx:
            return await pause_jobs(tx, job_ids, now=now)

    async def delete(self, *job_ids: UUID) -> list[UUID]:
        async with owner_transaction(self.pool, self.fence) as tx:
            return await delete_jobs(tx, job_ids, now=NOW)

    async def trigger(self, job_id: UUID, now: datetime = NOW, **changes: Any) -> UUID:
        """A manual run of the job, due at once."""
        run_id = run_id_for(job_id, now, self.fence.partition, nonce=uuid4().bytes)
        async with owner_transaction(self.pool, self.fence) as tx:
            await trigger_jobs(tx, [ManualRun(job_id, run_id, now, None)._replace(**changes)], now=now)
        return run_id

    async def cancel(self, *run_ids: UUID, now: datetime = NOW) -> list[Cancelled]:
        async with owner_transaction(self.pool, self.fence) as tx:
            return await cancel_runs(tx, run_ids, now=now)

    async def replay(self, *replays: Replay, now: datetime = NOW) -> Replayed:
        async with owner_transaction(self.pool, self.fence) as tx:
            return await replay_runs(tx, replays, now=now)

    async def admit(self, *run_ids: UUID, now: datetime = NOW) -> Admission:
        async with owner_transaction(self.pool, self.fence) as tx:
            return await admit_runs(tx, run_ids, now=now)

    async def find_late(self, limit: int = 100, *, now: datetime = NOW) -> list[UUID]:
        async with session(self.pool) as conn:
            return await find_late(conn, self.fence.partition, limit, now=now)

    async def skip_late(self, *run_ids: UUID, now: datetime = NOW) -> list[UUID]:
        async with owner_transaction(self.pool, self.fence) as tx:
            return await skip_late(tx, run_ids, now=now)

    def edit_of(self, job: NewJob, fire: datetime | None, **changes: Any) -> Edit:
        """Another definition of a job that is still at its first occurrence; the new one fires at `fire`."""
        run_id = run_id_for(job.job_id, fire, self.fence.partition) if fire else None
        edit = Edit(job.job_id, "mail", 1, '{"queue":"mail","new":1}', '{"n":2}', 3, fire, job.run_id, run_id, fire)
        return edit._replace(**changes)

    async def update(self, *edits: Edit, now: datetime = NOW) -> list[PendingRun]:
        async with owner_transaction(self.pool, self.fence) as tx:
            return await update_jobs(tx, edits, now=now)

    async def slots(self) -> dict[UUID, UUID]:
        """The run that has its job's slot, by job."""
        async with session(self.pool) as conn:
            return dict(await (await conn.execute("SELECT job_id, run_id FROM job_slots")).fetchall())

    async def run(self, run_id: UUID) -> RunState | None:
        async with session(self.pool) as conn:
            return await read_run(conn, run_id)

    async def state_of(self, run_id: UUID) -> str | None:
        run = await self.run(run_id)
        return run and run.state

    async def job(self, job_id: UUID) -> Job:
        async with session(self.pool) as conn:
            return (await read_jobs(conn, [job_id]))[job_id]

    async def told(self) -> dict[UUID, list[Told]]:
        """Every event of the outbox, by run (or by job, for a job's own), in the order of the outbox."""
        async with session(self.pool) as conn:
            rows = await read_outbox(conn, 100_000)
        told: dict[UUID, list[Told]] = defaultdict(list)
        for row in rows:
            arrays = {name: array for name, array in row._asdict().items() if isinstance(array, list)}
            for position, version in enumerate(row.versions):
                fields = {name: array[position] for name, array in arrays.items()}
                told[UUID((row.run_ids or row.job_ids)[position])].append(Told(row.event, version, fields))
        return told

    async def events_of(self, run_id: UUID) -> list[Told]:
        return (await self.told())[run_id]


def names(events: Iterable[Told]) -> list[str]:
    return [told.event for told in events]


def ids(leased: Sequence[LeasedRun]) -> set[UUID]:
    return {run.run_id for run in leased}


LOCK_WAITS = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def until_someone_waits_for_a_lock(conn: Connection) -> None:
    async with asyncio.timeout(10):
        while True:
            row = await (await conn.execute(LOCK_WAITS)).fetchone()
            if row and row[0]:
                return
            await asyncio.sleep(0.002)  # the server tells nobody that a session waits
