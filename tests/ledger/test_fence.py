"""The fence: once a partition has a new epoch, nothing under the old one is ever committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest
import pytest_asyncio

from ledger.connection import Connection, Pool, ledger_errors, ledger_now, session
from ledger.connection import ledger_pool as open_ledger_pool
from ledger.fence import (
    Fence,
    api_transaction,
    owner_transaction,
    owners_transaction,
    release_partition,
    say_decided,
    take_over,
)
from ledger.leases import lease_runs
from ledger.partitions import advance_offset, list_partitions, reset_offsets
from schemas.errors import EpochLost, InvariantBroken, LedgerMismatch, LedgerUnavailable
from schemas.ids import run_id_for
from tests.ledger.owned_partition import NOW, OwnedPartition, until_someone_waits_for_a_lock
from tests.ledger_fixtures import PARTITIONS


def run_on(partition: int) -> UUID:
    return run_id_for(uuid4(), NOW, partition)


@pytest_asyncio.fixture
async def witness(ledger_pool: Pool) -> AsyncIterator[Connection]:
    """A session beside all others, which holds nothing."""
    async with session(ledger_pool) as conn:
        yield conn


async def test_every_takeover_is_a_new_epoch_and_tells_where_the_last_owner_stopped(ledger_pool: Pool) -> None:
    first = await take_over(ledger_pool, 5, "owner-1")
    decided = datetime(2100, 1, 1, tzinfo=UTC)
    async with owner_transaction(ledger_pool, first.fence) as tx:
        await advance_offset(tx, 42)
    await say_decided(ledger_pool, {first.fence: decided})
    second = await take_over(ledger_pool, 5, "owner-2")
    assert second.fence == Fence(5, first.fence.epoch + 1, "owner-2")
    assert (second.previous_owner, second.consumed_offset, second.decided_through) == ("owner-1", 42, decided)


async def test_an_owner_transaction_knows_its_offset_and_instant(ledger_pool: Pool) -> None:
    fence = (await take_over(ledger_pool, 5, "owner-1")).fence
    async with owner_transaction(ledger_pool, fence) as tx:
        await advance_offset(tx, 7)
    async with owner_transaction(ledger_pool, fence) as tx:
        assert tx.consumed_offset == 7
        assert abs((await ledger_now(tx.conn) - tx.now).total_seconds()) < 10


async def test_a_takeover_waits_for_an_open_owner_transaction(ledger_pool: Pool, witness: Connection) -> None:
    fence = (await take_over(ledger_pool, 5, "owner-1")).fence
    async with owner_transaction(ledger_pool, fence) as tx:
        takeover = asyncio.create_task(take_over(ledger_pool, 5, "owner-2"))
        await until_someone_waits_for_a_lock(witness)
        await advance_offset(tx, 9)
        assert not takeover.done()
    assert (await takeover).consumed_offset == 9


async def test_a_takeover_waits_for_an_open_api_transaction(ledger_pool: Pool, witness: Connection) -> None:
    async with api_transaction(ledger_pool, [run_on(4), run_on(5)]):
        takeover = asyncio.create_task(take_over(ledger_pool, 5, "owner-2"))
        await until_someone_waits_for_a_lock(witness)
        assert not takeover.done()
    await takeover


async def test_a_takeover_waits_for_no_transaction_of_another_partition(ledger_pool: Pool) -> None:
    fence = (await take_over(ledger_pool, 4, "owner-1")).fence
    async with owner_transaction(ledger_pool, fence), api_transaction(ledger_pool, [run_on(6)]):
        await take_over(ledger_pool, 5, "owner-2")


async def test_owners_and_the_api_do_not_wait_for_each_other(ledger_pool: Pool) -> None:
    fence = (await take_over(ledger_pool, 5, "owner-1")).fence
    async with (
        owner_transaction(ledger_pool, fence),
        owner_transaction(ledger_pool, fence),
        api_transaction(ledger_pool, [run_on(5)]),
    ):
        pass


async def test_a_writer_that_comes_while_a_takeover_is_under_way_sees_the_new_epoch(
    ledger_pool: Pool, witness: Connection
) -> None:
    """The writer's lock waits for the takeover, and what it reads then must be what the takeover wrote."""
    fence = (await take_over(ledger_pool, 5, "owner-1")).fence
    async with session(ledger_pool) as other, other.transaction():
        await other.execute("SELECT * FROM take_over(5, 'owner-2')")

        async def write() -> None:
            async with owner_transaction(ledger_pool, fence) as tx:
                await advance_offset(tx, 666)

        writer = asyncio.create_task(write())
        await until_someone_waits_for_a_lock(witness)
    with pytest.raises(EpochLost):
        await writer


@pytest.mark.parametrize(
    "changed",
    [
        lambda fence: Fence(fence.partition, fence.epoch - 1, fence.owner),
        lambda fence: Fence(fence.partition, fence.epoch + 1, fence.owner),
        lambda fence: Fence(fence.partition, fence.epoch, "somebody else"),
        lambda fence: Fence(PARTITIONS, fence.epoch, fence.owner),
    ],
    ids=["an older epoch", "an epoch to come", "another owner", "a partition that is not here"],
)
async def test_an_owner_transaction_needs_the_current_epoch_and_owner(
    ledger_pool: Pool, changed: Callable[[Fence], Fence]
) -> None:
    fence = (await take_over(ledger_pool, 5, "owner-1")).fence
    with pytest.raises(EpochLost) as lost:
        async with owner_transaction(ledger_pool, changed(fence)):
            pytest.fail("a body that must not run")
    assert lost.value.partition == changed(fence).partition


async def test_a_lost_epoch_writes_nothing(owned: OwnedPartition) -> None:
    await take_over(owned.pool, owned.fence.partition, "owner-2")
    with pytest.raises(EpochLost):
        await owned.create(owned.new_job())
    assert await owned.told() == {}
    async with session(owned.pool) as conn:
        assert await (await conn.execute("SELECT 1 FROM jobs")).fetchall() == []


async def test_a_partition_that_is_not_on_this_shard_stops_a_pipelined_api_transaction(owned: OwnedPartition) -> None:
    [run_id] = await owned.runs(1)
    told = await owned.told()
    stray = run_on(PARTITIONS + 1)
    with pytest.raises(EpochLost):
        async with api_transaction(owned.pool, [run_id, stray]) as conn:
            await lease_runs(conn, [owned.ask(run_id)], now=NOW)
    with pytest.raises(EpochLost):
        async with api_transaction(owned.pool, [run_id, stray]) as conn:
            await conn.execute("UPDATE runs SET due_at = due_at + interval '1 day'")  # its answer is never asked for
    run = await owned.run(run_id)
    assert run is not None
    assert (run.state, run.due_at) == ("pending", NOW)
    assert await owned.told() == told


async def test_an_api_transaction_whose_caller_fails_or_is_cancelled_writes_nothing(owned: OwnedPartition) -> None:
    [run_id] = await owned.runs(1)

    async def fail(failure: type[BaseException]) -> None:
        async with api_transaction(owned.pool, [run_id]) as conn:
            assert await lease_runs(conn, [owned.ask(run_id)], now=NOW)
            await conn.execute("UPDATE runs SET due_at = due_at + interval '1 day'")
            raise failure

    for failure in (KeyError, asyncio.CancelledError):
        with pytest.raises(failure):
            await fail(failure)
        run = await owned.run(run_id)
        assert run is not None
        assert (run.state, run.due_at) == ("pending", NOW)
    assert len(await owned.lease(run_id)) == 1


async def test_the_pool_goes_on_after_a_pipelined_transaction_failed(owned: OwnedPartition) -> None:
    for _ in range(20):
        with pytest.raises(EpochLost):
            async with api_transaction(owned.pool, [run_on(PARTITIONS)]) as conn:
                await lease_runs(conn, [])
    [run_id] = await owned.runs(1)
    assert len(await owned.lease(run_id)) == 1


async def test_a_transaction_of_several_owners_commits_under_all_their_fences_or_not_at_all(ledger_pool: Pool) -> None:
    fences = [(await take_over(ledger_pool, partition, "owner-1")).fence for partition in (9, 2, 4)]
    async with owners_transaction(ledger_pool, fences) as tx:
        assert abs((await ledger_now(tx.conn) - tx.now).total_seconds()) < 10
    await take_over(ledger_pool, 4, "owner-2")
    with pytest.raises(EpochLost):
        async with owners_transaction(ledger_pool, fences):
            pytest.fail("one of the epochs is over")
    async with owners_transaction(ledger_pool, [fence for fence in fences if fence.partition != 4]):
        pass


@pytest.mark.parametrize("partition", [2, 4, 9])
async def test_a_takeover_waits_for_an_open_transaction_of_several_owners(
    ledger_pool: Pool, witness: Connection, partition: int
) -> None:
    fences = [(await take_over(ledger_pool, each, "owner-1")).fence for each in (9, 2, 4)]
    async with owners_transaction(ledger_pool, fences):
        takeover = asyncio.create_task(take_over(ledger_pool, partition, "owner-2"))
        await until_someone_waits_for_a_lock(witness)
        assert not takeover.done()
    assert (await takeover).previous_owner == "owner-1"


async def test_a_release_leaves_the_partition_without_an_owner(owned: OwnedPartition) -> None:
    await release_partition(owned.pool, owned.fence)
    async with session(owned.pool) as conn:
        assert (await list_partitions(conn))[owned.fence.partition].owner is None
    with pytest.raises(EpochLost):
        async with owner_transaction(owned.pool, owned.fence):
            pytest.fail("a released partition is nobody's")


async def test_a_late_release_does_not_take_the_partition_from_its_next_owner(owned: OwnedPartition) -> None:
    successor = await take_over(owned.pool, owned.fence.partition, "owner-2")
    await release_partition(owned.pool, owned.fence)
    async with owner_transaction(owned.pool, successor.fence):
        pass


async def test_a_partition_that_the_ledger_does_not_have_cannot_be_taken_over(ledger_pool: Pool) -> None:
    with pytest.raises(LedgerMismatch):
        await take_over(ledger_pool, PARTITIONS, "owner-1")


async def test_resetting_the_offsets_ends_every_epoch_that_had_read_the_older_topic(
    ledger_pool: Pool, witness: Connection
) -> None:
    had_read, had_not = (await take_over(ledger_pool, 5, "a")).fence, (await take_over(ledger_pool, 6, "a")).fence
    async with owner_transaction(ledger_pool, had_read) as tx:
        await advance_offset(tx, 3)
    async with owner_transaction(ledger_pool, had_read):
        reset = asyncio.create_task(reset_in_a_session(ledger_pool))
        await until_someone_waits_for_a_lock(witness)
        assert not reset.done()
    assert await reset == 1
    with pytest.raises(EpochLost):
        async with owner_transaction(ledger_pool, had_read):
            pytest.fail("the epoch has ended")
    async with owner_transaction(ledger_pool, had_not):
        pass


async def reset_in_a_session(pool: Pool) -> int:
    async with session(pool) as conn:
        return await reset_offsets(conn, range(PARTITIONS))


TAKEOVERS, WRITERS = 60, 6


async def test_no_row_of_an_old_epoch_is_committed_after_a_takeover(ledger_pool: Pool) -> None:
    """A takeover returns; every row that becomes visible from then on carries the new epoch or a later one.

    A third of the writers are owners, who go on with the newest fence they know of, and a third owners of two
    partitions at once; the others write as the API does, under the epoch that they read in their transaction.
    """
    partition, stop = 5, asyncio.Event()
    known = [(await take_over(ledger_pool, partition, "owner-0")).fence]
    beside = (await take_over(ledger_pool, partition + 1, "owner-0")).fence
    written = {"owner": 0, "owners": 0, "api": 0, "lost": 0}
    async with session(ledger_pool) as conn:
        await conn.execute("DROP TABLE IF EXISTS probe")
        await conn.execute("CREATE TABLE probe (epoch bigint NOT NULL)")

    async def write_as_owner() -> None:
        while not stop.is_set():
            try:
                async with owner_transaction(ledger_pool, known[-1]) as tx:
                    await tx.conn.execute("INSERT INTO probe VALUES (%s)", (tx.fence.epoch,))
                written["owner"] += 1
            except EpochLost:
                written["lost"] += 1

    async def write_as_owners() -> None:
        while not stop.is_set():
            fence = known[-1]
            try:
                async with owners_transaction(ledger_pool, [beside, fence]) as tx:
                    await tx.conn.execute("INSERT INTO probe VALUES (%s)", (fence.epoch,))
                written["owners"] += 1
            except EpochLost:
                written["lost"] += 1

    async def write_as_api() -> None:
        write = "INSERT INTO probe SELECT epoch FROM partitions WHERE partition = %s"
        while not stop.is_set():
            async with api_transaction(ledger_pool, [run_on(partition)]) as conn:
                await conn.execute(write, (partition,))
            written["api"] += 1

    writers = [asyncio.create_task((write_as_owner, write_as_owners, write_as_api)[n % 3]()) for n in range(WRITERS)]
    try:
        for n in range(1, TAKEOVERS + 1):
            fence = (await take_over(ledger_pool, partition, f"owner-{n}")).fence
            before = await rows_of_older_epochs(ledger_pool, fence.epoch)
            known.append(fence)
            await asyncio.sleep(0.01)  # time for a row of an old epoch to slip in, if one can
            assert await rows_of_older_epochs(ledger_pool, fence.epoch) == before
    finally:
        stop.set()
        await asyncio.gather(*writers)
        async with session(ledger_pool) as conn:
            await conn.execute("DROP TABLE probe")
    assert written["owner"] > TAKEOVERS
    assert written["owners"] > TAKEOVERS
    assert written["api"] > TAKEOVERS


async def rows_of_older_epochs(pool: Pool, epoch: int) -> int:
    async with session(pool) as conn:
        row = await (await conn.execute("SELECT count(*) FROM probe WHERE epoch < %s", (epoch,))).fetchone()
    assert row is not None
    count: int = row[0]
    return count


@asynccontextmanager
async def small_pool(dsn: str) -> AsyncIterator[Pool]:
    async with open_ledger_pool(dsn, size=1) as pool:
        async with session(pool):
            pass
        yield pool


async def terminate(dsn: str, conn: Connection) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other:
        await other.execute("SELECT pg_terminate_backend(%s, 5000)", (conn.info.backend_pid,))


async def advance_and_lose_the_session(pool: Pool, fence: Fence, dsn: str, *, then_write: bool) -> None:
    async with owner_transaction(pool, fence) as tx:
        await advance_offset(tx, 11)
        await terminate(dsn, tx.conn)
        if then_write:
            await advance_offset(tx, 12)


@pytest.mark.parametrize("then_write", [True, False], ids=["before a statement", "before the commit"])
async def test_a_session_that_ends_inside_a_transaction_is_ledger_unavailable_and_the_pool_recovers(
    ledger_dsn: str, then_write: bool
) -> None:
    async with small_pool(ledger_dsn) as pool:
        fence = (await take_over(pool, 5, "owner-1")).fence
        with pytest.raises(LedgerUnavailable):
            await advance_and_lose_the_session(pool, fence, ledger_dsn, then_write=then_write)
        async with owner_transaction(pool, fence) as tx:
            assert tx.consumed_offset == 0


async def lease_and_lose_the_session(pool: Pool, dsn: str) -> None:
    async with api_transaction(pool, [run_on(5)]) as conn:
        await terminate(dsn, conn)
        await lease_runs(conn, [])


async def test_a_session_that_ends_inside_a_pipelined_api_transaction_is_ledger_unavailable(ledger_dsn: str) -> None:
    async with small_pool(ledger_dsn) as pool:
        with pytest.raises(LedgerUnavailable):
            await lease_and_lose_the_session(pool, ledger_dsn)
        async with api_transaction(pool, [run_on(5)]) as conn:
            assert await lease_runs(conn, []) == []


async def be_stuck(pool: Pool, fence: Fence, meanwhile: Awaitable[object]) -> None:
    async with owner_transaction(pool, fence) as tx:
        await tx.conn.execute("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
        await meanwhile
        await advance_offset(tx, 1)


async def test_a_stuck_holder_of_the_fence_is_ended_so_that_it_cannot_block_a_takeover(ledger_pool: Pool) -> None:
    fence = (await take_over(ledger_pool, 5, "owner-1")).fence
    with pytest.raises(LedgerUnavailable):
        await be_stuck(ledger_pool, fence, take_over(ledger_pool, 5, "owner-2"))


async def test_every_session_bounds_its_transactions(ledger_pool: Pool) -> None:
    async with session(ledger_pool) as conn:
        for setting in ("transaction_timeout", "idle_in_transaction_session_timeout"):
            row = await (await conn.execute(f"SHOW {setting}")).fetchone()
            assert row == ("10s",)


async def test_a_row_that_contradicts_itself_is_a_broken_invariant(owned: OwnedPartition) -> None:
    [run_id] = await owned.runs(1)
    with pytest.raises(InvariantBroken):
        async with api_transaction(owned.pool, [run_id]) as conn:
            await (await conn.execute("UPDATE runs SET worker_id = 'w' RETURNING 1")).fetchall()


async def test_a_mistake_in_a_statement_goes_on_as_it_is() -> None:
    mistake = psycopg.errors.UndefinedColumn("no such column")
    with pytest.raises(psycopg.errors.UndefinedColumn) as raised, ledger_errors():
        raise mistake
    assert raised.value is mistake
    assert raised.value.__cause__ is None


async def test_a_ledger_that_is_away_is_ledger_unavailable() -> None:
    async with open_ledger_pool("host=127.0.0.1 port=1 connect_timeout=1", size=1) as pool:
        pool.timeout = 0.2
        with pytest.raises(LedgerUnavailable):
            await take_over(pool, 5, "owner-1")
