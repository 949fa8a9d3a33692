"""A task that was cancelled ends, also when what it waited for came at that moment."""

from __future__ import annotations

import asyncio

import pytest

from ledger.connection import ledger_pool
from ledger.kept_cancellations import wait_for

STEPS = range(8)  # of the loop, from what was waited for to the cancellation


@pytest.mark.parametrize("steps", STEPS)
async def test_a_cancellation_is_not_lost_when_the_result_comes_with_it(steps: int) -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_for(event.wait(), 10))
    await asyncio.sleep(0)
    event.set()
    await ends_by(waiting, steps)


@pytest.mark.parametrize("steps", STEPS)
async def test_a_cancellation_is_not_lost_when_the_pool_gives_a_session_with_it(ledger_dsn: str, steps: int) -> None:
    async with ledger_pool(ledger_dsn, size=1) as pool:
        first = await pool.getconn()
        waiting = asyncio.create_task(pool.getconn())
        await asyncio.sleep(0)
        await pool.putconn(first)
        await ends_by(waiting, steps)
        if not waiting.cancelled():
            await pool.putconn(waiting.result())


async def test_a_wait_that_takes_too_long_cancels_what_it_waits_for() -> None:
    never = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await wait_for(never, 0.01)
    assert never.cancelled()


async def ends_by(task: asyncio.Task[object], steps: int) -> None:
    """Cancels it so many steps of the loop from now; it is over then, or ends by that."""
    for _ in range(steps):
        await asyncio.sleep(0)
    was_under_way = task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() == was_under_way
