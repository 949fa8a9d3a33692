"""Edits: the cursor's run is replaced by one of the new definition, unless somebody had it leased; nothing else is."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

from ledger.advances import Advance, advance_jobs
from ledger.completions import Failure
from ledger.connection import session
from ledger.fence import owner_transaction
from ledger.jobs import NewJob, Policies
from ledger.leases import HeldLease, LeasedRun
from ledger.runs import PendingRun
from schemas.ids import run_id_for
from schemas.zones import TZDATA_VERSION
from tests.ledger.owned_partition import NOW, OwnedPartition, ids, later, names

RACES = 150


async def test_an_edit_replaces_the_pending_run_by_one_of_the_new_definition(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=later(60))
    policies = Policies(1, 20.0, 30.0, 2, 5.0, 50.0)
    edit = owned.edit_of(job, later(90), queue="sms", lane=0, max_attempts=7, policies=policies)
    [waits] = await owned.update(edit)
    assert (waits.run_id, waits.queue, waits.lane, waits.due_at) == (edit.run_id, "sms", 0, later(90))
    assert (waits.overlap, job.run_id and await owned.state_of(job.run_id)) == (1, None)
    run = await owned.run(waits.run_id)
    assert run is not None
    assert (run.max_attempts, run.start_by) == (7, later(120))
    kept = await owned.job(job.job_id)
    assert (kept.queue, kept.definition, kept.payload, kept.next_fire_at) == (
        "sms",
        edit.definition,
        '{"n":2}',
        later(90),
    )
    assert (kept.version, kept.edited_at, kept.tzdata_version) == (2, NOW, TZDATA_VERSION)
    assert await reasons(owned, job.run_id) == [("run_scheduled", None), ("run_cancelled", "edited")]
    assert await reasons(owned, edit.run_id) == [("run_scheduled", "edited")]
    assert names((await owned.told())[job.job_id]) == ["job_created", "job_updated"]


async def reasons(owned: OwnedPartition, run_id: UUID | None) -> list[tuple[str, str | None]]:
    assert run_id is not None
    return [(told.event, told.fields.get("reasons")) for told in await owned.events_of(run_id)]


async def test_an_occurrence_that_stays_keeps_its_run_and_gets_the_new_payload(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=later(60))
    [waits] = await owned.update(owned.edit_of(job, later(60), queue="sms", due_at=later(61)))
    assert (waits.run_id, waits.version, waits.queue, waits.due_at) == (job.run_id, 2, "sms", later(61))
    [leased] = await owned.lease(waits.run_id, now=later(61))
    assert leased.payload == '{"n":2}'


async def test_a_leased_run_outlives_the_edit(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    assert job.run_id
    await owned.lease(job.run_id)
    [waits] = await owned.update(owned.edit_of(job, later(60)))
    assert (waits.due_at, await owned.state_of(job.run_id)) == (later(60), "leased")


async def test_runs_beside_the_cursor_stay_as_they_were_made(owned: OwnedPartition) -> None:
    retry = await owned.leased_run()
    await owned.fail(Failure(retry.run_id, retry.lease_token, "boom", retry_after_s=5))
    manual = await owned.trigger(retry.job_id)
    job = owned.new_job(job_id=retry.job_id, run_id=retry.run_id)
    await owned.update(owned.edit_of(job, later(60), queue="sms"))
    states = [await owned.run(run_id) for run_id in (retry.run_id, manual)]
    assert [(run.state, run.queue) for run in states if run] == [("pending", "mail")] * 2


async def test_a_paused_job_stays_paused_with_its_new_run_held(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=later(60))
    await owned.pause(job.job_id)
    edit = owned.edit_of(job, later(90))
    assert await owned.update(edit) == []
    assert edit.run_id
    assert (await owned.job(job.job_id)).state == "paused"
    assert await owned.state_of(edit.run_id) == "held"
    assert await reasons(owned, edit.run_id) == [("run_held", "edited")]


async def test_an_edit_brings_no_cancelled_occurrence_back(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=later(60))
    assert job.run_id
    await owned.cancel(job.run_id)
    assert await owned.update(owned.edit_of(job, later(60))) == []
    assert await owned.state_of(job.run_id) is None


async def test_a_deleted_job_is_not_edited(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    await owned.delete(job.job_id)
    told = await owned.told()
    assert await owned.update(owned.edit_of(job, later(60))) == []
    assert await owned.told() == told


async def test_an_edit_to_no_occurrence_leaves_none(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(due_at=later(60))
    assert await owned.update(owned.edit_of(job, None)) == []
    assert (await owned.job(job.job_id)).next_fire_at is None
    assert await owned.state_of(job.run_id or owned.new_job().job_id) is None


async def test_versions_of_an_occurrence_that_comes_back_go_on_growing(owned: OwnedPartition) -> None:
    """Edited away, back by an edit, away again, and back as the next occurrence: consumers drop what is not newer."""
    job = await owned.job_with_run(due_at=later(60))
    away, back = owned.edit_of(job, later(30)), owned.edit_of(job, later(60))
    await owned.update(away)
    await owned.update(back._replace(replaced_run_id=away.run_id))
    await owned.update(away)
    advance = Advance(job.job_id, 4, later(30), later(60), job.run_id, later(60))
    async with owner_transaction(owned.pool, owned.fence) as tx:
        assert len(await advance_jobs(tx, [advance], now=later(30))) == 1
    assert job.run_id
    told = await owned.events_of(job.run_id)
    assert names(told) == ["run_scheduled", "run_cancelled"] * 2 + ["run_scheduled"]
    versions = [each.version for each in told]
    assert versions == sorted(set(versions))


async def test_in_a_race_the_old_run_fires_only_if_it_was_leased_before_the_edit(owned: OwnedPartition) -> None:
    dice, leased_before = random.Random(1), 0
    for _ in range(RACES):
        job = await owned.job_with_run()
        assert job.run_id

        async def lease_it(run_id: UUID = job.run_id) -> list[LeasedRun]:
            await asyncio.sleep(dice.random() * 0.002)
            return await owned.lease(run_id)

        async def edit_it(job: NewJob = job) -> list[PendingRun]:
            await asyncio.sleep(dice.random() * 0.002)
            return await owned.update(owned.edit_of(job, later(60)))

        leased, waits = await asyncio.gather(lease_it(), edit_it())
        assert len(waits) == 1
        assert await owned.state_of(job.run_id) == ("leased" if leased else None)
        expected = ["run_scheduled", "run_leased"] if leased else ["run_scheduled", "run_cancelled"]
        assert names(await owned.events_of(job.run_id)) == expected
        leased_before += len(leased)
        await owned.release(*(HeldLease(run.run_id, run.lease_token) for run in leased))
        async with session(owned.pool) as conn:
            await conn.execute("TRUNCATE outbox")
    assert 0 < leased_before < RACES


async def test_a_run_that_was_given_back_before_the_edit_still_runs(owned: OwnedPartition) -> None:
    run = await owned.leased_run()
    await owned.release(HeldLease(run.run_id, run.lease_token))
    job = owned.new_job(job_id=run.job_id, run_id=run.run_id)
    await owned.update(owned.edit_of(job, later(60)))
    assert ids(await owned.lease(run.run_id)) == {run.run_id}
    assert run_id_for(run.job_id, NOW, owned.fence.partition) == run.run_id
