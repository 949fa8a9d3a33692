"""A ledger whose partition 3 has an owner."""

from __future__ import annotations

import pytest_asyncio

from ledger.connection import Pool
from tests.ledger.owned_partition import OwnedPartition


@pytest_asyncio.fixture
async def owned(ledger_pool: Pool) -> OwnedPartition:
    return await OwnedPartition.take(ledger_pool)
