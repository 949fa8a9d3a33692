"""Shards that are added while others run."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest

from ledger.connection import session
from ledger.live_limits import LiveLimit, read_live_limits, set_live_limit
from ledger.partition_moves import move_partition
from ledger.partitions import owners_keep_up
from ledger.pauses import list_pauses, pause_queue, resume_queue
from ledger.queue_settings import QueueName, read_queue_settings, set_rate
from ledger.shard_map import add_shard, init_alone
from ledger.shards import open_shards
from ledger.tenant_limits import TenantLimits, read_limits, set_limits
from schemas.errors import LedgerMismatch
from tests.ledger.moving import holders, relaying, silent
from tests.ledger_fixtures import PARTITIONS, Database

PARTITION = 2  # at home, which is shard 0


async def test_a_shard_without_partitions_holds_nobody_up(two_ledgers: list[Database]) -> None:
    async with open_shards(two_ledgers[0].dsn) as shards, session(shards.home) as conn:
        await conn.execute("DELETE FROM partitions")
        assert await owners_keep_up(conn, 5.0)


async def test_a_new_shard_knows_what_all_are_told_and_is_found_by_who_is_running(
    empty_ledger_dsn: str, another_ledger_dsn: str
) -> None:
    async with await psycopg.AsyncConnection.connect(empty_ledger_dsn, autocommit=True) as conn:
        await init_alone(conn, PARTITIONS)
    async with open_shards(empty_ledger_dsn) as shards:
        welcomed: list[int] = []
        shards.on_added(lambda number, _: _note(welcomed, number))
        async with session(shards.home) as conn:
            await pause_queue(conn, "acme", "mail", "me")
            await pause_queue(conn, "acme", "over", "me")
            await resume_queue(conn, "acme", "over", "me")
            await set_rate(conn, "acme", "mail", 5.0, "me")
            await set_limits(conn, "acme", {"leases_per_s": 7.0}, "me")
            await set_live_limit(conn, QueueName("acme", "mail"), {"max_live": 9}, "me")
            async with await psycopg.AsyncConnection.connect(another_ledger_dsn, autocommit=True) as new:
                for _ in range(2):  # again changes nothing
                    assert await add_shard(conn, another_ledger_dsn, new) == 1
        assert welcomed == []
        await shards.tell_all(lambda conn: pause_queue(conn, "acme", "late", "me"))
        assert welcomed == [1]
        home, new_one = await shards.ask_all(
            lambda conn: list_pauses(conn, "acme", since=datetime(2000, 1, 1, tzinfo=UTC))
        )
        assert len(new_one) == 3
        assert {pause.queue: pause.resumed_at for pause in home} == {pause.queue: pause.resumed_at for pause in new_one}
        async with session(shards.pools[1]) as conn:
            assert (await read_queue_settings(conn, "acme", "mail")).rate_per_s == 5.0
            assert await read_limits(conn) == {"acme": TenantLimits(leases_per_s=7.0)}
            assert await read_live_limits(conn) == {("acme", "mail"): LiveLimit(max_live=9)}
        async with relaying(shards):
            await move_partition(shards, PARTITION, 1, silent)
            assert await holders(shards, PARTITION) == [1]


async def _note(numbers: list[int], number: int) -> None:
    numbers.append(number)


async def test_a_database_that_is_something_else_does_not_become_a_shard(
    two_ledgers: list[Database], ledger_dsn: str
) -> None:
    async with (
        await psycopg.AsyncConnection.connect(two_ledgers[0].dsn, autocommit=True) as home,
        await psycopg.AsyncConnection.connect(ledger_dsn, autocommit=True) as another,
    ):
        with pytest.raises(LedgerMismatch, match="is shard 0 already: give a new shard an empty database"):
            await add_shard(home, ledger_dsn, another)
