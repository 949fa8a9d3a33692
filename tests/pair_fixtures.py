"""A Postgres with a synchronous standby, for tests that part the two."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from connectors.stack import PostgresPair, PostgresServer, default_cache_dir
from ledger.connection import Connection, Pool, ledger_pool, session
from ledger.migrations import migrate
from ledger.shard_map import init_alone
from tests.ledger_fixtures import PARTITIONS
from tests.streams.waiting import until

TEMPLATE = "ledger_template"
EMPTY_TEMPLATE = "empty_ledger_template"


@pytest.fixture(scope="session")
def started_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresPair]:
    pair = PostgresPair(tmp_path_factory.mktemp("pair"), default_cache_dir(), say=print)
    try:
        pair.start()
        pair.primary.execute(f"CREATE DATABASE {EMPTY_TEMPLATE}")
        migrate(make_conninfo(pair.dsn, dbname=EMPTY_TEMPLATE))
        pair.primary.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE {EMPTY_TEMPLATE} STRATEGY wal_log")
        asyncio.run(_init(make_conninfo(pair.dsn, dbname=TEMPLATE)))
        yield pair
    finally:
        for server in pair.servers:
            thaw(server)
            server.stop()


async def _init(dsn: str) -> None:
    async with pool_of(dsn) as pool, session(pool) as conn:
        await init_alone(conn, PARTITIONS)
        await conn.execute("CREATE TABLE probe (number int PRIMARY KEY)")


@pytest.fixture
def pair(started_pair: PostgresPair) -> PostgresPair:
    """Both run, whatever the test before did to them. After a failover the standby is made anew, within seconds."""
    for server in started_pair.servers:
        thaw(server)
    started_pair.start()
    return started_pair


@pytest.fixture
def pair_dsn(pair: PostgresPair) -> Iterator[str]:
    """A ledger of this test alone."""
    with _copy_of(TEMPLATE, pair) as dsn:
        yield dsn


@pytest.fixture
def empty_pair_dsn(pair: PostgresPair) -> Iterator[str]:
    """A migrated ledger of this test alone, not initialised yet."""
    with _copy_of(EMPTY_TEMPLATE, pair) as dsn:
        yield dsn


@contextmanager
def _copy_of(template: str, pair: PostgresPair) -> Iterator[str]:
    name = f"ledger_{uuid4().hex[:12]}"
    pair.primary.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY wal_log")
    yield make_conninfo(pair.dsn, dbname=name)
    pair.primary.execute(f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def pool_of(dsn: str, size: int = 4) -> AsyncIterator[Pool]:
    async with ledger_pool(dsn, size=size) as pool:
        async with pool.connection(timeout=30):
            pass
        yield pool


def thaw(server: PostgresServer) -> None:
    _signal(server, signal.SIGCONT)


@contextmanager
def frozen(server: PostgresServer) -> Iterator[None]:
    _signal(server, signal.SIGSTOP)
    try:
        yield
    finally:
        thaw(server)


def _signal(server: PostgresServer, number: int) -> None:
    process = server.part.process
    for member in process.tree() if process else ():
        member.send(number)


async def waiting_commits(pair: PostgresPair, *, of_writers: bool = False) -> list[int]:
    """The sessions whose commit waits for the standby, once there are any.

    of_writers: not those that prove their server, as a pool has them do whenever it opens another session.
    """
    found: list[int] = []
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    if of_writers:
        waiting += " AND query NOT LIKE '%pg_control_system%'"

    async def are_there() -> bool:
        found[:] = [pid for (pid,) in await asyncio.to_thread(pair.primary.execute, waiting)]
        return bool(found)

    await until(are_there)
    return found


async def write(conn: Connection, number: int) -> None:
    await conn.execute("INSERT INTO probe VALUES (%s) ON CONFLICT DO NOTHING", (number,))


async def written(pool: Pool) -> set[int]:
    async with session(pool) as conn:
        return {number for (number,) in await (await conn.execute("TABLE probe")).fetchall()}
