"""Group commit: what goes together, what must not, and who suffers for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from ledger.group_commit import GroupCommit
from schemas.errors import LedgerUnavailable


@dataclass(eq=False)
class Note:
    """A call that writes runs."""

    ids: list[int]

    def row_ids(self) -> Sequence[UUID]:
        return [UUID(int=number) for number in self.ids]


@dataclass
class Ledger:
    """Commits that end when the test says so."""

    batches: list[list[list[int]]] = field(default_factory=list)
    open: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    poison: set[int] = field(default_factory=set)
    away: bool = False

    async def commit(self, calls: Sequence[Note]) -> Mapping[UUID, str]:
        self.batches.append([call.ids for call in calls])
        await self.open.acquire()
        if self.away:
            raise LedgerUnavailable("away")
        if self.poison & {number for call in calls for number in call.ids}:
            raise ValueError("poison")
        return {run_id: "done" for call in calls for run_id in call.row_ids()}

    def let(self, count: int) -> None:
        for _ in range(count):
            self.open.release()


async def settled(tasks: Sequence[asyncio.Task[Mapping[UUID, str]]]) -> list[Mapping[UUID, str] | BaseException]:
    return await asyncio.gather(*tasks, return_exceptions=True)


def start(group: GroupCommit[Note, str], *calls: list[int]) -> list[asyncio.Task[Mapping[UUID, str]]]:
    return [asyncio.create_task(group.write(Note(ids))) for ids in calls]


async def test_calls_that_find_no_free_transaction_go_together_in_the_next() -> None:
    ledger = Ledger()
    group = GroupCommit(ledger.commit, in_flight=1)
    tasks = start(group, [1], [2], [3])
    await asyncio.sleep(0)
    ledger.let(2)
    answers = await settled(tasks)
    assert ledger.batches == [[[1]], [[2], [3]]]
    assert [UUID(int=3) in answer for answer in answers[1:] if isinstance(answer, Mapping)] == [True, True]


async def test_no_more_transactions_run_side_by_side_than_allowed() -> None:
    ledger = Ledger()
    group = GroupCommit(ledger.commit, in_flight=2)
    tasks = start(group, [1], [2], [3], [4])
    await asyncio.sleep(0.01)
    assert ledger.batches == [[[1]], [[2]]]
    ledger.let(3)
    await settled(tasks)
    assert ledger.batches[2:] == [[[3], [4]]]


async def test_a_call_that_does_not_wait_has_a_transaction_beside_the_others() -> None:
    ledger = Ledger()
    group = GroupCommit(ledger.commit, in_flight=1)
    tasks = start(group, [1], [2])
    await asyncio.sleep(0)
    at_once = [group.submit(Note([number]), at_once=True) for number in (3, 4)]
    await asyncio.sleep(0)
    assert ledger.batches == [[[1]], [[3]]]  # one more, and no other
    assert not group.withdraw(at_once[0])
    ledger.let(4)
    await asyncio.gather(*tasks, *(pending.done for pending in at_once), group.drain())
    assert ledger.batches[2:] == [[[2], [4]]]


async def test_a_second_call_for_the_same_run_goes_to_the_next_batch_and_keeps_its_place() -> None:
    ledger = Ledger()
    group = GroupCommit(ledger.commit, in_flight=1)
    tasks = start(group, [0], [1], [1, 2], [2], [3])
    await asyncio.sleep(0)
    ledger.let(4)
    await settled(tasks)
    assert ledger.batches == [[[0]], [[1], [3]], [[1, 2]], [[2]]]


async def test_a_batch_is_bounded_in_runs() -> None:
    ledger = Ledger()
    group = GroupCommit(ledger.commit, in_flight=1, batch_rows=4)
    tasks = start(group, [0], [1, 2, 3], [4, 5], [6])
    await asyncio.sleep(0)
    ledger.let(3)
    await settled(tasks)
    assert ledger.batches == [[[0]], [[1, 2, 3], [6]], [[4, 5]]]


async def test_a_ledger_that_is_away_fails_every_call_of_the_batch() -> None:
    ledger = Ledger(away=True)
    group = GroupCommit(ledger.commit, in_flight=1)
    tasks = start(group, [0], [1], [2])
    await asyncio.sleep(0)
    ledger.let(2)
    assert [type(answer) for answer in await settled(tasks)] == [LedgerUnavailable] * 3


async def test_a_call_that_spoils_its_batch_fails_alone() -> None:
    ledger = Ledger(poison={2})
    group = GroupCommit(ledger.commit, in_flight=1)
    tasks = start(group, [0], [1], [2], [3])
    await asyncio.sleep(0)
    ledger.let(5)
    answers = await settled(tasks)
    assert isinstance(answers[2], ValueError)
    assert all(isinstance(answers[other], Mapping) for other in (0, 1, 3))
    assert ledger.batches[1:] == [[[1], [2], [3]], [[1]], [[2]], [[3]]]


async def test_a_withdrawn_call_is_never_written() -> None:
    ledger = Ledger()
    group = GroupCommit(ledger.commit, in_flight=1)
    first, second = group.submit(Note([1])), group.submit(Note([2]))
    assert group.withdraw(second)
    assert not group.withdraw(first)
    ledger.let(1)
    await first.done
    await group.drain()
    assert ledger.batches == [[[1]]]
    assert second.done.cancelled()


async def test_a_caller_who_goes_away_leaves_the_others_their_answer() -> None:
    ledger = Ledger()
    group = GroupCommit(ledger.commit, in_flight=1)
    tasks = start(group, [0], [1], [2])
    await asyncio.sleep(0.01)
    tasks[1].cancel()
    ledger.let(2)
    answers = await settled(tasks)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert isinstance(answers[2], Mapping)


async def test_batches_are_measured_in_runs() -> None:
    ledger, sizes = Ledger(), list[float]()
    group = GroupCommit(ledger.commit, in_flight=1, observe=sizes.append)
    tasks = start(group, [0], [1, 2], [3])
    await asyncio.sleep(0)
    ledger.let(2)
    await settled(tasks)
    assert sizes == [1, 3]


async def test_many_calls_are_answered_each_with_its_own_run() -> None:
    ledger = Ledger()
    ledger.let(10_000)
    group = GroupCommit(ledger.commit, in_flight=2)
    answers = await settled(start(group, *([number] for number in range(500))))
    for number, answer in enumerate(answers):
        assert isinstance(answer, Mapping)
        assert answer[UUID(int=number)] == "done"
    assert len(ledger.batches) < 20


@pytest.mark.parametrize("in_flight", [1, 2])
async def test_drain_returns_when_nothing_is_under_way(in_flight: int) -> None:
    ledger = Ledger()
    group = GroupCommit(ledger.commit, in_flight=in_flight)
    tasks = start(group, [1], [2], [3])
    await asyncio.sleep(0)
    ledger.let(3)
    await group.drain()
    assert all(isinstance(answer, Mapping) for answer in await settled(tasks))
