"""An empty ledger for each test: one that a session's tests share, and copies of a template for who needs its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ledger.connection import Pool, session
from ledger.connection import ledger_pool as open_ledger_pool
from ledger.migrations import migrate
from ledger.shard_map import init_alone, init_shard, spread
from ledger.shards import Shards

PARTITIONS = 16
IDLE_S = 0.02  # of threads that hear of Kafka: with the product's own half second each test's end would wait for them
PATIENCE_S = 30.0  # of callers who wait for a command to be applied, which a busy machine may take its time over


@pytest.fixture(scope="session")
def ledger_template(postgres_server: str) -> Iterator[str]:
    """The name of a database that holds a migrated, empty ledger."""
    name = f"ledger_template_{os.getpid()}"
    _execute(postgres_server, f"CREATE DATABASE {name}")
    migrate(make_conninfo(postgres_server, dbname=name))
    yield name
    _execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def fresh_ledger(server: str, template: str) -> Iterator[str]:
    """A migrated ledger, not initialised yet."""
    name = f"ledger_{uuid4().hex[:12]}"
    # WAL_LOG spares the two checkpoints of FILE_COPY, which wait for every other test's writes.
    _execute(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY wal_log")
    yield make_conninfo(server, dbname=name)
    _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty_ledger_dsn(postgres_server: str, ledger_template: str) -> Iterator[str]:
    """A migrated ledger of this test alone, not initialised yet."""
    with fresh_ledger(postgres_server, ledger_template) as dsn:
        yield dsn


@pytest.fixture
def another_ledger_dsn(postgres_server: str, ledger_template: str) -> Iterator[str]:
    """Another one."""
    with fresh_ledger(postgres_server, ledger_template) as dsn:
        yield dsn


class Database(NamedTuple):
    """A database that can be away, on a server that is there."""

    server: str
    dsn: str

    def go_away(self) -> None:
        """End every session and give none."""
        _execute(self.server, f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS false")
        _execute(self.server, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self._name}'")

    def come_back(self) -> None:
        _execute(self.server, f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS true")

    @property
    def _name(self) -> str:
        return str(conninfo_to_dict(self.dsn)["dbname"])


@pytest_asyncio.fixture
async def two_ledgers(postgres_server: str, empty_ledger_dsn: str, another_ledger_dsn: str) -> list[Database]:
    """Home and shard 1 of one ledger with 16 partitions: shard 1 has the odd ones."""
    dsns = [empty_ledger_dsn, another_ledger_dsn]
    found = spread(PARTITIONS, dsns[1:])
    for shard in (1, 0):
        async with await psycopg.AsyncConnection.connect(dsns[shard], autocommit=True) as conn:
            await init_shard(conn, found, shard)
    return [Database(postgres_server, dsn) for dsn in dsns]


@pytest.fixture(scope="session")
def shared_ledger(postgres_server: str, ledger_template: str) -> Iterator[str]:
    """A ledger with 16 partitions for many tests: making one takes longer than most tests do."""
    with fresh_ledger(postgres_server, ledger_template) as dsn:
        asyncio.run(_init_alone(dsn))
        yield dsn


async def _init_alone(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await init_alone(conn, PARTITIONS)


@pytest.fixture
def ledger_dsn(shared_ledger: str) -> str:
    """A ledger with 16 partitions and nothing else. Only their epochs tell of those who owned them before."""
    empty_ledger(shared_ledger)
    return shared_ledger


@pytest_asyncio.fixture
async def ledger_pool(ledger_dsn: str) -> AsyncIterator[Pool]:
    """Sessions with `ledger_dsn`, set up as the product's are."""
    async with open_ledger_pool(ledger_dsn, size=8) as pool:
        async with session(pool):
            pass  # the first connection is there before the test starts
        yield pool


@pytest.fixture
def shards(ledger_pool: Pool) -> Shards:
    """The same, as the one shard there is."""
    return Shards.alone(ledger_pool, PARTITIONS)


async def all_back(shards: Shards) -> None:
    """Return once every shard gives sessions again, and none that is broken."""
    for pool in shards.pools.values():
        await pool.check()
        async with pool.connection(timeout=20):
            pass


_LASTING = ("settings", "partitions", "shards", "placements", "schema_migrations")


def empty_ledger(dsn: str) -> None:
    """As it was after its initialisation, but for the epochs."""
    with psycopg.connect(dsn) as conn:
        tables = conn.execute(
            "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' AND tablename <> ALL (%s)",
            (list(_LASTING),),
        ).fetchall()
        for (table,) in tables:
            conn.execute(f"DELETE FROM {table}")  # names of ours, no input; TRUNCATE would be slower
        conn.execute("DELETE FROM settings WHERE key NOT IN ('partitions', 'shard')")
        conn.execute(
            "UPDATE partitions SET owner = NULL, consumed_offset = 0, decided_through = now(), token_floor = 0"
        )


def _execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(statement)  # names of ours, no input
