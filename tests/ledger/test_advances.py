"""Advances with skips: a cursor that moves over occurrences tells which made no run, and why, exactly once."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from ledger.advances import Advance, advance_jobs
from ledger.completions import Failure
from ledger.connection import session
from ledger.fence import change_job_states, owner_transaction, take_over
from ledger.jobs import NewJob, Policies, pause_jobs
from ledger.partitions import forget_takeovers, list_takeovers
from ledger.run_locks import lock_runs
from ledger.runs import PendingRun
from schemas.ids import run_id_for
from schemas.zones import TZDATA_VERSION
from tests.ledger.owned_partition import NOW, OwnedPartition, later, names, until_someone_waits_for_a_lock


async def advance(owned: OwnedPartition, *advances: Advance) -> list[PendingRun]:
    async with owner_transaction(owned.pool, owned.fence) as tx:
        return await advance_jobs(tx, advances, now=NOW)


def caught_up(owned: OwnedPartition, job: NewJob, **changes: Any) -> Advance:
    """From the first occurrence to the one after ten minutes, over nine between."""
    fire, fired_at = later(600), job.next_fire_at
    assert fired_at is not None
    skip: dict[str, Any] = {"skipped_run_id": job.run_id, "skip_reason": "catch-up latest"}
    between: dict[str, Any] = {
        "range_first": later(60),
        "range_last": later(540),
        "range_count": 9,
        "range_reason": "catch-up latest",
    }
    run_id = run_id_for(job.job_id, fire, owned.fence.partition)
    return Advance(job.job_id, 1, fired_at, fire, run_id, fire, **skip, **between)._replace(**changes)


def of_job(owned: OwnedPartition, job_id: UUID, at: datetime) -> NewJob:
    """A job of that id, whose first occurrence is at that instant."""
    return owned.new_job(at, job_id=job_id, run_id=run_id_for(job_id, at, owned.fence.partition))


async def test_a_superseded_run_and_a_range_are_skipped_with_their_reasons(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    assert job.run_id
    [waits] = await advance(owned, caught_up(owned, job))
    assert waits.scheduled_for == later(600)
    told = await owned.told()
    skipped = told[job.run_id][-1]
    assert (skipped.event, skipped.version, skipped.fields["reasons"]) == ("run_skipped", 2, "catch-up latest")
    [created, missed] = told[job.job_id]
    assert (created.version, missed.event, missed.version) == (1, "occurrences_skipped", 2)
    wanted = {"scheduled_for": later(60), "due_at": later(540), "counts": 9, "reasons": "catch-up latest"}
    assert missed.fields.items() >= wanted.items()
    kept = await owned.job(job.job_id)
    assert (kept.version, kept.next_fire_at, kept.tzdata_version) == (2, later(600), TZDATA_VERSION)


async def test_without_a_range_the_job_s_version_stays(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    none = dict.fromkeys(("range_first", "range_last", "range_count", "range_reason"))
    assert len(await advance(owned, caught_up(owned, job, **none))) == 1
    assert names((await owned.told())[job.job_id]) == ["job_created"]
    assert (await owned.job(job.job_id)).version == 1


async def test_a_run_that_was_leased_is_not_skipped_any_more(owned: OwnedPartition) -> None:
    leased = await owned.job_with_run()
    retried = await owned.job_with_run()
    assert leased.run_id
    assert retried.run_id
    runs = {run.run_id: run for run in await owned.lease(leased.run_id, retried.run_id)}
    await owned.fail(Failure(retried.run_id, runs[retried.run_id].lease_token, "boom"))
    assert len(await advance(owned, caught_up(owned, leased), caught_up(owned, retried))) == 2
    assert [await owned.state_of(run_id) for run_id in (leased.run_id, retried.run_id)] == ["leased", "pending"]


async def test_superseded_runs_are_locked_in_the_order_of_all_others(owned: OwnedPartition) -> None:
    """The cursors are moved in the order of the jobs, and whoever leases both runs takes the earlier one first."""
    early_id, late_id = sorted([uuid4(), uuid4()], reverse=True)
    early, late = (of_job(owned, job_id, at) for job_id, at in ((early_id, later(-1)), (late_id, NOW)))
    await owned.create(early, late)
    async with session(owned.pool) as witness, session(owned.pool) as conn, conn.transaction():
        await conn.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (early.run_id,))
        deciding = asyncio.create_task(advance(owned, caught_up(owned, late), caught_up(owned, early)))
        await until_someone_waits_for_a_lock(witness)
        await conn.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (late.run_id,))
    assert len(await deciding) == 2


async def test_a_job_s_last_decision_waits_for_a_change_of_the_job_as_others_do(owned: OwnedPartition) -> None:
    """Who changes a job has its runs before the job itself; without the wait it would be the other way round here."""
    job = await owned.job_with_run()
    last = caught_up(owned, job, next_fire_at=None, run_id=None, due_at=None)
    async with owner_transaction(owned.pool, owned.fence) as tx, session(owned.pool) as witness:
        await change_job_states(tx)
        await lock_runs(tx, [(job.job_id, None)])
        deciding = asyncio.create_task(advance(owned, last))
        await until_someone_waits_for_a_lock(witness)
        await pause_jobs(tx, [job.job_id], now=NOW)
    assert await deciding == []
    assert (await owned.job(job.job_id)).next_fire_at == job.next_fire_at


async def test_of_two_owners_decisions_about_an_occurrence_one_is_written(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    made = await asyncio.gather(*(advance(owned, caught_up(owned, job)) for _ in range(4)))
    assert sum(map(len, made)) == 1
    assert names((await owned.told())[job.job_id]) == ["job_created", "occurrences_skipped"]


async def test_the_last_occurrences_may_all_be_skipped(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    assert job.run_id
    last = caught_up(owned, job, next_fire_at=None, run_id=None, due_at=None)
    assert await advance(owned, last) == []
    assert await owned.state_of(job.run_id) is None
    assert names((await owned.told())[job.job_id]) == ["job_created", "occurrences_skipped"]


async def test_a_run_is_made_as_its_job_s_policies_say(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(policies=Policies(overlap=2, timeout_s=7.0, start_deadline_s=30.0))
    [waits] = await advance(owned, caught_up(owned, job, due_at=later(605)))
    run = await owned.run(waits.run_id)
    assert run is not None
    assert (waits.overlap, run.overlap, run.start_by) == (2, 2, later(635))
    [told] = await owned.events_of(waits.run_id)
    assert told.fields["gated"] is True


async def test_runs_of_jobs_that_allow_overlap_are_told_as_not_gated(owned: OwnedPartition) -> None:
    [run_id] = await owned.runs(1)
    [told] = await owned.events_of(run_id)
    assert told.fields["gated"] is False


async def test_takeovers_are_listed_from_the_owner_of_that_instant_on(owned: OwnedPartition) -> None:
    async with session(owned.pool) as conn:
        await conn.execute("UPDATE takeovers SET at = %s", (later(-60),))
        await conn.execute("INSERT INTO takeovers VALUES (3, 0, 'long ago', %s, now())", (later(-3600),))
    await take_over(owned.pool, 3, "owner-2")
    async with session(owned.pool) as conn:
        tenures = await list_takeovers(conn, 3, NOW)
        assert [tenure.owner for tenure in tenures] == ["owner-1", "owner-2"]
        assert [tenure.epoch for tenure in tenures] == [owned.fence.epoch, owned.fence.epoch + 1]
        await conn.execute(
            "UPDATE takeovers SET at = now() - interval '31 days' WHERE epoch <= %s", (tenures[0].epoch,)
        )
        await conn.execute("UPDATE partitions SET epoch = epoch + 99")
        await forget_takeovers(conn)
        assert [tenure.owner for tenure in await list_takeovers(conn, 3, NOW)] == ["owner-2"]
