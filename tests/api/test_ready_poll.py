"""The look into the ledger for due runs that no hint told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api import ready_poll
from api.full_scopes import FullScopes
from api.metrics import ApiMetrics
from api.ready_index import Queue, ReadyIndex, ReadyRun, Waiter
from api.ready_poll import ReadyPoll
from ledger.connection import Connection, Pool
from ledger.connection import ledger_pool as open_ledger_pool
from ledger.fence import api_transaction, say_decided
from ledger.leases import LeaseAsk, lease_runs
from ledger.runs import DueRun, find_due
from ledger.shards import Shards
from tests.api.owner import Owner
from tests.ledger_fixtures import PARTITIONS, PATIENCE_S

MAIL, SMS = ("acme", "mail"), ("acme", "sms")


class Poll:
    """A running poll, and those who wait on its index."""

    def __init__(self, pool: Pool, interval_s: tuple[float, float]) -> None:
        self.index, self.metrics, self.are_hints_read = ReadyIndex(), ApiMetrics(), False
        self.poll = ReadyPoll(
            Shards.alone(pool, PARTITIONS),
            self.index,
            self.metrics,
            FullScopes(self.index, lambda _: None),
            interval_s=interval_s,
            are_hints_read=lambda: self.are_hints_read,
        )

    def wait(self, queue: Queue, wanted: int = 10) -> Callable[[], Coroutine[Any, Any, list[ReadyRun]]]:
        woken = asyncio.Event()
        waiter = Waiter([queue], wanted, woken.set)
        self.index.wait(waiter)
        self.poll.waiter_arrived(queue)

        async def runs() -> list[ReadyRun]:
            async with asyncio.timeout(10):
                await woken.wait()
            return waiter.take()

        return runs

    def looks(self) -> float:
        looks: float = self.metrics.ready_polls._value.get()
        return looks


@asynccontextmanager
async def polling(pool: Pool, interval_s: tuple[float, float] = (60.0, 60.0)) -> AsyncIterator[Poll]:
    poll = Poll(pool, interval_s)
    task = asyncio.create_task(poll.poll.run())
    try:
        yield poll
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_one_look_serves_all_queues_that_are_waited_on(ledger_pool: Pool, owner: Owner) -> None:
    mail, sms = await owner.make_due(3), await owner.make_due(2, queue="sms")
    await owner.make_due(4, queue="unwanted")
    async with polling(ledger_pool) as poll:
        waits = [poll.wait(queue) for queue in (MAIL, SMS)]
        got = [await wait() for wait in waits]
        assert [[run.run_id for run in runs] for runs in got] == [mail, sms]
        assert poll.looks() == 1
        assert len(poll.index) == 0


async def test_nobody_waiting_means_no_look(ledger_pool: Pool, owner: Owner) -> None:
    await owner.make_due(3)
    async with polling(ledger_pool, (0.001, 0.001)) as poll:
        await asyncio.sleep(0.1)
        assert poll.looks() == 0


async def test_a_queue_that_was_just_looked_at_waits_for_its_next_turn(ledger_pool: Pool, owner: Owner) -> None:
    async with polling(ledger_pool, (0.3, 0.3)) as poll:
        began = asyncio.get_running_loop().time()
        wait = poll.wait(MAIL)
        while poll.looks() == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        [run_id] = await owner.make_due()
        poll.poll.waiter_arrived(MAIL)
        assert [run.run_id for run in await wait()] == [run_id]
        assert asyncio.get_running_loop().time() - began >= 0.3
        assert poll.looks() == 2


async def test_a_doubted_queue_is_looked_at_again_soon(ledger_pool: Pool, owner: Owner) -> None:
    async with polling(ledger_pool) as poll:
        wait = poll.wait(MAIL)
        while poll.looks() == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        [run_id] = await owner.make_due()
        poll.poll.doubt(MAIL)
        assert [run.run_id for run in await wait()] == [run_id]


async def test_a_queue_with_more_than_a_look_brings_is_looked_at_again_at_once(ledger_pool: Pool, owner: Owner) -> None:
    made = await owner.make_due(450)
    async with polling(ledger_pool) as poll:
        got: list[ReadyRun] = []
        while len(got) < len(made):
            popped = poll.index.pop(MAIL, 100) or await poll.wait(MAIL, 100)()
            async with api_transaction(ledger_pool, [run.run_id for run in popped]) as conn:
                await lease_runs(conn, [LeaseAsk(run.run_id, run.epoch, "w", 30.0) for run in popped])
            poll.index.settle(popped)
            got += popped
        assert sorted(run.run_id for run in got) == sorted(made)


async def test_it_goes_on_after_the_ledger_was_away(ledger_dsn: str, owner: Owner) -> None:
    [run_id] = await owner.make_due()
    async with open_ledger_pool(ledger_dsn, size=1) as pool, AsyncExitStack() as away:
        # The only session: whoever wants one meets a ledger that is away.
        await away.enter_async_context(pool.connection(timeout=PATIENCE_S))
        pool.timeout = 0.05
        async with polling(pool, (0.1, 0.1)) as poll:
            wait = poll.wait(MAIL)
            while poll.looks() < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await away.aclose()
            assert [run.run_id for run in await wait()] == [run_id]


async def test_it_goes_on_after_an_error_that_nobody_foresaw(
    ledger_pool: Pool, owner: Owner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    [run_id] = await owner.make_due()
    broken = iter([True])

    async def find_due_but_once(conn: Connection, queues: list[Queue], limit: int, **others: Any) -> list[DueRun]:
        if next(broken, False):
            raise ZeroDivisionError
        return await find_due(conn, queues, limit, **others)

    monkeypatch.setattr(ready_poll, "find_due", find_due_but_once)
    async with polling(ledger_pool, (0.01, 0.01)) as poll:
        assert [run.run_id for run in await poll.wait(MAIL)()] == [run_id]
    assert "ZeroDivisionError" in caplog.text


async def test_a_queue_that_hints_are_trusted_to_tell_of_is_looked_at_once_they_are_not(
    ledger_pool: Pool, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_poll, "JUDGE_EVERY_S", 0.01)
    await say_decided(ledger_pool, dict.fromkeys(owner.fences.values(), datetime.now(UTC) + timedelta(days=1)))
    async with polling(ledger_pool, (0.01, 0.01)) as poll:
        poll.are_hints_read = True
        wait = poll.wait(MAIL)
        while not poll.poll._trusted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        poll.poll._interval_s = (60.0, 60.0)
        looks = poll.looks()
        while poll.looks() == looks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        [run_id] = await owner.make_due()
        poll.are_hints_read = False
        assert [run.run_id for run in await wait()] == [run_id]


async def test_whether_hints_are_to_be_trusted_is_found_out_anew_once_nobody_has_waited(
    ledger_pool: Pool, owner: Owner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ready_poll, "JUDGE_EVERY_S", 0.01)
    await say_decided(ledger_pool, dict.fromkeys(owner.fences.values(), datetime.now(UTC) + timedelta(days=1)))
    async with polling(ledger_pool, (0.01, 0.01)) as poll:
        poll.are_hints_read = True
        waiter = Waiter([MAIL], 1, lambda: None)
        poll.index.wait(waiter)
        poll.poll.waiter_arrived(MAIL)
        while not poll.poll._trusted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        poll.index.leave(waiter)
        while poll.poll._trusted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        poll.are_hints_read = False
        [run_id] = await owner.make_due()
        assert [run.run_id for run in await poll.wait(MAIL)()] == [run_id]
    assert "hints cannot be relied on" not in caplog.text
