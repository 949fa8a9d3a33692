"""Sessions with a ledger that was away for long."""

from __future__ import annotations

import pytest

from ledger import connection
from ledger.connection import ledger_now, ledger_pool, session
from schemas.errors import LedgerUnavailable
from tests.ledger_fixtures import Database
from tests.streams.waiting import until


async def test_a_pool_that_has_given_up_on_the_ledger_has_sessions_once_it_is_back(
    two_ledgers: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case sto-001: away for longer than the pool tries by itself."""
    monkeypatch.setattr(connection, "GIVE_UP_S", 0.1)
    home = two_ledgers[0]
    async with ledger_pool(home.dsn, size=1) as pool:
        async with session(pool) as conn:
            await ledger_now(conn)
        home.go_away()
        with pytest.raises(LedgerUnavailable):
            async with session(pool) as conn:
                await ledger_now(conn)
        await until(lambda: pool.get_stats()["pool_size"] == 0)
        home.come_back()
        async with session(pool) as conn:
            assert await ledger_now(conn)
