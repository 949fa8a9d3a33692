"""How many runs a tenant may have that wait or are leased, before no command of its makes another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from ledger.clock import LedgerClock
from ledger.completions import Completion, complete_runs
from ledger.connection import Pool, session
from ledger.fence import api_transaction, take_over
from ledger.leases import LeaseAsk, lease_runs
from ledger.news import read_news
from ledger.tenant_limits import NO_LIMITS, set_limits
from schemas.codec import Codec
from schemas.commands import Command
from streams.command_applier import CommandApplier
from streams.fair_backlog import Batch
from streams.pending_caps import PERIOD_S, PendingCaps, keep_caps
from streams.rejections import CommandReturns, Rejection
from tests.ledger_fixtures import PARTITIONS
from tests.streams.commands import backfill, create, delete, job_on, raw, trigger
from tests.streams.waiting import until

PARTITION = 5


class Returns(CommandReturns):
    """The rejected topic, as a list."""

    def __init__(self) -> None:
        self.rejected: list[tuple[str, str | None]] = []

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        self.rejected += [(each.error.code, each.command_id) for each in rejections]


class Owner:
    """Of one partition. A new one knows nothing of what another has counted."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.caps, self.returns = pool, PendingCaps(), Returns()

    async def begin(self) -> Owner:
        fence = (await take_over(self.pool, PARTITION, "owner")).fence
        self._applier = CommandApplier(fence, self.pool, self.returns, Codec(), PARTITIONS, self.caps)
        self._offset = 0
        await self.count()
        return self

    async def count(self) -> None:
        await self.caps.read(self.pool, 1.0)

    async def apply(self, commands: Sequence[Command]) -> int:
        """How many were rejected since the tenant has too many; nothing else is."""
        before = len(self.returns.rejected)
        async with session(self.pool) as conn:
            row = await (await conn.execute("SELECT consumed_offset FROM partitions WHERE partition = 5")).fetchone()
        assert row is not None
        await self._applier.apply(Batch.of(raw(PARTITION, commands, first_offset=row[0])))
        rejected = self.returns.rejected[before:]
        assert {code for code, _ in rejected} <= {"too_many_pending"}
        return len(rejected)


def creations(count: int, tenant: str = "acme") -> list[Command]:
    return [create(job_on(PARTITION), tenant=tenant) for _ in range(count)]


async def limit(pool: Pool, most: int | None) -> None:
    async with session(pool) as conn:
        await set_limits(conn, "acme", {"max_pending": most}, "me")


async def test_no_job_is_created_beyond_the_limit_and_the_topic_of_the_rejected_tells_why(ledger_pool: Pool) -> None:
    await limit(ledger_pool, 10)
    owner = await Owner(ledger_pool).begin()
    commands = creations(12)
    assert await owner.apply(commands[:7]) == 0
    assert await owner.apply(commands[7:]) == 2
    assert [command_id for _, command_id in owner.returns.rejected] == [str(each.command_id) for each in commands[10:]]
    assert await owner.apply(creations(3, tenant="globex")) == 0


async def test_a_creation_that_comes_again_is_no_other_job(ledger_pool: Pool) -> None:
    await limit(ledger_pool, 1)
    owner = await Owner(ledger_pool).begin()
    job_id = job_on(PARTITION)
    assert await owner.apply([create(job_id)]) == 0
    assert await owner.apply([create(job_id)]) == 0


async def test_who_takes_over_after_a_crash_counts_what_there_is(ledger_pool: Pool) -> None:
    await limit(ledger_pool, 10)
    first = await Owner(ledger_pool).begin()
    await first.apply(creations(8))
    second = await Owner(ledger_pool).begin()
    assert second.caps.room("acme") == 2
    assert await second.apply(creations(5)) == 3
    await second.count()
    assert second.caps.room("acme") == 0


async def test_triggers_and_backfills_need_room_for_what_they_make(ledger_pool: Pool) -> None:
    owner = await Owner(ledger_pool).begin()
    job_id, now = job_on(PARTITION), datetime.now(UTC)
    await owner.apply([create(job_id, {"everySeconds": 60, "anchor": "2020-01-01T00:00:00Z"})])
    await limit(ledger_pool, 6)
    await owner.count()
    assert await owner.apply([trigger(job_id)]) == 0
    assert await owner.apply([backfill(job_id, now - timedelta(minutes=5), now)]) == 1
    assert await owner.apply([backfill(job_id, now - timedelta(minutes=3), now)]) == 0
    assert await owner.apply([trigger(job_id), trigger(job_id)]) == 1
    async with session(ledger_pool) as conn:
        assert await (await conn.execute("SELECT count(*) FROM runs")).fetchone() == (6,)


async def test_room_comes_back_as_runs_end_and_jobs_are_deleted(ledger_pool: Pool) -> None:
    await limit(ledger_pool, 3)
    owner = await Owner(ledger_pool).begin()
    commands = creations(3)
    await owner.apply(commands)
    await owner.apply([delete(commands[0].job_id)])
    async with session(ledger_pool) as conn:
        [run_id, *_] = [row[0] for row in await (await conn.execute("SELECT run_id FROM runs")).fetchall()]
        await conn.execute("UPDATE runs SET due_at = now() - interval '1 second' WHERE run_id = %s", (run_id,))
    async with api_transaction(ledger_pool, [run_id]) as conn:
        row = await (await conn.execute("SELECT epoch FROM partitions WHERE partition = 5")).fetchone()
        assert row is not None
        [leased] = await lease_runs(conn, [LeaseAsk(run_id, row[0], "w", 30.0)])
    await owner.count()
    assert owner.caps.room("acme") == 1
    async with api_transaction(ledger_pool, [run_id]) as conn:
        await complete_runs(conn, [Completion(run_id, leased.lease_token)])
    await owner.count()
    assert owner.caps.room("acme") == 2


async def test_a_limit_holds_and_ends_without_a_restart_and_a_shard_has_its_share(ledger_pool: Pool) -> None:
    owner = await Owner(ledger_pool).begin()
    assert not owner.caps.any_set()
    assert await owner.apply(creations(5)) == 0
    await limit(ledger_pool, 12)
    await owner.caps.read(owner.pool, 0.5)
    assert owner.caps.room("acme") == 1
    await limit(ledger_pool, None)
    await owner.count()
    assert owner.caps.room("acme") == float("inf")


async def test_runs_are_counted_at_once_when_a_first_limit_is_heard_of(ledger_pool: Pool) -> None:
    caps = PendingCaps()
    caps.hear({"acme": NO_LIMITS})
    counting = asyncio.create_task(keep_caps(caps, ledger_pool, lambda: 1.0))
    try:
        await limit(ledger_pool, 7)
        async with session(ledger_pool) as conn:
            caps.hear((await read_news(conn, LedgerClock())).limits)
        assert await until(caps.any_set) < PERIOD_S
        assert caps.room("acme") == 7
    finally:
        counting.cancel()


async def test_what_did_not_commit_takes_no_room(ledger_pool: Pool) -> None:
    await limit(ledger_pool, 2)
    owner = await Owner(ledger_pool).begin()
    await take_over(ledger_pool, PARTITION, "another")
    try:
        await owner.apply(creations(2))
    except Exception as error:
        assert type(error).__name__ == "EpochLost"  # noqa: PT017
    assert owner.caps.room("acme") == 2
