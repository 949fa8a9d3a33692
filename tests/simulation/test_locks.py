"""The model of Postgres' locks and snapshots does what the protocol relies on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from ledger.fence import Fence, owner_transaction, take_over
from ledger.partitions import advance_offset
from schemas.errors import EpochLost, LedgerUnavailable
from tests.simulation.postgres import Commit, Pool, Shard, Transaction, models
from tests.simulation.rows import Partition
from tests.simulation.scheduler import SECOND_US, START_US, Process, Scheduler, sleep
from tests.simulation.statements.fence import Statement


@models("lock")
def lock(tx: Transaction, key: Any) -> Statement:
    yield from tx.lock("runs", key)
    return []


class Ledger:
    """A shard with one partition, and what was committed."""

    def __init__(self, without: str | None = None) -> None:
        self.scheduler = Scheduler(Random(1))
        self.commits: list[Commit] = []
        self.shard = Shard(0, self.scheduler, self.commits.append, without)
        self.shard.tables["partitions"][0] = Partition(0)
        self.said: list[str] = []

    def pool(self, process: Process | None = None) -> Any:
        return Pool(self.shard, process)

    def row(self) -> Partition:
        found: Partition = self.shard.tables["partitions"][0]
        return found

    def spawn(self, work: Callable[[], Awaitable[None]], process: Process | None = None) -> None:
        async def noted() -> None:
            try:
                await work()
            except (EpochLost, LedgerUnavailable) as error:
                self.said.append(type(error).__name__)

        self.scheduler.spawn(noted(), process)

    def run(self, seconds: float) -> None:
        until_us = START_US + int(seconds * SECOND_US)
        self.scheduler.run(until_us, lambda: False)
        self.scheduler.now_us = until_us

    async def write(self, fence: Fence, offset: int, *, waits_us: int = 0) -> None:
        async with owner_transaction(self.pool(), fence) as tx:
            await sleep(waits_us)
            await advance_offset(tx, offset)
        self.said.append(f"offset {offset}")

    async def become_owner(self, name: str) -> None:
        await take_over(self.pool(), 0, name)
        self.said.append(f"{name} owns it")


def test_a_takeover_waits_for_the_writer_and_later_writers_see_the_new_epoch() -> None:
    ledger = Ledger()
    ledger.spawn(lambda: ledger.become_owner("a"))
    ledger.run(1)
    old = Fence(0, 1, "a")
    ledger.spawn(lambda: ledger.write(old, 7, waits_us=2 * SECOND_US))
    ledger.run(2)
    ledger.spawn(lambda: ledger.become_owner("b"))
    ledger.run(2.5)
    ledger.spawn(lambda: ledger.write(old, 8))
    ledger.run(10)
    assert ledger.said[:2] == ["a owns it", "offset 7"]
    assert sorted(ledger.said[2:]) == ["EpochLost", "b owns it"]
    assert (ledger.row().epoch, ledger.row().owner, ledger.row().consumed_offset) == (2, "b", 7)


@pytest.mark.parametrize("without", ["fence", "fence lock", "fence read", "takeover lock"])
def test_without_its_parts_the_fence_lets_the_old_epoch_write(without: str) -> None:
    ledger = Ledger(without)
    ledger.spawn(lambda: ledger.become_owner("a"))
    ledger.run(1)
    old = Fence(0, 1, "a")
    ledger.spawn(lambda: ledger.write(old, 7, waits_us=2 * SECOND_US))
    ledger.run(2)
    ledger.spawn(lambda: ledger.become_owner("b"))
    ledger.run(2.5)
    ledger.spawn(lambda: ledger.write(old, 8))
    ledger.run(10)
    assert "offset 8" in ledger.said or ledger.said.index("b owns it") < ledger.said.index("offset 7")


def test_a_frozen_writer_holds_a_takeover_up_until_its_transaction_is_ended() -> None:
    ledger, frozen = Ledger(), Process("frozen")
    ledger.spawn(lambda: ledger.become_owner("a"))
    ledger.run(1)

    async def write() -> None:
        async with owner_transaction(ledger.pool(frozen), Fence(0, 1, "a")) as tx:
            await sleep(SECOND_US // 2)
            await advance_offset(tx, 7)

    ledger.spawn(write, frozen)
    ledger.run(1.2)
    ledger.scheduler.freeze(frozen)
    ledger.shard.end_stuck(frozen)
    ledger.spawn(lambda: ledger.become_owner("b"))
    ledger.run(8)
    assert ledger.said == ["a owns it"]
    ledger.run(12)
    ledger.scheduler.thaw(frozen)
    ledger.run(20)
    assert ledger.row().consumed_offset == 0
    assert set(ledger.said[1:]) <= {"b owns it", "LedgerUnavailable"}


def test_two_who_wait_for_each_other_are_told_of_the_deadlock() -> None:
    ledger = Ledger()

    async def lock_both(first: int, second: int) -> None:
        async with ledger.pool().connection() as conn, conn.transaction():
            await conn.execute("lock", first)
            await sleep(SECOND_US)
            await conn.execute("lock", second)
        ledger.said.append("done")

    ledger.spawn(lambda: lock_both(1, 2))
    ledger.spawn(lambda: lock_both(2, 1))
    ledger.run(5)
    assert sorted(ledger.said) == ["LedgerUnavailable", "done"]
    assert ledger.shard.locks.deadlocks == 1
