"""Permits on two shards: whatever happens side by side, and whoever crashes, no more is leased than may be."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.completions import Completion, Failure, complete_runs, expire_leases, fail_runs
from ledger.connection import session
from ledger.fence import api_transaction, owner_transaction
from ledger.jobs import Policies
from ledger.leases import HeldLease, LeaseAsk, LeasedRun, lease_at_once, release_runs
from ledger.live_counts import count_live
from ledger.live_limits import read_live_limit, set_live_limit
from ledger.partition_moves import move_partition
from ledger.permits import (
    Permit,
    SpentPermit,
    Wish,
    free_permits,
    read_permits,
    read_wishes,
    spent_permits,
    take_permits,
)
from ledger.queue_settings import QueueName
from ledger.restoration import declare_restored
from ledger.shards import Shards, open_shards
from schemas.errors import NotOnThisShard
from schemas.ids import partition_of_run
from tests.ledger.moving import LONG_S, relaying, silent
from tests.ledger.owned_partition import OwnedPartition
from tests.ledger_fixtures import Database

MAIL = QueueName("acme", "mail")
KEYS = (None, "a", "b")
STEPS = 60


class Out(NamedTuple):
    """The permits that are out, and how many of each key."""

    runs: set[UUID]
    by_key: Counter[str | None]


class Scene:
    """Two partitions on two shards, workers of whom some crash, and operators who cannot make up their minds."""

    def __init__(self, shards: Shards, owned: list[OwnedPartition], dice: random.Random) -> None:
        self.shards, self.dice = shards, dice
        self.owned = {each.fence.partition: each for each in owned}
        self.permits: list[Permit] = []  # taken, and not used yet
        self.leased: dict[UUID, LeasedRun] = {}

    async def make(self) -> None:
        for owned in self.owned.values():
            due = datetime.now(UTC) - timedelta(seconds=1)
            await owned.runs(3, due_at=due, next_fire_at=due, policies=Policies(concurrency_key=self.dice.choice(KEYS)))

    async def waiting(self) -> list[Wish]:
        rows = []
        for pool in self.shards.pools.values():
            async with session(pool) as conn:
                found = await (await conn.execute("SELECT run_id FROM runs WHERE state = 'pending'")).fetchall()
                rows += await read_wishes(conn, [run_id for (run_id,) in found])
        return rows

    async def take(self) -> None:
        waiting = await self.waiting()
        taken = await take_permits(self.shards.home, MAIL, self.dice.sample(waiting, min(len(waiting), 4)))
        if taken is not None and self.dice.random() < 0.9:  # or the process dies
            self.permits += taken.permits.values()

    async def lease(self) -> None:
        """With permits, some of which are long given up by others; and without one, which is in vain."""
        self.dice.shuffle(self.permits)
        mine = [self.permits.pop() for _ in range(min(3, len(self.permits)))]
        await asyncio.gather(*(self._lease(permit.run_id, permit) for permit in mine))
        if waiting := await self.waiting():
            await self._lease(self.dice.choice(waiting).run_id, None)

    async def _lease(self, run_id: UUID, permit: Permit | None) -> None:
        epoch = self.owned[partition_of_run(run_id)].fence.epoch
        asks = [LeaseAsk(run_id, epoch, "w", 600.0, permit=permit)]
        for leased in await lease_at_once(self.shards.of_run(run_id), asks):
            self.leased[run_id] = leased

    async def end(self) -> None:
        for run_id in self.dice.sample(sorted(self.leased), min(2, len(self.leased))):
            lease = self.leased.pop(run_id)
            async with api_transaction(self.shards.of_run(run_id), [run_id]) as conn:
                how = self.dice.choice(["complete", "fail", "release"])
                if how == "complete":
                    ended = [each.permit for each in await complete_runs(conn, [Completion(run_id, lease.lease_token)])]
                elif how == "fail":
                    failure = Failure(run_id, lease.lease_token, "broken", retry_after_s=0.0)
                    ended = [each.permit for each in await fail_runs(conn, [failure])]
                else:
                    ended = [each.permit for each in await release_runs(conn, [HeldLease(run_id, lease.lease_token)])]
            if ended and ended[0] and self.dice.random() < 0.7:  # or the process dies
                await self.free([SpentPermit(run_id, ended[0])])

    async def expire(self) -> None:
        for run_id in self.dice.sample(sorted(self.leased), min(1, len(self.leased))):
            owned = self.owned[partition_of_run(run_id)]
            async with owner_transaction(owned.pool, owned.fence) as tx:
                await expire_leases(tx.conn, [run_id], now=datetime.now(UTC) + timedelta(hours=1))

    async def sweep(self) -> None:
        """As if all permits were old: also those that somebody is about to use."""
        async with session(self.shards.home) as conn:
            given = [each._replace(is_old=True) for each in await read_permits(conn)]
        for shard, own in self.shards.split(given).items():
            await self.free(await spent_permits(self.shards.pools[shard], own))

    async def free(self, spent: list[SpentPermit]) -> None:
        async with session(self.shards.home) as conn:
            await free_permits(conn, spent)

    async def limit(self) -> None:
        """Sometimes none at all for a moment, in which anything may be leased."""
        if self.dice.random() < 0.2:
            await self.set_limit(None, None)
            for wish in (await self.waiting())[:2]:
                await self._lease(wish.run_id, None)
        await self.set_limit(self.dice.choice([1, 3, 5, None]), self.dice.choice([1, 2, 4]))

    async def set_limit(self, max_live: int | None, max_live_per_key: int | None) -> None:
        changes = {"max_live": max_live, "max_live_per_key": max_live_per_key}
        await self.shards.tell_all(lambda conn: set_live_limit(conn, MAIL, changes, "token"))
        await count_live(self.shards, MAIL)

    async def live(self) -> set[UUID]:
        rows = []
        for pool in self.shards.pools.values():
            async with session(pool) as conn:
                rows += await (await conn.execute("SELECT run_id FROM runs WHERE state = 'leased'")).fetchall()
        return {run_id for (run_id,) in rows}

    async def out(self) -> Out:
        async with session(self.shards.home) as conn:
            rows = await (await conn.execute("SELECT run_id, concurrency_key FROM permits")).fetchall()
        return Out({run_id for run_id, _ in rows}, Counter(key for _, key in rows))

    async def check(self, before: Out) -> None:
        """Each lease has its permit; what is out beyond a limit was so before it was lowered, and nothing was added."""
        async with session(self.shards.home) as conn:
            limit = await read_live_limit(conn, MAIL)
        assert limit is not None
        out = await self.out()
        assert await self.live() <= out.runs
        if out.runs - before.runs and limit.max_live is not None:
            assert len(out.runs) <= limit.max_live
        for key in out.by_key.keys() - {None}:
            if out.by_key[key] > before.by_key[key] and limit.max_live_per_key is not None:
                assert out.by_key[key] <= limit.max_live_per_key


@pytest_asyncio.fixture
async def shards(two_ledgers: list[Database]) -> AsyncIterator[Shards]:
    async with open_shards(two_ledgers[0].dsn, size=8) as shards:
        yield shards


@pytest.mark.parametrize("seed", range(3))
async def test_no_more_is_leased_than_a_queue_may_have_live_whatever_happens(shards: Shards, seed: int) -> None:
    owned = [await OwnedPartition.take(shards.of(partition), partition) for partition in (2, 3)]
    scene = Scene(shards, owned, random.Random(seed))
    acts: list[Callable[[], Awaitable[None]]] = [
        scene.make, scene.take, scene.take, scene.lease, scene.lease, scene.end, scene.expire, scene.sweep,
    ]  # fmt: skip
    await scene.set_limit(3, 2)
    most = 0
    for _ in range(STEPS):
        before = await scene.out()
        await asyncio.gather(*(act() for act in scene.dice.sample(acts, 3)))
        await scene.check(before)
        most = max(most, len(await scene.live()))
        if scene.dice.random() < 0.1:
            await scene.limit()
    assert most > 1
    await scene.sweep()
    async with session(shards.home) as conn:
        assert {each.run_id for each in await read_permits(conn)} == await scene.live()


async def test_permits_are_given_in_the_order_in_which_they_are_asked_for(shards: Shards) -> None:
    owned = await OwnedPartition.take(shards.of(2), 2)
    await shards.tell_all(lambda conn: set_live_limit(conn, MAIL, {"max_live": 3, "max_live_per_key": 1}, "token"))
    runs = await owned.runs(6)
    wishes = [Wish(run_id, key) for run_id, key in zip(runs, ["a", "a", None, "b", None, "c"], strict=True)]
    uncounted = await take_permits(shards.home, MAIL, wishes)
    assert uncounted is not None
    assert (uncounted.permits, {*uncounted.refused.values()}) == ({}, {"queue_full", "key_full"})
    assert await count_live(shards, MAIL)
    taken = await take_permits(shards.home, MAIL, wishes)
    assert taken is not None
    assert [*taken.permits] == sorted(runs[index] for index in (0, 2, 3))
    assert taken.refused == {runs[1]: "key_full", runs[4]: "queue_full", runs[5]: "queue_full"}
    again = await take_permits(shards.home, MAIL, wishes[:1])
    assert again is not None
    assert again.refused == {runs[0]: "has_one"}


async def test_a_queue_without_a_limit_needs_no_permit(shards: Shards) -> None:
    owned = await OwnedPartition.take(shards.of(2), 2)
    [run_id] = await owned.runs(1)
    assert await take_permits(shards.home, MAIL, [Wish(run_id, None)]) is None
    assert len(await owned.lease(run_id)) == 1


@pytest.mark.parametrize("change", [{"queue": "sms"}, {"concurrency_key": "other"}])
async def test_a_permit_is_for_the_queue_and_the_key_that_it_was_taken_for(
    shards: Shards, change: dict[str, Any]
) -> None:
    owned = await OwnedPartition.take(shards.of(2), 2)
    [run_id] = await owned.runs(1, policies=Policies(concurrency_key="a"))
    permit = Permit(run_id, 7, "mail", "a")
    assert await owned.lease(run_id, permit=permit._replace(**change)) == []
    assert len(await owned.lease(run_id, permit=permit)) == 1


async def test_a_permit_is_good_for_one_lease(shards: Shards) -> None:
    owned = await OwnedPartition.take(shards.of(2), 2)
    [run_id] = await owned.runs(1)
    permit = Permit(run_id, 7, "mail", None)
    [leased] = await owned.lease(run_id, permit=permit)
    await owned.release(HeldLease(run_id, leased.lease_token))
    assert await owned.lease(run_id, permit=permit) == []
    assert len(await owned.lease(run_id, permit=permit._replace(number=8))) == 1


async def test_permits_follow_their_runs_to_another_shard(shards: Shards) -> None:
    owned = await OwnedPartition.take(shards.of(2), 2)
    await shards.tell_all(lambda conn: set_live_limit(conn, MAIL, {"max_live": 2}, "token"))
    await count_live(shards, MAIL)
    used, unused = await owned.runs(2)
    taken = await take_permits(shards.home, MAIL, [Wish(used, None), Wish(unused, None)])
    assert taken is not None
    [leased] = await owned.lease(used, permit=taken.permits[used], visibility_s=LONG_S, now=datetime.now(UTC))
    async with relaying(shards):
        await move_partition(shards, 2, 1, silent)
    async with session(shards.home) as conn:
        given = [each._replace(is_old=True) for each in await read_permits(conn)]
    there = shards.pools[1]
    assert [each.run_id for each in await spent_permits(there, given)] == [unused]  # the other one is live
    async with api_transaction(there, [used]) as tx:
        [completed] = await complete_runs(tx, [Completion(used, leased.lease_token)])
    assert completed.permit == taken.permits[used].number
    with pytest.raises(NotOnThisShard):  # which has forgotten them: that says nothing
        await spent_permits(shards.home, given)


async def test_after_a_backup_was_restored_what_is_leased_is_counted_anew(shards: Shards) -> None:
    await shards.tell_all(lambda conn: set_live_limit(conn, MAIL, {"max_live": 2}, "token"))
    await count_live(shards, MAIL)
    owned = await OwnedPartition.take(shards.of(3), 3)
    [run_id, other] = await owned.runs(2)
    assert await owned.lease(run_id, permit=Permit(run_id, 7, "mail", None))  # which home has forgotten
    async with session(shards.home) as conn:
        await declare_restored(conn)
    refused = await take_permits(shards.home, MAIL, [Wish(other, None)])
    assert refused is not None
    assert refused.permits == {}
    assert await count_live(shards, MAIL)
    async with session(shards.home) as conn:
        [counted] = await read_permits(conn)
    assert counted.run_id == run_id
    assert counted.number > 2**40  # larger than any that somebody may still have
