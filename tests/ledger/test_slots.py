"""Slots: of a job that does not allow overlap one run at most is leased, whatever is asked for at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.completions import Completion, Failure
from ledger.connection import Pool, session
from ledger.connection import ledger_pool as open_ledger_pool
from ledger.jobs import Policies
from ledger.leases import HeldLease, LeasedRun, Snooze
from ledger.runs import find_due
from tests.ledger.owned_partition import NOW, OwnedPartition, ids, later

SKIP, REPLACE = Policies(overlap=1), Policies(overlap=2)
ROUNDS = 300


async def two_runs(owned: OwnedPartition, policies: Policies = SKIP) -> tuple[UUID, UUID]:
    """A job's runs that are both due, in the order in which they came."""
    job = await owned.job_with_run(policies=policies)
    assert job.run_id
    return job.run_id, await owned.trigger(job.job_id, later(1), due_at=later(1))


@pytest.mark.parametrize("policies", [SKIP, REPLACE])
async def test_of_two_runs_in_one_batch_the_one_due_first_is_leased(owned: OwnedPartition, policies: Policies) -> None:
    for _ in range(20):
        first, second = await two_runs(owned, policies)
        assert ids(await owned.lease(first, second, now=later(1))) == {first}
        assert await owned.state_of(second) == "pending"


async def test_the_second_run_is_leased_once_the_first_has_ended(owned: OwnedPartition) -> None:
    first, second = await two_runs(owned)
    [leased] = await owned.lease(first, now=later(1))
    assert await owned.lease(second, now=later(1)) == []
    await owned.complete(Completion(first, leased.lease_token), now=later(1))
    assert ids(await owned.lease(second, now=later(1))) == {second}


@pytest.mark.parametrize("end", ["complete", "fail", "fail for good", "release", "snooze", "expire", "cancel"])
async def test_whatever_ends_a_lease_frees_its_slot(owned: OwnedPartition, end: str) -> None:
    run = await owned.leased_run(policies=SKIP)
    lease = (run.run_id, run.lease_token)
    assert await owned.slots() == {run.job_id: run.run_id}
    if end == "complete":
        await owned.complete(Completion(*lease))
    elif end.startswith("fail"):
        await owned.fail(Failure(*lease, "boom", permanent=end != "fail"))
    elif end == "release":
        await owned.release(HeldLease(*lease))
    elif end == "snooze":
        await owned.snooze(Snooze(*lease, 5.0))
    elif end == "expire":
        await owned.expire(run.run_id, now=later(30))
    else:
        await owned.cancel(run.run_id)
        assert await owned.slots() == {run.job_id: run.run_id}
        await owned.fail(Failure(*lease, "stopped"))
    assert await owned.slots() == {}


async def test_a_late_call_of_an_older_lease_frees_nothing(owned: OwnedPartition) -> None:
    run = await owned.leased_run(policies=SKIP)
    await owned.release(HeldLease(run.run_id, run.lease_token))
    await owned.lease(run.run_id)
    assert await owned.complete(Completion(run.run_id, run.lease_token)) == []
    assert await owned.slots() == {run.job_id: run.run_id}


async def test_runs_of_jobs_that_allow_overlap_take_no_slot(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    assert job.run_id
    other = await owned.trigger(job.job_id)
    assert ids(await owned.lease(job.run_id, other)) == {job.run_id, other}
    assert await owned.slots() == {}


async def test_polling_does_not_find_what_waits_for_a_slot(owned: OwnedPartition) -> None:
    first, _ = await two_runs(owned)
    await owned.lease(first, now=later(1))
    async with session(owned.pool) as conn:
        assert await find_due(conn, [("acme", "mail")], 10, now=later(1)) == []


@pytest_asyncio.fixture
async def instances(ledger_dsn: str) -> AsyncIterator[list[Pool]]:
    """The pools of two API instances."""
    async with open_ledger_pool(ledger_dsn, size=2) as one, open_ledger_pool(ledger_dsn, size=2) as two:
        yield [one, two]


@pytest.mark.parametrize("policies", [SKIP, REPLACE])
async def test_two_instances_never_have_two_runs_of_a_job_leased(
    owned: OwnedPartition, instances: list[Pool], policies: Policies
) -> None:
    """Each asks for one of the runs or for both, hundreds of times, while the holder ends its lease in some way."""
    dice = random.Random(policies.overlap)
    jobs = [await two_runs(owned, policies) for _ in range(4)]
    apis = [OwnedPartition(pool, owned.fence) for pool in instances]
    leased_times: Counter[UUID] = Counter()

    async def lease(api: OwnedPartition, asked: list[UUID]) -> list[LeasedRun]:
        return await api.lease(*asked, now=later(1))

    held: list[LeasedRun] = []
    for _ in range(ROUNDS):
        asked = [[run_id for job in jobs for run_id in dice.sample(job, dice.choice([1, 2]))] for _ in apis]
        ending = dice.sample(held, dice.randint(0, len(held)))
        one, two, _ = await asyncio.gather(
            lease(apis[0], asked[0]),
            lease(apis[1], asked[1]),
            owned.release(*(HeldLease(run.run_id, run.lease_token) for run in ending), now=later(1)),
        )
        held = [run for run in held if run not in ending] + one + two
        assert max(Counter(run.job_id for run in held).values(), default=0) <= 1
        assert await owned.slots() == {run.job_id: run.run_id for run in held}
        leased_times.update(run.run_id for run in held)
    assert all(leased_times[run_id] for job in jobs for run_id in job)


async def test_a_frozen_worker_s_lease_keeps_the_slot_until_it_expires(owned: OwnedPartition) -> None:
    first, second = await two_runs(owned)
    await owned.lease(first, now=NOW)
    assert await owned.lease(second, now=later(29)) == []
    [end] = await owned.expire(first, now=later(30))
    assert end.outcome == "retried"
    assert ids(await owned.lease(second, now=later(30))) == {second}
