"""A ledger of its own for each test: migrated once a session into a template, then copied."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio
from psycopg.conninfo import make_conninfo

from ledger.connection import Pool, session
from ledger.connection import ledger_pool as open_ledger_pool
from ledger.migrations import migrate
from ledger.partitions import init_partitions

PARTITIONS = 16
PATIENCE_S = 30.0  # of callers who wait for a command to be applied, which a busy machine may take its time over


@pytest.fixture(scope="session")
def ledger_template(postgres_server: str) -> Iterator[str]:
    """The name of a database that holds a migrated, empty ledger."""
    name = f"ledger_template_{os.getpid()}"
    _execute(postgres_server, f"CREATE DATABASE {name}")
    migrate(make_conninfo(postgres_server, dbname=name))
    yield name
    _execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty_ledger_dsn(postgres_server: str, ledger_template: str) -> Iterator[str]:
    """A migrated ledger of this test alone, not initialised yet."""
    name = f"ledger_{uuid4().hex[:12]}"
    # WAL_LOG spares the two checkpoints of FILE_COPY, which wait for every other test's writes.
    _execute(postgres_server, f"CREATE DATABASE {name} TEMPLATE {ledger_template} STRATEGY wal_log")
    yield make_conninfo(postgres_server, dbname=name)
    _execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest_asyncio.fixture
async def ledger_dsn(empty_ledger_dsn: str) -> str:
    """A ledger of this test alone, initialised with 16 partitions."""
    async with await psycopg.AsyncConnection.connect(empty_ledger_dsn, autocommit=True) as conn:
        await init_partitions(conn, PARTITIONS)
    return empty_ledger_dsn


@pytest_asyncio.fixture
async def ledger_pool(ledger_dsn: str) -> AsyncIterator[Pool]:
    """Sessions with `ledger_dsn`, set up as the product's are."""
    async with open_ledger_pool(ledger_dsn, size=8) as pool:
        async with session(pool):
            pass  # the first connection is there before the test starts
        yield pool


@contextmanager
def shared_ledger(server: str, template: str, name: str) -> Iterator[str]:
    """A ledger for many tests, initialised with 16 partitions: making one takes longer than most tests do.

    Whoever uses it empties it before each test, see `empty_ledger`.
    """
    dsn = make_conninfo(server, dbname=name)
    _execute(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY wal_log")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("INSERT INTO settings VALUES ('partitions', %s)", (str(PARTITIONS),))
        conn.execute("INSERT INTO partitions (partition) SELECT generate_series(0, %s - 1)", (PARTITIONS,))
    yield dsn
    _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


_LASTING = ("settings", "partitions", "schema_migrations")


def empty_ledger(dsn: str) -> None:
    """As it was after its initialisation, but for the epochs, which only grow."""
    with psycopg.connect(dsn) as conn:
        tables = conn.execute(
            "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' AND tablename <> ALL (%s)",
            (list(_LASTING),),
        ).fetchall()
        for (table,) in tables:
            conn.execute(f"DELETE FROM {table}")  # names of ours, no input; TRUNCATE would be slower
        conn.execute(
            "UPDATE partitions SET owner = NULL, consumed_offset = 0, decided_through = now(), token_floor = 0"
        )


def _execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(statement)  # names of ours, no input
