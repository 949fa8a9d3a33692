"""A ledger with a synchronous standby: what counts as committed, and with which server sessions are."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from connectors.stack import PostgresPair
from ledger import servers
from ledger.confirmed_connection import ConfirmedConnection, Unconfirmed
from ledger.connection import Pool, session
from ledger.fence import Fence, api_transaction, owner_transaction, take_over
from ledger.lease_requests import recall_leases
from ledger.migrations import migrate
from ledger.servers import Servers, complete_dsn
from schemas.errors import LedgerMismatch, LedgerUnavailable
from schemas.ids import run_id_for
from tests.ledger.owned_partition import NOW, OwnedPartition
from tests.pair_fixtures import frozen, pool_of, waiting_commits, write, written
from tests.streams.waiting import until

WITHIN_S = 15.0
NOBODY = Fence(5, 0, "nobody")


def dsn_of(*ports: int, dbname: str) -> str:
    hosts = ",".join("127.0.0.1" for _ in ports)
    return f"host={hosts} port={','.join(map(str, ports))} user=postgres dbname={dbname}"


def name_of(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["dbname"])


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ("host=a,b dbname=x", {"host": "a,b", "target_session_attrs": "read-write", "connect_timeout": "5"}),
        ("postgresql://a:1,b:2/x?connect_timeout=9", {"host": "a,b", "port": "1,2", "connect_timeout": "9"}),
        ("host=a target_session_attrs=primary", {"host": "a", "target_session_attrs": "primary"}),
    ],
)
def test_a_dsn_means_servers_that_take_writes_and_answer_soon(given: str, completed: dict[str, str]) -> None:
    assert completed.items() <= conninfo_to_dict(complete_dsn(given)).items()


# --- what counts as committed ---

Write = Callable[[Pool, Fence], Coroutine[Any, Any, None]]


async def by_a_statement(pool: Pool, _: Fence) -> None:
    async with session(pool) as conn:
        await write(conn, 1)


async def by_an_owner(pool: Pool, fence: Fence) -> None:
    async with owner_transaction(pool, fence) as tx:
        await write(tx.conn, 1)


async def by_the_api(pool: Pool, fence: Fence) -> None:
    async with api_transaction(pool, [run_id_for(uuid4(), NOW, fence.partition)]) as conn:
        await write(conn, 1)


@pytest.mark.parametrize("write_one", [by_a_statement, by_an_owner, by_the_api])
async def test_a_commit_that_returns_without_the_standby_is_a_failure(
    pair: PostgresPair, pair_dsn: str, write_one: Write
) -> None:
    async with pool_of(pair_dsn) as pool:
        fence = (await take_over(pool, 5, "owner-1")).fence
        with frozen(pair.standby):
            writing = asyncio.create_task(write_one(pool, fence))
            [pid] = await waiting_commits(pair, of_writers=True)
            await asyncio.to_thread(pair.primary.execute, f"SELECT pg_cancel_backend({pid})")
            with pytest.raises(LedgerUnavailable, match="the wait for the synchronous standby was cancelled"):
                await writing
            assert await seen_by_others(pair, pair_dsn) == {1}
            # It is visible, and nobody of ours takes it for committed: who asks next waits for the standby after all.
            asking = asyncio.create_task(eventually_written(pool))
            await waiting_commits(pair)
            assert not asking.done()
        assert await asking == {1}


async def seen_by_others(pair: PostgresPair, dsn: str) -> set[int]:
    """What a session sees that asks for no proof."""
    only = dsn_of(pair.primary.port, dbname=name_of(dsn))
    async with await psycopg.AsyncConnection.connect(only) as conn:
        return {number for (number,) in await (await conn.execute("TABLE probe")).fetchall()}


async def eventually_written(pool: Pool) -> set[int]:
    while True:
        with suppress(LedgerUnavailable):
            return await written(pool)


async def test_a_lease_call_that_comes_again_waits_for_the_standby_as_the_first_one_did(
    pair: PostgresPair, pair_dsn: str
) -> None:
    async with pool_of(pair_dsn) as pool, pool_of(pair_dsn) as other, session(other) as conn:
        owned = await OwnedPartition.take(pool)
        [run_id] = await owned.runs(1)
        request_id = uuid4()
        with frozen(pair.standby):
            leasing = asyncio.create_task(owned.lease(run_id, request_id=request_id))
            [pid] = await waiting_commits(pair, of_writers=True)
            await asyncio.to_thread(pair.primary.execute, f"SELECT pg_cancel_backend({pid})")
            with pytest.raises(LedgerUnavailable):
                await leasing
            recalling = asyncio.create_task(recall_leases(conn, request_id, now=NOW))
            await until(lambda: is_waiting(pair, conn.info.backend_pid))
            assert not recalling.done()
        [lease] = await recalling
        assert lease.run_id == run_id


async def test_a_migration_that_is_not_known_to_be_on_the_standby_fails_and_is_complete_by_the_next_one(
    pair: PostgresPair,
) -> None:
    pair.primary.execute("CREATE DATABASE migrated")
    dsn = make_conninfo(pair.dsn, dbname="migrated")
    try:
        with frozen(pair.standby):
            migrating = asyncio.create_task(asyncio.to_thread(migrate, dsn))
            while not migrating.done():
                await asyncio.to_thread(pair.primary.execute, CANCEL_WAITS)
                await asyncio.sleep(0.02)
            with pytest.raises(Unconfirmed, match="is 0001_pre_initial on it"):
                await migrating
        assert [migrate(dsn)[0], migrate(dsn)] == ["0002_pre_policies", []]
    finally:
        pair.primary.execute("DROP DATABASE migrated WITH (FORCE)")


CANCEL_WAITS = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def test_a_caller_that_is_cancelled_cancels_no_commit(pair: PostgresPair, pair_dsn: str) -> None:
    async with pool_of(pair_dsn) as pool:
        with frozen(pair.standby):
            writing = asyncio.create_task(by_a_statement(pool, NOBODY))
            [pid] = await waiting_commits(pair, of_writers=True)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            assert await is_waiting(pair, pid)
            assert await seen_by_others(pair, pair_dsn) == set()
        await until(lambda: is_written(pool, 1))


async def test_a_caller_that_is_cancelled_keeps_its_session_when_the_answer_comes_at_once(pair_dsn: str) -> None:
    async with pool_of(pair_dsn) as pool, session(pool) as conn:
        sleeping = asyncio.create_task(conn.execute("SELECT pg_sleep(0.05)"))
        await until(lambda: conn.pgconn.transaction_status == TransactionStatus.ACTIVE, pause_s=0.001)
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        await write(conn, 1)
        assert not conn.closed


async def is_waiting(pair: PostgresPair, pid: int) -> bool:
    return pid in await waiting_commits(pair)


async def is_written(pool: Pool, number: int) -> bool:
    with suppress(LedgerUnavailable):
        return number in await written(pool)
    return False


async def test_a_primary_that_is_cut_off_acknowledges_nothing_and_goes_on_when_the_standby_is_back(
    pair: PostgresPair, pair_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConfirmedConnection, "silence_s", 0.5)
    async with pool_of(pair_dsn, size=2) as pool:
        with frozen(pair.standby):
            with pytest.raises(LedgerUnavailable, match=r"no answer within 0\.5 s"):
                await by_a_statement(pool, NOBODY)
            # From then on nobody waits for long, and no session is given; what piles up in Postgres is bounded.
            for _ in range(20):
                with pytest.raises(LedgerUnavailable, match=r"couldn't get a connection after 0\.05 sec"):
                    await by_a_statement(pool, NOBODY)
            assert await seen_by_others(pair, pair_dsn) == set()
        await until(lambda: is_written(pool, 1))
        await by_a_statement(pool, NOBODY)


# --- which server ---


async def test_a_standby_gives_no_session(pair: PostgresPair, pair_dsn: str) -> None:
    name = name_of(pair_dsn)
    asked = make_conninfo(dsn_of(pair.standby.port, dbname=name), target_session_attrs="any")
    await until(lambda: standby_has(pair, name))
    with pytest.raises(servers.Refused, match="is a standby"):
        await Servers(asked).connect()
    asked = make_conninfo(dsn_of(pair.standby.port, pair.primary.port, dbname=name), target_session_attrs="any")
    async with await Servers(asked).connect() as conn:
        assert conn.info.port == pair.primary.port


def standby_has(pair: PostgresPair, name: str) -> bool:
    """Whether it has replayed that the database was made; what it has for sure is the WAL of it."""
    return (name,) in pair.standby.execute("SELECT datname FROM pg_database")


async def test_another_cluster_is_refused_even_if_it_is_a_ledger_like_this_one(pair_dsn: str, ledger_dsn: str) -> None:
    ours = Servers(pair_dsn)
    async with await ours.connect():
        pass
    another = await ConfirmedConnection.connect(ledger_dsn, autocommit=True)
    with pytest.raises(LedgerMismatch, match="another cluster"):
        await ours.prove(another)
    assert another.closed


async def test_what_was_acknowledged_is_there_after_the_primary_was_killed_and_the_standby_promoted(
    pair: PostgresPair, pair_dsn: str
) -> None:
    acknowledged: set[int] = set()

    async def write_on(pool: Pool, first: int) -> None:
        for number in itertools.count(first, 4):
            with suppress(LedgerUnavailable):
                async with session(pool) as conn:
                    await write(conn, number)
                    acknowledged.add(number)

    async with pool_of(pair_dsn) as pool:
        writers = [asyncio.create_task(write_on(pool, first)) for first in range(4)]
        await until(lambda: len(acknowledged) >= 100)
        await asyncio.to_thread(pair.primary.kill)
        await asyncio.to_thread(pair.promote)
        before = len(acknowledged)
        await until(lambda: len(acknowledged) >= before + 100, deadline_s=WITHIN_S)
        for writer in writers:
            writer.cancel()
        await asyncio.wait(writers)
        assert acknowledged <= await eventually_written(pool)


async def test_a_former_primary_gives_no_session_once_another_is_known(pair: PostgresPair, pair_dsn: str) -> None:
    former, promoted = pair.primary, pair.standby
    name = name_of(pair_dsn)
    async with pool_of(dsn_of(former.port, dbname=name)) as pool:
        await asyncio.to_thread(pair.promote)
        # Whoever knows of no other finds that it commits nothing, and goes on to the next address.
        conn = await Servers(dsn_of(former.port, promoted.port, dbname=name)).connect()
        async with conn:
            assert conn.info.port == promoted.port
        # That another one is there is known now, and no session of before is used, not even for reading.
        former.execute("ALTER SYSTEM RESET synchronous_standby_names")
        former.execute("SELECT pg_reload_conf()")
        with pytest.raises(LedgerUnavailable):
            await written(pool)
        with pytest.raises(servers.Refused, match="is a former primary"):
            await Servers(dsn_of(former.port, dbname=name)).connect()
