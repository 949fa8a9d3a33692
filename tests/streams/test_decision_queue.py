"""What waits to be decided is neither lost nor decided twice, and counts until it is."""

from __future__ import annotations

import asyncio

import pytest

from schemas.errors import LedgerUnavailable
from streams.decision_queue import DecisionQueue


async def test_jobs_come_in_order_each_once_and_in_batches() -> None:
    queue = DecisionQueue(2)
    queue.add([b"a", b"b", b"a", b"c"])
    async with queue.batch() as first:
        assert first == [b"a", b"b"]
        assert len(queue) == 3
    async with queue.batch() as second:
        assert second == [b"c"]
    assert len(queue) == 0


async def test_an_empty_queue_is_waited_for() -> None:
    queue = DecisionQueue(2)
    waiting = asyncio.create_task(queue.arrival())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.add([b"a"])
    async with asyncio.timeout(5):
        await waiting


async def test_what_could_not_be_decided_comes_again() -> None:
    queue = DecisionQueue(2)
    queue.add([b"a", b"b"])
    with pytest.raises(LedgerUnavailable):
        async with queue.batch():
            raise LedgerUnavailable("away")
    async with queue.batch() as again:
        assert again == [b"a", b"b"]
