"""What waits for the relay: how old it is, and how long an opening waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.connection import Connection, Pool, session
from ledger.outbox import delete_from_outbox, last_unpublished, oldest_unpublished
from streams import opening
from streams.opening import Opening
from tests.streams.event_samples import put_in_outbox
from tests.streams.simulated_owner import PARTITION, Simulation, simulating
from tests.streams.waiting import DEADLINE_S


async def test_the_oldest_row_of_the_outbox_tells_how_far_the_relay_is(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        assert (await last_unpublished(conn), await oldest_unpublished(conn)) == (None, None)
        ids = [await put(conn, age_s) for age_s in (20, 0)]
        assert await last_unpublished(conn) == ids[1]
        oldest = await oldest_unpublished(conn)
        assert oldest is not None
        assert oldest.id == ids[0]
        assert 20 <= oldest.age_s < 20 + DEADLINE_S
        await delete_from_outbox(conn, ids[:1])
        oldest = await oldest_unpublished(conn)
        assert oldest is not None
        assert oldest.id == ids[1]


async def put(conn: Connection, age_s: float) -> int:
    """A row into the outbox that came so long ago; its id."""
    await put_in_outbox(conn, [(UUID(int=1), PARTITION)], 1)
    last_id = await last_unpublished(conn)
    assert last_id is not None
    await conn.execute("UPDATE outbox SET at = now() - %s * interval '1 second' WHERE id = %s", (age_s, last_id))
    return last_id


class Waiting:
    """An opening that looks into the ledger's outbox for what the relay has not published yet."""

    def __init__(self, simulation: Simulation) -> None:
        owner, around = simulation.owner, simulation._surroundings()
        self._opening = Opening(owner._memory, owner._folder, owner.fence, around, owner._transaction)

    async def are_published(self) -> bool:
        return await self._opening._are_published()


@pytest_asyncio.fixture
async def waiting(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Waiting]:
    """For what is not an hour old."""
    async with simulating(ledger_pool, tmp_path, datetime(2026, 5, 1, 8, 30, tzinfo=UTC), monkeypatch) as simulation:
        monkeypatch.setattr(opening, "OLD_S", 3600.0)
        yield Waiting(simulation)


async def test_an_opening_waits_until_the_relay_has_taken_what_came_a_moment_ago(
    ledger_pool: Pool, waiting: Waiting
) -> None:
    assert await waiting.are_published()
    async with session(ledger_pool) as conn:
        ids = [await put(conn, age_s) for age_s in (3, 2)]
        task = asyncio.create_task(waiting.are_published())
        await until_looked(ledger_pool, task)
        await put(conn, 1)  # not waited for
        await delete_from_outbox(conn, ids[:1])
        await until_looked(ledger_pool, task)
        await delete_from_outbox(conn, ids[1:])
        assert await task


async def until_looked(pool: Pool, task: asyncio.Task[bool]) -> None:
    """The opening has looked into the outbox some times since, and waits."""
    for _ in range(10):
        async with session(pool) as conn:
            await oldest_unpublished(conn)
        await asyncio.sleep(opening.PUBLISHED_AGAIN_S)
    assert not task.done()


async def test_an_opening_waits_for_nothing_that_is_old_and_so_does_the_next_one_until_that_is_published(
    ledger_pool: Pool, waiting: Waiting
) -> None:
    async with session(ledger_pool) as conn:
        ids = [await put(conn, age_s) for age_s in (2 * opening.OLD_S, 0)]
        assert not await waiting.are_published()
        assert not await waiting.are_published()
        await delete_from_outbox(conn, ids)
        assert await waiting.are_published()


async def test_what_came_a_moment_ago_is_waited_for_until_it_is_old(
    ledger_pool: Pool, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "OLD_S", 0.3)
    async with session(ledger_pool) as conn:
        await put(conn, 0)
        assert not await waiting.are_published()
        assert not await waiting.are_published()
