"""A ledger whose partition 3 has an owner. The tests of this folder share one database, emptied before each of them."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
import pytest_asyncio

from ledger.connection import Pool
from tests.ledger.owned_partition import OwnedPartition
from tests.ledger_fixtures import shared_ledger

EMPTY = """
DELETE FROM runs; DELETE FROM dead_runs; DELETE FROM jobs; DELETE FROM outbox; DELETE FROM applied_commands;
DELETE FROM lease_requests; DELETE FROM tokens; DELETE FROM job_slots; DELETE FROM pauses; DELETE FROM takeovers;
UPDATE partitions SET owner = NULL, consumed_offset = 0, decided_through = now(), token_floor = 0;
"""


@pytest.fixture(scope="session")
def shared_ledger_dsn(postgres_server: str, ledger_template: str) -> Iterator[str]:
    with shared_ledger(postgres_server, ledger_template, "ledger_of_ledger_tests") as dsn:
        yield dsn


@pytest.fixture
def ledger_dsn(shared_ledger_dsn: str) -> str:
    """In place of the database of its own that a test elsewhere has: making one takes longer than most tests here."""
    with psycopg.connect(shared_ledger_dsn, autocommit=True) as conn:
        conn.execute(EMPTY)
    return shared_ledger_dsn


@pytest_asyncio.fixture
async def owned(ledger_pool: Pool) -> OwnedPartition:
    return await OwnedPartition.take(ledger_pool)
