"""Retention of jobs: what can never fire again leaves the ledger in the end, and nothing else does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import sql

from ledger.completions import Completion, Failure
from ledger.connection import session
from ledger.dead_letters import Replay
from ledger.fence import owner_transaction
from ledger.job_retention import FIND_FORGETTABLE, FORGET_JOBS, find_forgettable, forget_jobs, keep_jobs
from ledger.jobs import NewJob, read_jobs
from tests.ledger.owned_partition import OwnedPartition, later

KEPT = timedelta(days=30)
ONE_OFF = '{"queue":"mail","schedule":{"runAt":"2026-03-01T12:00:00Z"}}'
DELAY = '{"queue":"mail","schedule":{"delaySeconds":0}}'
SPELLED_OTHERWISE = '{"schedule" : {"zone": "UTC", "runAt": "2026-03-01T12:00"}, "queue": "mail"}'
RECURRING = '{"queue":"mail","schedule":{"everySeconds":3600}}'
DECLARED = '{"queue":"mail","schedule":{"delaySeconds":0},"declaredAs":"crew/once"}'


def in_time() -> datetime:
    """An instant at which all that these tests write is older than KEPT. (`updated_at` is by the ledger's clock.)"""
    return datetime.now(UTC) + KEPT + timedelta(hours=1)


async def over(owned: OwnedPartition, definition: str = ONE_OFF, **changes: Any) -> NewJob:
    """A job whose run has been completed."""
    job = await owned.job_with_run(definition=definition, **changes)
    assert job.run_id
    [lease] = await owned.lease(job.run_id)
    await owned.complete(Completion(lease.run_id, lease.lease_token))
    return job


async def forgettable(owned: OwnedPartition, now: datetime) -> list[UUID]:
    async with session(owned.pool) as conn:
        return (await find_forgettable(conn, owned.fence.partition, KEPT, now=now)).forgettable


async def forgotten(owned: OwnedPartition, *job_ids: UUID, now: datetime | None = None) -> int:
    """How many of the jobs are forgotten, as the look before it finds them and as the deletion does."""
    now = now or in_time()
    found = await forgettable(owned, now)
    count = await forget_jobs(owned.pool, owned.fence.partition, list(job_ids), KEPT, now=now)
    assert count == len(set(found) & set(job_ids))
    async with session(owned.pool) as conn:
        assert len(await read_jobs(conn, job_ids)) == len(job_ids) - count
    return count


@pytest.mark.parametrize("definition", [ONE_OFF, DELAY, SPELLED_OTHERWISE])
async def test_a_one_off_that_has_run_is_forgotten(owned: OwnedPartition, definition: str) -> None:
    job = await over(owned, definition)
    assert await forgotten(owned, job.job_id) == 1
    assert await forget_jobs(owned.pool, owned.fence.partition, [job.job_id], KEPT, now=in_time()) == 0


async def test_a_one_off_is_kept_for_a_while_after_its_creation_its_last_change_and_its_time(
    owned: OwnedPartition,
) -> None:
    now = datetime.now(UTC)  # an instant at which it was changed just now
    changed_now = await over(owned)
    created_then = await over(owned, created_at=now)
    fires_then = await over(owned, next_fire_at=now)
    jobs = [changed_now.job_id, created_then.job_id, fires_then.job_id]
    assert await forgotten(owned, *jobs, now=now + KEPT - timedelta(minutes=1)) == 0
    assert await forgotten(owned, *jobs, now=in_time()) == 3


async def test_a_cancelled_one_off_is_forgotten_once_its_time_is_long_past(owned: OwnedPartition) -> None:
    due = datetime.now(UTC) + timedelta(days=100)
    job = await owned.job_with_run(definition=ONE_OFF, due_at=due)
    assert job.run_id
    await owned.cancel(job.run_id)
    assert await forgotten(owned, job.job_id) == 0
    assert await forgotten(owned, job.job_id, now=due + KEPT + timedelta(hours=1)) == 1


async def waiting(owned: OwnedPartition, job: NewJob) -> None:
    await owned.trigger(job.job_id)


async def leased(owned: OwnedPartition, job: NewJob) -> None:
    await owned.lease(await owned.trigger(job.job_id))


async def to_be_retried(owned: OwnedPartition, job: NewJob) -> None:
    [lease] = await owned.lease(await owned.trigger(job.job_id))
    await owned.fail(Failure(lease.run_id, lease.lease_token, "boom"))


async def dead(owned: OwnedPartition, job: NewJob) -> None:
    [lease] = await owned.lease(await owned.trigger(job.job_id))
    await owned.fail(Failure(lease.run_id, lease.lease_token, "boom", permanent=True))


async def replayed(owned: OwnedPartition, job: NewJob) -> None:
    [lease] = await owned.lease(await owned.trigger(job.job_id))
    await owned.fail(Failure(lease.run_id, lease.lease_token, "boom", permanent=True))
    await owned.replay(Replay(lease.run_id))


async def paused(owned: OwnedPartition, job: NewJob) -> None:
    await owned.pause(job.job_id)


async def paused_while_one_waits(owned: OwnedPartition, job: NewJob) -> None:
    await owned.trigger(job.job_id)
    await owned.pause(job.job_id)


async def deleted_while_one_is_leased(owned: OwnedPartition, job: NewJob) -> None:
    await leased(owned, job)
    await owned.delete(job.job_id)


@pytest.mark.parametrize(
    "make",
    [waiting, leased, to_be_retried, dead, replayed, paused, paused_while_one_waits, deleted_while_one_is_leased],
)
async def test_a_one_off_is_kept_while_anything_could_still_come_of_it(
    owned: OwnedPartition, make: Callable[[OwnedPartition, NewJob], Awaitable[None]]
) -> None:
    job = await over(owned)
    await make(owned, job)
    assert await forgotten(owned, job.job_id) == 0


@pytest.mark.parametrize("definition", [RECURRING, DECLARED, "{}"])
async def test_what_recurs_and_what_a_file_declares_is_kept(owned: OwnedPartition, definition: str) -> None:
    job = await over(owned, definition)
    assert await forgotten(owned, job.job_id) == 0


async def test_a_declared_job_is_kept_deleted_too_for_its_id_is_used_up(owned: OwnedPartition) -> None:
    job = await over(owned, DECLARED)
    await owned.delete(job.job_id)
    assert await forgotten(owned, job.job_id) == 0


@pytest.mark.parametrize("definition", [RECURRING, ONE_OFF])
async def test_a_deleted_job_is_forgotten(owned: OwnedPartition, definition: str) -> None:
    job = await owned.job_with_run(definition=definition)
    await owned.delete(job.job_id)
    assert await forgotten(owned, job.job_id, now=datetime.now(UTC) + KEPT - timedelta(minutes=1)) == 0
    assert await forgotten(owned, job.job_id) == 1


async def test_a_walk_goes_past_what_is_kept_and_looks_at_each_job_once(owned: OwnedPartition) -> None:
    """The oldest are kept, and many are of one instant."""
    jobs = [await over(owned, created_at=later(number // 4)) for number in range(12)]
    for job in jobs[:5]:
        await owned.trigger(job.job_id)
    found, after, looks = [], None, 0
    async with session(owned.pool) as conn:
        while looks == 0 or after is not None:
            look = await find_forgettable(conn, owned.fence.partition, KEPT, after=after, limit=3, now=in_time())
            found += look.forgettable
            after, looks = look.last, looks + 1
    assert sorted(found) == sorted(job.job_id for job in jobs[5:])
    assert looks == 5  # the last of them finds nothing more


async def test_jobs_of_another_partition_are_left(owned: OwnedPartition) -> None:
    job = await over(owned)
    other = owned.fence.partition + 1
    assert await forget_jobs(owned.pool, other, [job.job_id], KEPT, now=in_time()) == 0
    assert await forgotten(owned, job.job_id) == 1


async def test_who_writes_commands_for_long_is_not_waited_for(owned: OwnedPartition) -> None:
    job = await over(owned)
    async with owner_transaction(owned.pool, owned.fence) as tx:
        await keep_jobs(tx)
        assert await forget_jobs(owned.pool, owned.fence.partition, [job.job_id], KEPT, now=in_time()) == 0
    assert await forgotten(owned, job.job_id) == 1


MANY = """
WITH made AS (
    INSERT INTO jobs (job_id, partition, tenant, queue, lane, max_attempts, definition, created_at)
    SELECT gen_random_uuid(), 3, 'acme', 'mail', 1, 5, %s, now() FROM generate_series(1, 5000) RETURNING job_id
)
INSERT INTO runs (run_id, job_id, partition, tenant, queue, lane, max_attempts, scheduled_for, due_at)
SELECT gen_random_uuid(), job_id, 3, 'acme', 'mail', 1, 5, now(), now() FROM made
"""


LOOK_UPS = ["runs_by_partition on runs r", "dead_runs_by_job on dead_runs d"]
INDEXES = {
    FIND_FORGETTABLE: ["jobs_over on jobs j", *LOOK_UPS],
    FORGET_JOBS: ["jobs_pkey on jobs k", "jobs_pkey on jobs gone", *LOOK_UPS],
}


@pytest.mark.parametrize("statement", INDEXES, ids=["find", "forget"])
async def test_no_statement_looks_at_all_jobs_or_all_runs(owned: OwnedPartition, statement: str) -> None:
    asked = {"partition": 3, "kept": KEPT, "now": None, "job_ids": [uuid4()] * 50}
    asked |= {"after_at": None, "after_id": uuid4(), "limit": 10}
    async with session(owned.pool) as conn:
        await conn.execute(MANY, (ONE_OFF,))
        await conn.execute("ANALYZE runs, jobs, dead_runs")
        plan = await (await conn.execute(sql.SQL("EXPLAIN " + statement), asked)).fetchall()
    scans = [row[0] for row in plan if " Scan using " in row[0] or "Heap Scan" in row[0] or "Seq Scan" in row[0]]
    found = [scan.partition(" Scan using ")[2].partition("  (")[0] for scan in scans]
    assert sorted(found) == sorted(INDEXES[statement]), scans
