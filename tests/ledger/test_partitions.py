"""The partitions of a ledger: how many there are is decided once, for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import psycopg
import pytest

from ledger.connection import Pool, session
from ledger.fence import Fence, owner_transaction, release_partition, say_decided, take_over
from ledger.partitions import (
    advance_offset,
    forget_takeovers,
    is_told_since,
    leave_untold,
    list_partitions,
    list_takeovers,
    owners_keep_up,
    partition_count,
    reset_offsets,
)
from ledger.restoration import declare_restored
from ledger.shard_map import init_alone
from schemas.errors import LedgerMismatch
from schemas.ids import MAX_PARTITIONS
from tests.ledger.owned_partition import NOW
from tests.ledger_fixtures import PARTITIONS


async def test_a_ledger_that_was_never_initialised_says_how_to(empty_ledger_dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(empty_ledger_dsn, autocommit=True) as conn:
        with pytest.raises(LedgerMismatch, match="fencepostd init"):
            await partition_count(conn)
        await init_alone(conn, MAX_PARTITIONS)
        assert await partition_count(conn) == MAX_PARTITIONS
        assert [status.partition for status in await list_partitions(conn)] == list(range(MAX_PARTITIONS))


async def test_initialising_again_with_the_same_number_changes_nothing(ledger_pool: Pool) -> None:
    await take_over(ledger_pool, 2, "owner-1")
    async with session(ledger_pool) as conn:
        before = await list_partitions(conn)
        await init_alone(conn, PARTITIONS)
        assert await list_partitions(conn) == before


@pytest.mark.parametrize("count", [PARTITIONS - 1, PARTITIONS + 1, 0, -1, MAX_PARTITIONS + 1])
async def test_another_number_of_partitions_is_refused(ledger_pool: Pool, count: int) -> None:
    async with session(ledger_pool) as conn:
        with pytest.raises(LedgerMismatch, match="partitions"):
            await init_alone(conn, count)
        assert len(await list_partitions(conn)) == PARTITIONS


FAR = NOW + timedelta(days=10_000)


async def decided(pool: Pool) -> list[datetime]:
    """Of every partition."""
    async with session(pool) as conn:
        return [status.decided_through for status in await list_partitions(conn)]


async def test_what_is_decided_is_said_of_many_partitions_at_once_and_only_grows(ledger_pool: Pool) -> None:
    before = await decided(ledger_pool)
    fences = [(await take_over(ledger_pool, partition, "owner-1")).fence for partition in (9, 2, 4)]
    told = {fence: FAR + timedelta(seconds=fence.partition) for fence in fences}
    assert await say_decided(ledger_pool, told) == {2, 4, 9}
    assert await say_decided(ledger_pool, dict.fromkeys(fences, FAR)) == set()
    expected = {fence.partition: through for fence, through in told.items()}
    assert await decided(ledger_pool) == [expected.get(n, known) for n, known in enumerate(before)]


@pytest.mark.parametrize(
    "changed",
    [
        lambda fence: Fence(fence.partition, fence.epoch - 1, fence.owner),
        lambda fence: Fence(fence.partition, fence.epoch + 1, fence.owner),
        lambda fence: Fence(fence.partition, fence.epoch, "somebody else"),
    ],
    ids=["an older epoch", "an epoch to come", "another owner"],
)
async def test_each_partition_s_word_of_what_is_decided_needs_its_own_epoch_and_owner(
    ledger_pool: Pool, changed: Callable[[Fence], Fence]
) -> None:
    before = await decided(ledger_pool)
    lost, kept = [(await take_over(ledger_pool, partition, "owner-1")).fence for partition in (2, 4)]
    assert await say_decided(ledger_pool, {changed(lost): FAR, kept: FAR}) == {4}
    assert await decided(ledger_pool) == [FAR if n == 4 else known for n, known in enumerate(before)]


async def test_what_is_decided_waits_for_no_transaction_of_a_partition(ledger_pool: Pool) -> None:
    """Neither for one that writes to the row nor for a takeover; what was left out is written the next time."""
    busy, lost, free = [(await take_over(ledger_pool, partition, "owner-1")).fence for partition in (2, 3, 4)]
    async with owner_transaction(ledger_pool, busy) as tx, session(ledger_pool) as other, other.transaction():
        await advance_offset(tx, 9)
        await other.execute("SELECT * FROM take_over(3, 'owner-2')")
        async with asyncio.timeout(20):
            assert await say_decided(ledger_pool, dict.fromkeys((busy, lost, free), FAR)) == {4}
    assert await say_decided(ledger_pool, {busy: FAR, lost: FAR}) == {2}


async def test_a_takeover_and_a_word_of_what_is_decided_come_one_after_the_other(ledger_pool: Pool) -> None:
    """What an owner has said is what its successor is told, and nothing of it comes later."""
    fences = [(await take_over(ledger_pool, partition, "owner-1")).fence for partition in range(PARTITIONS)]
    taking = [take_over(ledger_pool, fence.partition, "owner-2") for fence in fences]
    saying = [say_decided(ledger_pool, dict.fromkeys(fences, FAR)) for _ in range(4)]
    takeovers, _ = await asyncio.gather(asyncio.gather(*taking), asyncio.gather(*saying))
    assert [takeover.decided_through for takeover in takeovers] == await decided(ledger_pool)


async def all_said(pool: Pool, through: datetime) -> list[Fence]:
    """Every partition has an owner, whose occurrences are decided up to then."""
    fences = [(await take_over(pool, partition, "owner-1")).fence for partition in range(PARTITIONS)]
    await say_decided(pool, dict.fromkeys(fences, through))
    return fences


async def keep_up(pool: Pool, now: datetime) -> bool:
    async with session(pool) as conn:
        return await owners_keep_up(conn, 8.0, now=now)


async def test_owners_keep_up_for_some_seconds_after_their_last_word(ledger_pool: Pool) -> None:
    await all_said(ledger_pool, FAR)
    assert await keep_up(ledger_pool, FAR + timedelta(seconds=7))
    assert not await keep_up(ledger_pool, FAR + timedelta(seconds=9))


async def test_owners_do_not_keep_up_while_a_partition_has_none(ledger_pool: Pool) -> None:
    fences = await all_said(ledger_pool, FAR)
    await release_partition(ledger_pool, fences[4], FAR)
    assert not await keep_up(ledger_pool, FAR)


async def test_owners_do_not_keep_up_while_events_wait_that_they_have_not_heard_of(ledger_pool: Pool) -> None:
    await all_said(ledger_pool, FAR)
    async with session(ledger_pool) as conn:
        await conn.execute(
            "INSERT INTO outbox (event, at, job_ids, partitions, tenants, queues, lanes, versions) "
            "VALUES ('job_created', %s, '{}', '{}', '{}', '{}', '{}', '{}')",
            (FAR - timedelta(seconds=9),),
        )
    assert not await keep_up(ledger_pool, FAR)
    assert await keep_up(ledger_pool, FAR - timedelta(seconds=2))


async def test_a_release_says_how_far_its_owner_came_and_the_next_takeover_tells_it(ledger_pool: Pool) -> None:
    fence = (await take_over(ledger_pool, 2, "owner-1")).fence
    await release_partition(ledger_pool, fence, FAR)
    await release_partition(ledger_pool, fence, FAR + timedelta(seconds=1))  # nobody's any more
    await take_over(ledger_pool, 2, "owner-2")
    async with session(ledger_pool) as conn:
        assert [tenure.decided_through for tenure in await list_takeovers(conn, 2, FAR)] == [FAR]


async def test_a_release_never_puts_back_what_was_said(ledger_pool: Pool) -> None:
    fence = (await take_over(ledger_pool, 2, "owner-1")).fence
    await say_decided(ledger_pool, {fence: FAR})
    await release_partition(ledger_pool, fence, NOW)
    assert (await decided(ledger_pool))[2] == FAR


async def told_since(pool: Pool, fence: Fence, earlier: Fence) -> bool:
    async with session(pool) as conn:
        return await is_told_since(conn, fence, earlier.epoch, earlier.owner)


async def owners(pool: Pool, *names: str) -> list[Fence]:
    """One after the other, of a partition."""
    return [(await take_over(pool, 2, name)).fence for name in names]


async def test_what_became_of_jobs_is_told_since_an_owner_that_the_ledger_knows_with_all_since(
    ledger_pool: Pool,
) -> None:
    await take_over(ledger_pool, 3, "a")
    first, second, last = await owners(ledger_pool, "a", "b", "c")
    assert await told_since(ledger_pool, last, first)
    assert await told_since(ledger_pool, last, second)
    assert await told_since(ledger_pool, second, first)


async def test_it_is_not_told_since_an_owner_of_another_ledger(ledger_pool: Pool) -> None:
    first, _, last = await owners(ledger_pool, "a", "b", "c")
    assert not await told_since(ledger_pool, last, Fence(2, first.epoch, "a/of another ledger"))
    assert not await told_since(ledger_pool, last, Fence(2, last.epoch + 1, "d"))
    assert not await told_since(ledger_pool, last, Fence(2, 0, "a"))


async def test_it_is_not_told_since_a_backup_was_restored(ledger_pool: Pool) -> None:
    """Whoever has a state of before may have seen what is not in the backup."""
    first, second = await owners(ledger_pool, "a", "b")
    async with session(ledger_pool) as conn:
        await declare_restored(conn)
    after, last = await owners(ledger_pool, "c", "d")
    assert not await told_since(ledger_pool, last, first)
    assert not await told_since(ledger_pool, last, second)
    assert await told_since(ledger_pool, last, after)


async def test_it_is_not_told_since_the_topics_were_made_anew(ledger_pool: Pool) -> None:
    [first] = await owners(ledger_pool, "a")
    async with owner_transaction(ledger_pool, first) as tx:
        await advance_offset(tx, 7)
    async with session(ledger_pool) as conn:
        assert await reset_offsets(conn, [first.partition]) == 1
    [last] = await owners(ledger_pool, "b")
    assert not await told_since(ledger_pool, last, first)


async def test_it_is_not_told_by_an_owner_who_wrote_without_events(ledger_pool: Pool) -> None:
    first, silent = await owners(ledger_pool, "a", "loader")
    async with owner_transaction(ledger_pool, silent) as tx:
        await leave_untold(tx)
    [last] = await owners(ledger_pool, "b")
    assert not await told_since(ledger_pool, last, first)
    assert await told_since(ledger_pool, (await owners(ledger_pool, "c"))[0], last)


async def test_it_is_not_known_to_be_told_once_the_owners_are_forgotten(ledger_pool: Pool) -> None:
    first, second = await owners(ledger_pool, "a", "b")
    [last] = [await owners(ledger_pool, "c") for _ in range(99)][-1]
    async with session(ledger_pool) as conn:
        await conn.execute("UPDATE takeovers SET at = now() - interval '31 days'")
        await forget_takeovers(conn)
    assert not await told_since(ledger_pool, last, first)
    assert await told_since(ledger_pool, last, second)  # the last hundred are known, however long ago they were
