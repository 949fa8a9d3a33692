"""A job's concurrency key is that of its runs, however they come into being."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import pytest

from ledger.advances import Advance, advance_jobs
from ledger.completions import Failure
from ledger.dead_letters import Replay
from ledger.fence import owner_transaction
from ledger.jobs import NewJob, Policies
from schemas.ids import run_id_for
from tests.ledger.owned_partition import NOW, OwnedPartition, later

OLD, NEW = Policies(concurrency_key="old"), Policies(concurrency_key="new")


async def key_of(owned: OwnedPartition, run_id: UUID | None) -> str | None:
    assert run_id
    run = await owned.run(run_id)
    assert run is not None
    return run.concurrency_key


async def edit(owned: OwnedPartition, job: NewJob, fire: datetime) -> UUID | None:
    change = owned.edit_of(job, fire, policies=NEW)
    await owned.update(change)
    return change.run_id


async def test_a_first_run_has_the_key_of_its_job(owned: OwnedPartition) -> None:
    assert await key_of(owned, (await owned.job_with_run(policies=OLD)).run_id) == "old"
    assert await key_of(owned, (await owned.job_with_run()).run_id) is None


@pytest.mark.parametrize("fire", [NOW, later(60)])
async def test_an_edit_gives_the_pending_run_the_new_key(owned: OwnedPartition, fire: datetime) -> None:
    job = await owned.job_with_run(policies=OLD)
    assert await key_of(owned, await edit(owned, job, fire)) == "new"


async def test_what_was_leased_before_an_edit_keeps_its_key(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(policies=OLD)
    assert job.run_id
    await owned.lease(job.run_id)
    await edit(owned, job, later(60))
    assert await key_of(owned, job.run_id) == "old"


async def test_a_triggered_run_has_the_key_of_its_job(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(policies=OLD)
    assert await key_of(owned, await owned.trigger(job.job_id)) == "old"


async def test_the_next_occurrence_has_the_key_of_its_job(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(policies=OLD)
    run_id = run_id_for(job.job_id, later(60), owned.fence.partition)
    async with owner_transaction(owned.pool, owned.fence) as tx:
        await advance_jobs(tx, [Advance(job.job_id, 1, NOW, later(60), run_id, later(60))], now=NOW)
    assert await key_of(owned, run_id) == "old"


async def test_a_replayed_run_has_the_key_that_its_job_has_now(owned: OwnedPartition) -> None:
    job = await owned.job_with_run(policies=OLD)
    assert job.run_id
    [leased] = await owned.lease(job.run_id)
    await owned.fail(Failure(job.run_id, leased.lease_token, "broken", permanent=True))
    await edit(owned, job, later(60))
    await owned.replay(Replay(job.run_id))
    assert await key_of(owned, job.run_id) == "new"
