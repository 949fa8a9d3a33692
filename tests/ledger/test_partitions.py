"""The partitions of a ledger: how many there are is decided once, for ever."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from ledger.connection import Pool, session
from ledger.fence import owner_transaction, take_over
from ledger.partitions import advance_decided, init_partitions, list_partitions, partition_count
from schemas.errors import LedgerMismatch
from schemas.ids import MAX_PARTITIONS
from tests.ledger.owned_partition import NOW
from tests.ledger_fixtures import PARTITIONS


async def test_a_ledger_that_was_never_initialised_says_how_to(empty_ledger_dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(empty_ledger_dsn, autocommit=True) as conn:
        with pytest.raises(LedgerMismatch, match="fencepostd init"):
            await partition_count(conn)
        await init_partitions(conn, MAX_PARTITIONS)
        assert await partition_count(conn) == MAX_PARTITIONS
        assert [status.partition for status in await list_partitions(conn)] == list(range(MAX_PARTITIONS))


async def test_initialising_again_with_the_same_number_changes_nothing(ledger_pool: Pool) -> None:
    await take_over(ledger_pool, 2, "owner-1")
    async with session(ledger_pool) as conn:
        before = await list_partitions(conn)
        await init_partitions(conn, PARTITIONS)
        assert await list_partitions(conn) == before


@pytest.mark.parametrize("count", [PARTITIONS - 1, PARTITIONS + 1, 0, -1, MAX_PARTITIONS + 1])
async def test_another_number_of_partitions_is_refused(ledger_pool: Pool, count: int) -> None:
    async with session(ledger_pool) as conn:
        with pytest.raises(LedgerMismatch, match="partitions"):
            await init_partitions(conn, count)
        assert len(await list_partitions(conn)) == PARTITIONS


async def test_what_is_decided_only_grows(ledger_pool: Pool) -> None:
    fence = (await take_over(ledger_pool, 2, "owner-1")).fence
    far = NOW + timedelta(days=10_000)
    async with owner_transaction(ledger_pool, fence) as tx:
        await advance_decided(tx, far)
        await advance_decided(tx, far - timedelta(seconds=1))
    async with session(ledger_pool) as conn:
        assert (await list_partitions(conn))[2].decided_through == far
