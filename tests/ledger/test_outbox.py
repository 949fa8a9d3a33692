"""The outbox: events wait in the order of their rows until they are deleted, and one relay at a time publishes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ledger.connection import Connection, Pool, session
from ledger.fence import api_transaction
from ledger.leases import lease_runs
from ledger.outbox import delete_from_outbox, outbox_lag, read_outbox, try_lock_relay
from schemas.errors import LedgerUnavailable
from tests.ledger.owned_partition import NOW, OwnedPartition


async def test_rows_come_oldest_first_and_no_more_than_asked_for(owned: OwnedPartition) -> None:
    leased = [await owned.leased_run() for _ in range(3)]
    async with session(owned.pool) as conn:
        rows = await read_outbox(conn, 4)
    assert {row.event for row in rows[:2]} == {"job_created", "run_scheduled"}  # one transaction, in no order
    assert rows[2].event == "run_leased"
    assert [row.id for row in rows] == sorted(row.id for row in rows)
    assert rows[2].run_ids == [str(leased[0].run_id)]


async def test_a_field_that_an_event_does_not_have_is_none_and_the_others_are_of_equal_length(
    owned: OwnedPartition,
) -> None:
    await owned.lease(*await owned.runs(5))
    async with session(owned.pool) as conn:
        rows = await read_outbox(conn, 10)
    leased = next(row for row in rows if row.event == "run_leased")
    assert leased.results is None
    assert leased.reasons is None
    lengths = {len(value) for value in leased if isinstance(value, list)}
    assert lengths == {5}


async def test_deleted_rows_are_gone_and_the_others_stay(owned: OwnedPartition) -> None:
    await owned.leased_run()
    async with session(owned.pool) as conn:
        first, *others = await read_outbox(conn, 10)
        await delete_from_outbox(conn, [first.id])
        assert await read_outbox(conn, 10) == others


async def test_a_row_that_is_committed_late_is_read_though_later_ones_are_gone(owned: OwnedPartition) -> None:
    slow, fast = await owned.runs(2)
    async with session(owned.pool) as conn:
        await delete_from_outbox(conn, [row.id for row in await read_outbox(conn, 10)])
        async with api_transaction(owned.pool, [slow]) as open_one:
            await lease_runs(open_one, [owned.ask(slow)], now=NOW)
            await owned.lease(fast)
            [published] = await read_outbox(conn, 10)
            await delete_from_outbox(conn, [published.id])
        [late] = await read_outbox(conn, 10)
    assert late.id < published.id
    assert late.run_ids == [str(slow)]


async def lease_and_raise(owned: OwnedPartition) -> None:
    [run_id] = await owned.runs(1)
    async with api_transaction(owned.pool, [run_id]) as conn:
        await lease_runs(conn, [owned.ask(run_id)], now=NOW)
        raise LedgerUnavailable("the caller gives up")


async def test_a_transaction_that_is_rolled_back_tells_nothing(owned: OwnedPartition) -> None:
    with pytest.raises(LedgerUnavailable):
        await lease_and_raise(owned)
    async with session(owned.pool) as conn:
        assert {row.event for row in await read_outbox(conn, 10)} == {"job_created", "run_scheduled"}


async def test_one_relay_at_a_time_for_as_long_as_its_session_lives(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as standby:
        relay = await ledger_pool.getconn()
        assert await try_lock_relay(relay)
        assert not await try_lock_relay(standby)
        await relay.close()
        await ledger_pool.putconn(relay)
        assert await taken_over(standby)
        await standby.execute("SELECT pg_advisory_unlock_all()")


async def taken_over(conn: Connection) -> bool:
    """The server notices an ended session in its own time."""
    for _ in range(1000):
        if await try_lock_relay(conn):
            return True
        await conn.execute("SELECT pg_sleep(0.005)")
    return False


async def test_the_lag_is_the_age_of_the_oldest_row(owned: OwnedPartition) -> None:
    async with session(owned.pool) as conn:
        assert await outbox_lag(conn) == (0, 0.0)
        await owned.runs(1)
        await conn.execute("UPDATE outbox SET at = now()")
        await conn.execute("UPDATE outbox SET at = at - interval '90 seconds' WHERE event = 'job_created'")
        count, lag_s = await outbox_lag(conn)
    assert count == 2
    assert 90 <= lag_s < 120


async def test_times_may_be_read_as_microseconds(ledger_pool: Pool) -> None:
    at = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
    before_1970 = datetime(1969, 12, 31, tzinfo=UTC)
    async with ledger_pool.connection() as conn:
        for due_at in ([at, before_1970], [at, None], [None, None], []):
            await conn.execute(PUT, {"at": at, "due_at": due_at})
        plain, micros = await read_outbox(conn, 10), await read_outbox(conn, 10, micros=True)
    assert [row.due_at for row in plain] == [[at, before_1970], [at, None], [None, None], []]
    for read, expected in zip(micros, plain, strict=True):
        assert read.at == micros_of(expected.at)
        assert read.due_at == [None if each is None else micros_of(each) for each in expected.due_at or ()]
        assert read.lease_expires_at is None


PUT = """
INSERT INTO outbox (event, at, job_ids, partitions, tenants, queues, lanes, versions, due_at)
VALUES ('job_created', %(at)s, '{}', '{}', '{}', '{}', '{}', '{}', %(due_at)s::timestamptz[])
"""


def micros_of(at: Any) -> int:
    return int((at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
