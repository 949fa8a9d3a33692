"""Deciding together: one transaction for the partitions of a process, in which none suffers for another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.connection import Pool
from ledger.fence import Fence, FencedTransaction, owner_transaction, owners_transaction, take_over
from schemas.errors import EpochLost, LedgerUnavailable
from streams.command_batch import apply_commands
from streams.decision_rounds import PATIENCE_S, DecisionRounds
from streams.decisions import Asked, Decided
from streams.partition_memory import PartitionMemory
from tests.streams.commands import create, job_on
from tests.streams.ledger_dump import fetch

PARTITIONS = (2, 4, 6)


class Owner:
    """Of one partition, with a job whose occurrence of a minute ago is pending."""

    def __init__(self, fence: Fence, memory: PartitionMemory) -> None:
        self.fence, self.memory, self.job_id = fence, memory, job_on(fence.partition)

    async def begin(self, pool: Pool) -> None:
        issued_at = datetime.now(UTC) - timedelta(seconds=90)
        async with owner_transaction(pool, self.fence) as tx:
            made = await apply_commands(tx, [create(self.job_id, {"everySeconds": 60}, issued_at=issued_at)])
        self.memory.fold(made.events)

    def asked(self) -> Asked:
        return Asked.of(self.fence, self.memory.state, [self.job_id.bytes])


class Rounds:
    """Rounds that note whose partitions each transaction was for."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self.away, self.begun = pool, False, asyncio.Event()
        self.transactions: list[set[int]] = []
        self.times: list[tuple[float, float]] = []  # of each that was committed, on the monotonic clock
        self.rounds = DecisionRounds(self._transaction)

    async def decide(self, *owners: Owner) -> list[Decided | BaseException]:
        """All of them ask at once."""
        return await asyncio.gather(*(self.rounds.decide(owner.asked()) for owner in owners), return_exceptions=True)

    @asynccontextmanager
    async def _transaction(self, fences: Sequence[Fence]) -> AsyncIterator[FencedTransaction]:
        self.begun.set()
        self.transactions.append({fence.partition for fence in fences})
        if self.away:
            raise LedgerUnavailable("away")
        began = time.monotonic()
        async with owners_transaction(self._pool, fences) as tx:
            yield tx
        self.times.append((began, time.monotonic()))


@pytest.fixture
def rounds(ledger_pool: Pool) -> Rounds:
    return Rounds(ledger_pool)


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[list[PartitionMemory]]:
    memories = [PartitionMemory(tmp_path / str(partition)) for partition in PARTITIONS]
    yield memories
    for memory in memories:
        memory.close()


@pytest_asyncio.fixture
async def owners(ledger_pool: Pool, memories: list[PartitionMemory]) -> list[Owner]:
    owners = []
    for partition, memory in zip(PARTITIONS, memories, strict=True):
        owners.append(owner := Owner((await take_over(ledger_pool, partition, "owner")).fence, memory))
        await owner.begin(ledger_pool)
    return owners


async def runs(pool: Pool, owner: Owner) -> int:
    """How many runs the owner's job has: one until it is decided, and then two."""
    [count] = await fetch(pool, "SELECT count(*) FROM runs WHERE job_id = %s", owner.job_id)
    return int(count)


def jobs_of(answer: Decided | BaseException) -> list[UUID]:
    """Whose next occurrences have become runs."""
    assert isinstance(answer, Decided)
    return [UUID(bytes=event.job_id) for event in answer.events if event.type == "run_scheduled"]


async def test_who_asks_while_a_transaction_is_under_way_is_in_the_next_one_with_all_others(
    ledger_pool: Pool, rounds: Rounds, owners: list[Owner]
) -> None:
    answers = await rounds.decide(*owners)
    assert rounds.transactions == [{2}, {4, 6}]
    assert list(map(jobs_of, answers)) == [[owner.job_id] for owner in owners]
    assert [await runs(ledger_pool, owner) for owner in owners] == [2, 2, 2]


async def test_an_owner_whose_epoch_is_over_learns_it_and_the_others_decide(
    ledger_pool: Pool, rounds: Rounds, owners: list[Owner]
) -> None:
    await take_over(ledger_pool, owners[1].fence.partition, "another")
    first, second, third = await rounds.decide(*owners)
    assert isinstance(second, EpochLost)
    assert (jobs_of(first), jobs_of(third)) == ([owners[0].job_id], [owners[2].job_id])
    assert [await runs(ledger_pool, owner) for owner in owners] == [2, 1, 2]


async def test_while_the_ledger_is_away_nothing_is_decided_and_afterwards_everything_once(
    ledger_pool: Pool, rounds: Rounds, owners: list[Owner]
) -> None:
    rounds.away = True
    assert [type(answer) for answer in await rounds.decide(*owners)] == [LedgerUnavailable] * 3
    rounds.away = False
    for _ in range(2):
        await rounds.decide(*owners)
    assert [await runs(ledger_pool, owner) for owner in owners] == [2, 2, 2]


async def test_an_owner_that_stops_meanwhile_leaves_a_decision_that_others_share(
    ledger_pool: Pool, rounds: Rounds, owners: list[Owner]
) -> None:
    asking = [asyncio.create_task(rounds.rounds.decide(owner.asked())) for owner in owners]
    await rounds.begun.wait()
    asking[0].cancel()
    assert [jobs_of(await each) for each in asking[1:]] == [[owner.job_id] for owner in owners[1:]]
    await rounds.rounds.drain()
    assert [await runs(ledger_pool, owner) for owner in owners] == [2, 2, 2]


async def test_who_asks_for_nothing_gets_nothing(rounds: Rounds, owners: list[Owner]) -> None:
    answer = await rounds.rounds.decide(Asked(owners[0].fence, {}))
    assert jobs_of(answer) == []
    assert rounds.transactions == []


async def test_decisions_rest_after_a_transaction_but_not_for_long(rounds: Rounds, owners: list[Owner]) -> None:
    await rounds.decide(*owners)
    [(began, ended), (next_began, _)] = rounds.times
    assert next_began - ended >= min(2 * (ended - began), PATIENCE_S - 2 * (ended - began))
