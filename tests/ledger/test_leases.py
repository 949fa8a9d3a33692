"""Leases: who gets a run, for how long, and what an older token may still do (nothing)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from ledger.completions import Completion, Failure
from ledger.connection import Pool, session
from ledger.fence import api_transaction, take_over
from ledger.jobs import Policies
from ledger.lease_requests import forget_lease_requests, recall_leases
from ledger.leases import (
    Beat,
    ExtendedLease,
    HeldLease,
    LeasedRun,
    extend_leases,
    lease_at_once,
    lease_runs,
)
from schemas.errors import EpochLost
from schemas.ids import run_id_for
from tests.ledger.owned_partition import NOW, OwnedPartition, ids, later, names
from tests.ledger_fixtures import PARTITIONS


async def beat(owned: OwnedPartition, *beats: Beat, now: datetime = NOW) -> list[ExtendedLease]:
    async with api_transaction(owned.pool, [each.run_id for each in beats]) as conn:
        return await extend_leases(conn, beats, now=now)


async def test_lease_charges_an_attempt_and_gives_what_the_worker_needs(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    assert job.run_id
    assert await owned.lease(job.run_id, visibility_s=10.0) == [
        LeasedRun(job.run_id, job.job_id, 1, 1, later(10), NOW, NOW, "mail", '{"n":1}', 10.0)
    ]


async def test_lease_gives_a_run_only_once(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    assert await owned.lease(leased.run_id) == []


async def test_lease_gives_no_run_before_it_is_due(owned: OwnedPartition) -> None:
    [run_id] = await owned.runs(1, due_at=later(0.000001))
    assert await owned.lease(run_id, now=NOW) == []
    assert ids(await owned.lease(run_id, now=later(0.000001))) == {run_id}


async def test_lease_gives_no_run_of_a_paused_job(owned: OwnedPartition) -> None:
    job = await owned.job_with_run()
    await owned.pause(job.job_id)
    assert job.run_id
    assert await owned.lease(job.run_id) == []


@pytest.mark.parametrize("off_by", [-1, 1])
async def test_lease_gives_nothing_for_a_hint_of_another_epoch(owned: OwnedPartition, off_by: int) -> None:
    [run_id] = await owned.runs(1)
    assert await owned.lease(run_id, epoch=owned.fence.epoch + off_by) == []
    assert await owned.state_of(run_id) == "pending"


async def test_lease_gives_nothing_for_hints_of_an_owner_who_lost_its_partition(owned: OwnedPartition) -> None:
    [run_id] = await owned.runs(1)
    successor = OwnedPartition(owned.pool, (await take_over(owned.pool, owned.fence.partition, "owner-2")).fence)
    assert await owned.lease(run_id) == []
    assert ids(await successor.lease(run_id)) == {run_id}


async def test_a_lease_survives_a_change_of_owner(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    await take_over(owned.pool, owned.fence.partition, "owner-2")
    assert await owned.complete(Completion(leased.run_id, leased.lease_token)) == [leased.run_id]


async def test_lease_answers_for_the_runs_it_can_give_and_leaves_out_the_others(owned: OwnedPartition) -> None:
    due = await owned.runs(3)
    not_due = await owned.runs(2, due_at=later(60))
    assert ids(await owned.lease(*due, *not_due, UUID(int=owned.fence.partition << 64))) == set(due)


async def test_the_token_grows_with_every_lease_of_a_run(owned: OwnedPartition) -> None:
    [run_id] = await owned.runs(1, max_attempts=10)
    tokens = []
    for end in ("released", "failed", "expired", "released"):
        [leased] = await owned.lease(run_id)
        tokens.append(leased.lease_token)
        if end == "released":
            await owned.release(HeldLease(run_id, leased.lease_token))
        elif end == "failed":
            await owned.fail(Failure(run_id, leased.lease_token, "boom", retry_after_s=0))
        else:
            await owned.expire(run_id, now=leased.lease_expires_at)
            await make_due(owned, run_id)
    assert tokens == [1, 2, 3, 4]


async def make_due(owned: OwnedPartition, run_id: UUID) -> None:
    async with session(owned.pool) as conn:
        await conn.execute("UPDATE runs SET due_at = %s WHERE run_id = %s", (NOW, run_id))


async def test_concurrent_leasers_share_runs_out_without_giving_one_twice_or_deadlocking(owned: OwnedPartition) -> None:
    run_ids = await owned.runs(400)

    async def lease_all(worker: int) -> list[LeasedRun]:
        # Each in an order of its own, in overlapping slices: an invitation to deadlock.
        order = run_ids if worker % 2 else run_ids[::-1]
        got: list[LeasedRun] = []
        for start in range(0, len(order), 50):
            got += await owned.lease(*order[start : start + 100], worker_id=f"worker-{worker}")
        return got

    got = await asyncio.gather(*(lease_all(worker) for worker in range(6)))
    times = Counter(run.run_id for each in got for run in each)
    assert times == Counter(run_ids)


async def test_concurrent_leases_and_completions_of_shuffled_batches_never_deadlock(owned: OwnedPartition) -> None:
    run_ids = await owned.runs(200)
    leases = {run.run_id: run for run in await owned.lease(*run_ids)}

    async def end(order: list[UUID]) -> list[UUID]:
        return await owned.complete(*(Completion(run_id, leases[run_id].lease_token) for run_id in order))

    async def keep(order: list[UUID]) -> None:
        await beat(owned, *(Beat(run_id, leases[run_id].lease_token, 60.0) for run_id in order))

    ends = await asyncio.gather(
        end(run_ids), end(run_ids[::-1]), keep(run_ids[::-1]), keep(run_ids), end(sorted(run_ids)), keep(run_ids[50:])
    )
    assert Counter(run_id for done in ends if done for run_id in done) == Counter(run_ids)


async def test_a_heartbeat_extends_the_lease(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    [extended] = await beat(owned, Beat(leased.run_id, leased.lease_token, 30.0), now=later(20))
    assert extended == ExtendedLease(leased.run_id, later(50), False, 30.0)


async def test_a_heartbeat_never_shortens_the_lease(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    [extended] = await beat(owned, Beat(leased.run_id, leased.lease_token, 1.0), now=later(20))
    assert extended.lease_expires_at == leased.lease_expires_at


async def test_a_heartbeat_tells_that_the_run_is_to_be_cancelled(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    async with session(owned.pool) as conn:
        await conn.execute("UPDATE runs SET cancel_reason = 'cancelled'")
    [extended] = await beat(owned, Beat(leased.run_id, leased.lease_token, 30.0))
    assert extended.cancel


async def test_a_heartbeat_makes_no_event(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    before = await owned.told()
    await beat(owned, Beat(leased.run_id, leased.lease_token, 30.0))
    assert await owned.told() == before


# What a worker can ask of its lease: the answer is empty when the lease is lost.
Call = Callable[[OwnedPartition, HeldLease, datetime], Awaitable[list]]


async def _heartbeat(owned: OwnedPartition, lease: HeldLease, now: datetime) -> list:
    return await beat(owned, Beat(lease.run_id, lease.lease_token, 30.0, lease.tenant, lease.queues), now=now)


async def _complete(owned: OwnedPartition, lease: HeldLease, now: datetime) -> list:
    return await owned.complete(Completion(lease.run_id, lease.lease_token, None, lease.tenant, lease.queues), now=now)


async def _fail(owned: OwnedPartition, lease: HeldLease, now: datetime) -> list:
    failure = Failure(lease.run_id, lease.lease_token, "boom", tenant=lease.tenant, queues=lease.queues)
    return await owned.fail(failure, now=now)


async def _release(owned: OwnedPartition, lease: HeldLease, now: datetime) -> list:
    return await owned.release(lease, now=now)


every_call = pytest.mark.parametrize(
    "call", [_heartbeat, _complete, _fail, _release], ids=["heartbeat", "complete", "fail", "release"]
)


async def assert_untouched(
    owned: OwnedPartition, leased: LeasedRun, call: Call, lease: HeldLease, now: datetime
) -> None:
    before = (await owned.run(leased.run_id), await owned.told())
    assert await call(owned, lease, now) == []
    assert (await owned.run(leased.run_id), await owned.told()) == before


@every_call
async def test_an_expired_lease_is_refused(owned: OwnedPartition, call: Call) -> None:
    leased = await owned.leased_run()
    lease = HeldLease(leased.run_id, leased.lease_token)
    await assert_untouched(owned, leased, call, lease, leased.lease_expires_at)


@every_call
async def test_a_lease_is_good_until_the_instant_it_expires(owned: OwnedPartition, call: Call) -> None:
    leased = await owned.leased_run()
    lease = HeldLease(leased.run_id, leased.lease_token)
    assert len(await call(owned, lease, leased.lease_expires_at - datetime.resolution)) == 1


@every_call
async def test_an_older_token_is_refused(owned: OwnedPartition, call: Call) -> None:
    first = await owned.leased_run()
    await owned.release(HeldLease(first.run_id, first.lease_token))
    [second] = await owned.lease(first.run_id, worker_id="worker-2")
    await assert_untouched(owned, second, call, HeldLease(first.run_id, first.lease_token), NOW)


@every_call
async def test_a_token_that_was_never_given_is_refused(owned: OwnedPartition, call: Call) -> None:
    leased = await owned.leased_run()
    await assert_untouched(owned, leased, call, HeldLease(leased.run_id, leased.lease_token + 1), NOW)


@every_call
async def test_a_run_that_is_not_leased_is_refused(owned: OwnedPartition, call: Call) -> None:
    leased = await owned.leased_run()
    await owned.release(HeldLease(leased.run_id, leased.lease_token))
    await assert_untouched(owned, leased, call, HeldLease(leased.run_id, leased.lease_token), NOW)


@every_call
@pytest.mark.parametrize(
    ("tenant", "queues"), [("other", None), ("other", "mail"), ("acme", "sms"), ("acme", ""), ("acme", "mai,ail")]
)
async def test_a_run_of_another_tenant_or_queue_is_refused(
    owned: OwnedPartition, call: Call, tenant: str, queues: str | None
) -> None:
    leased = await owned.leased_run()
    await assert_untouched(owned, leased, call, HeldLease(leased.run_id, leased.lease_token, tenant, queues), NOW)


@every_call
@pytest.mark.parametrize(("tenant", "queues"), [(None, None), ("acme", None), ("acme", "mail"), ("acme", "sms,mail")])
async def test_a_run_of_the_caller_s_own_tenant_and_queue_is_taken(
    owned: OwnedPartition, call: Call, tenant: str | None, queues: str | None
) -> None:
    leased = await owned.leased_run()
    assert len(await call(owned, HeldLease(leased.run_id, leased.lease_token, tenant, queues), NOW)) == 1


async def test_release_gives_the_attempt_back(owned: OwnedPartition) -> None:
    leased = await owned.leased_run()
    assert await owned.release(HeldLease(leased.run_id, leased.lease_token)) == [leased.run_id]
    [again] = await owned.lease(leased.run_id)
    assert (again.attempt, again.due_at) == (leased.attempt, leased.due_at)
    assert names(await owned.events_of(leased.run_id)) == ["run_scheduled", "run_leased", "run_released", "run_leased"]


async def test_a_repeated_request_id_gets_the_same_runs(ledger_pool: Pool, owned: OwnedPartition) -> None:
    leased, request_id = await lease_and_remember(owned, count=3)
    async with session(ledger_pool) as conn:
        assert sorted(as_leased(await recall_leases(conn, request_id))) == sorted(leased)


async def lease_and_remember(
    owned: OwnedPartition, count: int, request_id: UUID | None = None
) -> tuple[list[LeasedRun], UUID]:
    """Leases by the ledger's own clock, which recalling goes by."""
    run_ids = await owned.runs(count, due_at=datetime.now(UTC) - timedelta(seconds=1))
    request_id = request_id or uuid4()
    async with api_transaction(owned.pool, run_ids) as conn:
        leased = await lease_runs(conn, [owned.ask(run_id, request_id=request_id) for run_id in run_ids])
    return leased, request_id


def as_leased(recalled: list[LeasedRun]) -> list[LeasedRun]:
    """As they were leased for 30 s; by now less of it is left."""
    assert all(0 < run.lease_s < 30 for run in recalled)
    return [run._replace(lease_s=30.0) for run in recalled]


async def test_a_repeated_request_id_does_not_get_what_was_ended_or_leased_again(owned: OwnedPartition) -> None:
    [kept, completed, taken], request_id = await lease_and_remember(owned, count=3)
    now = datetime.now(UTC)
    await owned.complete(Completion(completed.run_id, completed.lease_token), now=now)
    await owned.release(HeldLease(taken.run_id, taken.lease_token), now=now)
    await owned.lease(taken.run_id, now=now, worker_id="worker-2")
    async with session(owned.pool) as conn:
        assert as_leased(await recall_leases(conn, request_id)) == [kept]


async def test_gated_runs_and_others_are_leased_at_once_and_remembered_together(owned: OwnedPartition) -> None:
    due_at, request_id = datetime.now(UTC) - timedelta(seconds=1), uuid4()
    plain = await owned.runs(2, due_at=due_at)
    gated = await owned.runs(2, due_at=due_at, policies=Policies(overlap=1))
    asks = [owned.ask(run_id, request_id=request_id) for run_id in (*plain, *gated)]
    leased = await lease_at_once(owned.pool, asks)
    assert sorted(run.run_id for run in leased) == sorted([*plain, *gated])
    async with session(owned.pool) as conn:
        assert sorted(as_leased(await recall_leases(conn, request_id))) == sorted(leased)
    assert await lease_at_once(owned.pool, asks) == []


async def test_calls_that_are_leased_in_one_statement_are_remembered_apart(owned: OwnedPartition) -> None:
    run_ids = await owned.runs(3, due_at=datetime.now(UTC) - timedelta(seconds=1))
    first, second = uuid4(), uuid4()
    asks = [owned.ask(run_id, request_id=each) for run_id, each in zip(run_ids, (first, second, None), strict=True)]
    assert len(await lease_at_once(owned.pool, asks)) == 3
    async with session(owned.pool) as conn:
        for run_id, request_id in zip(run_ids, (first, second), strict=False):
            assert [run.run_id for run in await recall_leases(conn, request_id)] == [run_id]


async def test_what_is_not_due_is_not_leased_at_once_either(owned: OwnedPartition) -> None:
    [run_id] = await owned.runs(1, due_at=datetime.now(UTC) + timedelta(seconds=60))
    assert await lease_at_once(owned.pool, [owned.ask(run_id, request_id=uuid4())]) == []
    assert await owned.state_of(run_id) == "pending"


async def test_a_lease_at_once_that_fails_writes_nothing_and_the_pool_goes_on(owned: OwnedPartition) -> None:
    run_ids = await owned.runs(2, due_at=datetime.now(UTC) - timedelta(seconds=1))
    good, bad = owned.ask(run_ids[0]), owned.ask(run_ids[1], worker_id="no \0 text")
    with pytest.raises(psycopg.DataError):
        await lease_at_once(owned.pool, [good, bad])
    stray = run_id_for(uuid4(), NOW, PARTITIONS + 1)
    with pytest.raises(EpochLost):
        await lease_at_once(owned.pool, [good, owned.ask(stray)])
    endless = owned.ask(run_ids[1], visibility_s=1e300)  # the ledger finds out, after the commit was sent
    with pytest.raises(psycopg.DataError):
        await lease_at_once(owned.pool, [good, endless])
    assert [await owned.state_of(run_id) for run_id in run_ids] == ["pending"] * 2
    assert [run.run_id for run in await lease_at_once(owned.pool, [good])] == [good.run_id]


async def test_an_unknown_request_id_recalls_nothing(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        assert await recall_leases(conn, uuid4()) == []


async def test_a_request_id_whose_leases_are_gone_is_remembered_anew(owned: OwnedPartition) -> None:
    [first], request_id = await lease_and_remember(owned, count=1)
    await owned.complete(Completion(first.run_id, first.lease_token), now=datetime.now(UTC))
    [second], _ = await lease_and_remember(owned, 1, request_id)
    async with session(owned.pool) as conn:
        assert as_leased(await recall_leases(conn, request_id)) == [second]


async def test_only_old_request_ids_are_forgotten(owned: OwnedPartition) -> None:
    [_], old = await lease_and_remember(owned, count=1)
    async with session(owned.pool) as conn:
        await conn.execute("UPDATE lease_requests SET at = at - interval '3 minutes'")
    [kept], young = await lease_and_remember(owned, count=1)
    async with session(owned.pool) as conn:
        await forget_lease_requests(conn)
        assert await recall_leases(conn, old) == []
        assert as_leased(await recall_leases(conn, young)) == [kept]
