"""A standby is promoted while a partition is on no shard: of the source or of the target, either of which may be home.

Whatever the instant, and whether the former primary is dead or only cut off: nothing is lost, and never two shards have
the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import NamedTuple

import psycopg
import pytest
import pytest_asyncio
from psycopg.conninfo import conninfo_to_dict

from connectors.stack import PostgresPair, PostgresServer
from ledger import partition_moves
from ledger.completions import Completion
from ledger.connection import session
from ledger.fence import take_over
from ledger.partition_moves import move_partition
from ledger.shard_map import add_shard, init_alone, read_shard_map
from ledger.shards import Shards, open_shards
from schemas.errors import LedgerUnavailable, MoveRefused
from tests.ledger.moving import Filled, StandInRelay, at_step, holders, left_over, relaying, rows_of, silent
from tests.ledger.owned_partition import OwnedPartition
from tests.ledger_fixtures import PARTITIONS, all_back
from tests.pair_fixtures import frozen, pool_of, waiting_commits
from tests.streams.waiting import until

PARTITION = 2


class Scene(NamedTuple):
    """Which shard has the standby, and from where to where the partition moves. dsn: home's."""

    pair: PostgresPair
    paired: int
    source: int
    dsn: str
    name: str
    shards: Shards
    filled: Filled
    told: list[StandInRelay]

    @property
    def target(self) -> int:
        return 1 - self.source

    async def try_to_move(
        self, at: str, work: Callable[[], Awaitable[object]]
    ) -> MoveRefused | LedgerUnavailable | None:
        """With that work at that step; what came of it."""
        try:
            await move_partition(self.shards, PARTITION, self.target, silent, step=at_step(at, work))
        except (MoveRefused, LedgerUnavailable) as error:
            return error
        return None


class Case(NamedTuple):
    """Of whom the standby is promoted."""

    paired: int
    source: int


CASES = {
    "the source, which is home": Case(paired=0, source=0),
    "the source": Case(paired=1, source=1),
    "the target": Case(paired=1, source=0),
    "the target, which is home": Case(paired=0, source=1),
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_moves, "STALE_S", 0.0)
    monkeypatch.setattr(partition_moves, "DRAINED_WITHIN_S", 60.0)
    monkeypatch.setattr(partition_moves, "RELAYED_WITHIN_S", 120.0)


@pytest_asyncio.fixture
async def scene(request: pytest.FixtureRequest, pair: PostgresPair, empty_pair_dsn: str, empty_ledger_dsn: str
) -> AsyncIterator[Scene]:  # fmt: skip
    """Two shards, one of them with a standby, and a partition with something of everything on the source."""
    case: Case = request.param
    dsns = [empty_ledger_dsn, empty_ledger_dsn]
    dsns[case.paired] = empty_pair_dsn
    await make_shards(*dsns)
    async with open_shards(dsns[0], size=8) as shards, relaying(shards) as relays:
        if case.source != 0:
            await move_partition(shards, PARTITION, case.source, silent)
            await shards.look_again()
        filled = Filled(await OwnedPartition.take(shards.pools[case.source], PARTITION))
        await filled.fill()
        name = str(conninfo_to_dict(empty_pair_dsn)["dbname"])
        yield Scene(pair, *case, dsns[0], name, shards, filled, [*relays.values()])


async def make_shards(home: str, other: str) -> None:
    async with (
        pool_of(home, 1) as home_pool, session(home_pool) as conn,
        pool_of(other, 1) as other_pool, session(other_pool) as new,
    ):  # fmt: skip
        await init_alone(conn, PARTITIONS)
        assert await add_shard(conn, other, new) == 1


def of(*names: str) -> pytest.MarkDecorator:
    chosen = names or tuple(CASES)
    return pytest.mark.parametrize("scene", [CASES[name] for name in chosen], ids=chosen, indirect=True)


@pytest.mark.parametrize(("at", "fate"), [("drained", "killed"), ("drained", "cut off"), ("arrived", "killed")])
@of()
async def test_a_promotion_between_drained_and_moved_loses_nothing_and_leaves_one_shard_that_has_it(
    scene: Scene, at: str, fate: str
) -> None:
    before, former = await rows_of(scene.shards.pools[scene.source], PARTITION), scene.pair.primary

    async def fail_over() -> None:
        if fate == "killed":
            await asyncio.to_thread(former.kill)
        await asyncio.to_thread(scene.pair.promote)

    failed = await scene.try_to_move(at, fail_over)
    if fate == "cut off":
        await refuses(former, scene.name)
    await holds_it_once(scene, may_be=[scene.target] if at == "arrived" else [scene.source, scene.target])
    if failed:
        await moved_at_last(scene)
    await is_whole(scene, before)


@pytest.mark.parametrize("standby", ["stopped", "frozen"])
@of("the target", "the target, which is home")
async def test_an_arrival_that_nobody_confirmed_is_where_the_promoted_standby_has_it(
    scene: Scene, standby: str
) -> None:
    """The former primary has committed it, and waits. A standby that was stopped has never heard of it."""
    before = await rows_of(scene.shards.pools[scene.source], PARTITION)
    failing_over: list[asyncio.Task[None]] = []

    async def lose_the_answer() -> None:
        away = ExitStack()
        away.enter_context(stopped(scene.pair) if standby == "stopped" else frozen(scene.pair.standby))
        failing_over.append(asyncio.create_task(fail_over_once_it_waits(scene.pair, away)))

    failed = await scene.try_to_move("drained", lose_the_answer)
    await asyncio.gather(*failing_over)
    await holds_it_once(scene, may_be=[scene.source] if standby == "stopped" else [scene.source, scene.target])
    if failed:
        await moved_at_last(scene)
    await is_whole(scene, before)


@contextmanager
def stopped(pair: PostgresPair) -> Iterator[None]:
    pair.standby.stop()
    yield
    pair.standby.follow(pair.primary)


async def fail_over_once_it_waits(pair: PostgresPair, away: ExitStack) -> None:
    await waiting_commits(pair, of_writers=True)
    await asyncio.to_thread(pair.primary.kill)
    await asyncio.to_thread(away.close)
    await asyncio.to_thread(pair.promote)


@of("the source")
async def test_what_was_copied_before_a_promotion_of_the_source_is_not_believed_after_it(scene: Scene) -> None:
    """A commit whose wait for the standby was cancelled is seen and copied, and a promoted standby does not have it."""
    before = await rows_of(scene.shards.pools[scene.source], PARTITION)

    async def fail_over_unnoticed() -> None:
        await asyncio.to_thread(scene.pair.primary.kill)
        await asyncio.to_thread(scene.pair.promote)
        await all_back(scene.shards)

    failed = await scene.try_to_move("followed", fail_over_unnoticed)
    assert isinstance(failed, MoveRefused)
    assert "stays on shard 1: the source's standby was promoted while it was copied" in str(failed)
    await holds_it_once(scene, may_be=[scene.source])
    await moved_at_last(scene)
    await is_whole(scene, before)


@of("the source, which is home")
async def test_the_map_is_not_read_from_a_former_primary_that_runs_on(scene: Scene) -> None:
    await asyncio.to_thread(scene.pair.promote)
    dsn = f"host=127.0.0.1 port={scene.pair.primary.port} user=postgres dbname={scene.name}"
    # As another process: what this one sees of the promoted standby itself would make it leave the former primary.
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("INSERT INTO moves VALUES (%s, 0, 1, 'copying', gen_random_uuid())", (PARTITION,))

    async def is_known() -> bool:
        with suppress(LedgerUnavailable):
            await scene.shards.look_again()
        return scene.shards.is_moving(PARTITION)

    await until(is_known, deadline_s=30)


async def refuses(former: PostgresServer, name: str) -> None:
    """The former primary, which runs on, lets nobody write to the partition, not even who still has a session."""
    dsn = f"host=127.0.0.1 port={former.port} user=postgres dbname={name}"
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        with pytest.raises(psycopg.Error) as refused:
            await conn.execute("SELECT fence_partitions(%s)", ([PARTITION],))
        assert refused.value.sqlstate == "FP002"


@asynccontextmanager
async def another_process(scene: Scene) -> AsyncIterator[Shards]:
    """It has no session from before."""
    async with open_shards(scene.dsn, size=4) as shards:
        await all_back(shards)
        yield shards


async def holds_it_once(scene: Scene, may_be: list[int]) -> None:
    async with another_process(scene) as shards:
        assert await holders(shards, PARTITION) in [[shard] for shard in may_be]


async def moved_at_last(scene: Scene) -> None:
    """The same command again, once the relays have sessions again."""
    async with another_process(scene) as shards:
        await move_partition(shards, PARTITION, scene.target, silent)


async def is_whole(scene: Scene, before: dict[str, list[object]]) -> None:
    """The target has all there was, and goes on with it; of each run every event was told, and nothing is left over."""
    async with another_process(scene) as shards:
        assert await holders(shards, PARTITION) == [scene.target]
        assert await rows_of(shards.pools[scene.target], PARTITION) == before
        async with session(shards.home) as conn:
            found = await read_shard_map(conn)
        assert (found.placed[PARTITION], found.moving) == (scene.target, frozenset())
        for pool in shards.pools.values():
            assert await left_over(pool) == {}
        target = shards.pools[scene.target]
        moved = OwnedPartition(target, (await take_over(target, PARTITION, "owner-2")).fence)
        runs = scene.filled.leased
        for run in runs:
            assert await moved.complete(Completion(run.run_id, run.lease_token), now=datetime.now(UTC)) == [run.run_id]
    told = scene.told[0].told
    for run in runs:
        await scene.told[scene.target].has_told(run.run_id, 3)
        assert {version for _, about, version in told if about == run.run_id} == {1, 2, 3}
