"""After a backup was restored, on two databases: the ledger as it went on, and the one made of the backup."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

import psycopg
import pytest
import pytest_asyncio
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fencepostd.cli import main
from ledger.completions import Completion, Failure, complete_runs, expire_leases, fail_runs
from ledger.connection import Pool, ledger_pool, session
from ledger.fence import api_transaction, owner_transaction
from ledger.jobs import Policies
from ledger.leases import Beat, extend_leases
from ledger.outbox import read_outbox
from ledger.restoration import declare_restored
from ledger.shard_map import init_alone
from tests.ledger.owned_partition import NOW, OwnedPartition, later
from tests.ledger_fixtures import PARTITIONS

TOMORROW = datetime.now(UTC) + timedelta(days=1)


class Seen(NamedTuple):
    """The largest that anybody has seen."""

    epoch: int
    lease_token: int
    outbox_id: int


@pytest_asyncio.fixture
async def ledger_dsn(empty_ledger_dsn: str) -> str:
    """A ledger of its own: a restoration goes by the clock, and the shared one's epochs may be ahead of it by one."""
    async with await psycopg.AsyncConnection.connect(empty_ledger_dsn, autocommit=True) as conn:
        await init_alone(conn, PARTITIONS)
    return empty_ledger_dsn


@pytest.fixture
def restored_dsn(ledger_dsn: str) -> Iterator[str]:
    """Where the backup of `ledger_dsn` is restored to, see `back_up`."""
    name = f"restored_{uuid4().hex[:12]}"
    yield make_conninfo(ledger_dsn, dbname=name)
    with psycopg.connect(make_conninfo(ledger_dsn, dbname="postgres"), autocommit=True) as conn:
        conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def back_up(dsn: str, restored_dsn: str) -> None:
    """The whole database as it is now. Nobody is connected with it."""
    source, name = (conninfo_to_dict(each)["dbname"] for each in (dsn, restored_dsn))
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {source} STRATEGY wal_log")


async def outbox_ids(pool: Pool) -> list[int]:
    async with session(pool) as conn:
        return [row.id for row in await read_outbox(conn, 1_000)]


async def go_on(pool: Pool, run_ids: list[UUID]) -> Seen:
    """What happens after the backup: takeovers, leases, retries."""
    owned = await OwnedPartition.take(pool)
    for _ in range(3):
        owned = await OwnedPartition.take(pool)
    token = 0
    for attempt in range(2):
        leases = await owned.lease(*run_ids, now=later(attempt * 700))
        token = max([token, *(lease.lease_token for lease in leases)])
        async with api_transaction(pool, run_ids) as conn:
            failures = [Failure(lease.run_id, lease.lease_token, "failed") for lease in leases]
            await fail_runs(conn, failures, now=later(attempt * 700 + 1))
    return Seen(owned.fence.epoch, token, max(await outbox_ids(pool)))


async def restore(pool: Pool) -> None:
    async with session(pool) as conn:
        await declare_restored(conn)


async def owe_to_a_later_clock(pool: Pool) -> None:
    """As if the restoration had been an hour from now."""
    ahead = {"ahead": 3_600 << 20}
    async with session(pool) as conn:
        await conn.execute(
            "UPDATE partitions SET epoch = epoch + %(ahead)s, token_floor = token_floor + %(ahead)s", ahead
        )
        await conn.execute("SELECT setval('outbox_id_seq', nextval('outbox_id_seq') + %(ahead)s)", ahead)


async def test_after_a_restoration_no_token_or_epoch_that_was_seen_is_given_again(
    ledger_dsn: str, restored_dsn: str
) -> None:
    async with ledger_pool(ledger_dsn, size=2) as pool:
        owned = await OwnedPartition.take(pool)
        waiting, held = await owned.runs(2)
        [gated] = await owned.runs(1, policies=Policies(overlap=1))
        [lease] = await owned.lease(held)
    back_up(ledger_dsn, restored_dsn)
    async with ledger_pool(ledger_dsn, size=2) as pool:
        seen = await go_on(pool, [waiting, gated])
    before = datetime.now(UTC)

    result = await asyncio.to_thread(CliRunner().invoke, main, ["restored", "--postgres", restored_dsn])
    assert result.exit_code == 0, result.output
    assert "16 partitions" in result.output
    assert "1 leases of the backup are over" in result.output

    async with ledger_pool(restored_dsn, size=2) as pool:
        known = max(await outbox_ids(pool))
        owned = await OwnedPartition.take(pool)
        assert owned.fence.epoch > max(seen.epoch, before.timestamp())
        async with api_transaction(pool, [held]) as conn:
            assert await extend_leases(conn, [Beat(held, lease.lease_token, 30)]) == []
            assert await complete_runs(conn, [Completion(held, lease.lease_token)]) == []
        async with owner_transaction(pool, owned.fence) as tx:
            [end] = await expire_leases(tx.conn, [held])
        assert end.outcome == "retried"
        leases = await owned.lease(waiting, held, gated, now=TOMORROW)
        assert len(leases) == 3
        assert all(seen.lease_token < each.lease_token < 1 << 53 for each in leases)
        assert all(each > seen.outbox_id for each in await outbox_ids(pool) if each > known)
        # Nothing else is different: the next lease's token is the next number.
        async with api_transaction(pool, [waiting]) as conn:
            [first] = [each for each in leases if each.run_id == waiting]
            await fail_runs(conn, [Failure(waiting, first.lease_token, "failed")], now=TOMORROW)
        [second] = await owned.lease(waiting, now=TOMORROW + timedelta(hours=1))
        assert second.lease_token == first.lease_token + 1


async def test_owners_of_before_the_restoration_are_none_any_more_and_it_may_be_said_twice(
    ledger_dsn: str, ledger_pool: Pool
) -> None:
    owned = await OwnedPartition.take(ledger_pool)
    [run_id] = await owned.runs(1)
    outputs = []
    for _ in range(2):
        result = await asyncio.to_thread(CliRunner().invoke, main, ["restored", "--postgres", ledger_dsn])
        assert result.exit_code == 0, result.output
        outputs.append(result.output)
    assert await owned.lease(run_id) == []  # a hint of an epoch that is over
    async with session(ledger_pool) as conn:
        rows = await (await conn.execute("SELECT DISTINCT owner FROM partitions")).fetchall()
    assert rows == [(None,)]
    again = await OwnedPartition.take(ledger_pool)
    assert again.fence.epoch > owned.fence.epoch + 2
    assert len(await again.lease(run_id, now=NOW)) == 1


async def test_a_backup_that_is_restored_twice_in_a_moment_gives_nothing_that_was_seen_in_between(
    ledger_dsn: str, restored_dsn: str
) -> None:
    """More takeovers in that moment than it has seconds."""
    async with ledger_pool(ledger_dsn, size=2) as pool:
        runs = await (await OwnedPartition.take(pool)).runs(2)
    back_up(ledger_dsn, restored_dsn)
    async with ledger_pool(restored_dsn, size=2) as pool:
        await restore(pool)
        seen = await go_on(pool, runs)
    async with ledger_pool(ledger_dsn, size=2) as pool:
        await restore(pool)
        owned = await OwnedPartition.take(pool)
        assert owned.fence.epoch > seen.epoch
        [lease] = await owned.lease(runs[0], now=TOMORROW)
        assert lease.lease_token > seen.lease_token
        assert max(await outbox_ids(pool)) > seen.outbox_id


async def test_a_clock_that_is_behind_a_former_restoration_gives_nothing_that_was_seen_since(
    ledger_dsn: str, restored_dsn: str
) -> None:
    async with ledger_pool(ledger_dsn, size=2) as pool:
        await restore(pool)
        await owe_to_a_later_clock(pool)
        runs = await (await OwnedPartition.take(pool)).runs(2)
    back_up(ledger_dsn, restored_dsn)
    async with ledger_pool(ledger_dsn, size=2) as pool:
        seen = await go_on(pool, runs)
    async with ledger_pool(restored_dsn, size=2) as pool:
        await restore(pool)
        owned = await OwnedPartition.take(pool)
        assert owned.fence.epoch > seen.epoch
        [lease] = await owned.lease(runs[0], now=TOMORROW)
        assert seen.lease_token < lease.lease_token < 1 << 53
        assert max(await outbox_ids(pool)) > seen.outbox_id


async def test_a_ledger_that_was_never_initialised_is_refused(empty_ledger_dsn: str) -> None:
    result = await asyncio.to_thread(CliRunner().invoke, main, ["restored", "--postgres", empty_ledger_dsn])
    assert result.exit_code == 1
    assert "run `fencepostd init`" in result.output
