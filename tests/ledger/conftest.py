"""A ledger whose partition 3 has an owner. The tests of this folder share one database, emptied before each of them."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
import pytest_asyncio
from psycopg.conninfo import make_conninfo

from ledger.connection import Pool
from tests.ledger.owned_partition import OwnedPartition
from tests.ledger_fixtures import PARTITIONS

SHARED = "ledger_of_ledger_tests"
EMPTY = """
DELETE FROM runs; DELETE FROM dead_runs; DELETE FROM jobs; DELETE FROM outbox; DELETE FROM applied_commands;
DELETE FROM lease_requests; DELETE FROM tokens; DELETE FROM job_slots; DELETE FROM pauses; DELETE FROM takeovers;
UPDATE partitions SET owner = NULL, consumed_offset = 0, decided_through = now(), token_floor = 0;
"""


@pytest.fixture(scope="session")
def shared_ledger_dsn(postgres_server: str, ledger_template: str) -> Iterator[str]:
    dsn = make_conninfo(postgres_server, dbname=SHARED)
    with psycopg.connect(postgres_server, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {SHARED} TEMPLATE {ledger_template}")
        with psycopg.connect(dsn, autocommit=True) as inside:
            inside.execute("INSERT INTO settings VALUES ('partitions', %s)", (str(PARTITIONS),))
            inside.execute("INSERT INTO partitions (partition) SELECT generate_series(0, %s - 1)", (PARTITIONS,))
        yield dsn
        conn.execute(f"DROP DATABASE {SHARED} WITH (FORCE)")


@pytest.fixture
def ledger_dsn(shared_ledger_dsn: str) -> str:
    """In place of the database of its own that a test elsewhere has: making one takes longer than most tests here."""
    with psycopg.connect(shared_ledger_dsn, autocommit=True) as conn:
        conn.execute(EMPTY)
    return shared_ledger_dsn


@pytest_asyncio.fixture
async def owned(ledger_pool: Pool) -> OwnedPartition:
    return await OwnedPartition.take(ledger_pool)
