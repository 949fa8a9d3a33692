"""Partitions that move between shards: with all they have, whatever dies half-way, and never on two shards."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest
import pytest_asyncio

from ledger import partition_moves
from ledger.checkups import check_runs
from ledger.commands import note_keyed_command, read_outcomes
from ledger.completions import Completion
from ledger.connection import session
from ledger.dead_letters import DeadFilter, count_dead
from ledger.fence import owner_transaction, take_over
from ledger.lease_requests import recall_leases
from ledger.moves import list_moves
from ledger.partition_moves import abort_move, move_partition
from ledger.pauses import count_waiting
from ledger.runs import find_due
from ledger.shard_map import init_shard, read_shard_map
from ledger.shards import Shards, open_shards
from schemas.errors import LedgerMismatch, LedgerUnavailable, MoveRefused, NotOnThisShard
from streams.abandoned_moves import end_what_is_abandoned
from tests.ledger.moving import (
    Filled,
    Killed,
    StandInRelay,
    at_step,
    holders,
    killing,
    left_over,
    relaying,
    row_of_partition,
    rows_of,
    silent,
)
from tests.ledger.owned_partition import OwnedPartition
from tests.ledger_fixtures import PARTITIONS, Database, all_back
from tests.streams.waiting import until

PARTITION, OTHER = 2, 4  # both at home, which is shard 0
STEPS = (
    "taken up", "noting", "copied", "followed", "frozen", "caught up", "drained", "arrived", "moved", "removed",
)  # fmt: skip


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process here has an old map for seconds. A machine may be slow."""
    monkeypatch.setattr(partition_moves, "STALE_S", 0.0)
    monkeypatch.setattr(partition_moves, "DRAINED_WITHIN_S", 60.0)


@pytest_asyncio.fixture
async def shards(two_ledgers: list[Database]) -> AsyncIterator[Shards]:
    async with open_shards(two_ledgers[0].dsn, size=8) as shards:
        yield shards


@pytest_asyncio.fixture
async def filled(shards: Shards) -> Filled:
    filled = Filled(await OwnedPartition.take(shards.home, PARTITION))
    await filled.fill()
    return filled


@pytest_asyncio.fixture
async def relays(shards: Shards) -> AsyncIterator[dict[int, StandInRelay]]:
    async with relaying(shards) as relays:
        yield relays


def without_moment(row: tuple[object, ...] | None) -> tuple[object, ...]:
    """A partition's row without its owner, who stays behind."""
    assert row is not None
    return (row[0], *row[2:])


@pytest.mark.usefixtures("relays", "filled")
async def test_a_moved_partition_has_all_it_had_and_the_source_has_nothing_of_it(shards: Shards) -> None:
    before, place = await rows_of(shards.home, PARTITION), await row_of_partition(shards.home, PARTITION)
    others = await OwnedPartition.take(shards.home, OTHER)
    await others.runs(5)
    theirs = await rows_of(shards.home, OTHER)
    await move_partition(shards, PARTITION, 1, silent)
    assert all(before.values())
    assert await rows_of(shards.pools[1], PARTITION) == before
    assert without_moment(await row_of_partition(shards.pools[1], PARTITION)) == without_moment(place)
    assert (await row_of_partition(shards.pools[1], PARTITION) or ())[1] is None  # its owner must come there
    await shards.look_again()
    assert (shards.number_of(PARTITION), shards.is_moving(PARTITION)) == (1, False)
    left = await rows_of(shards.home, PARTITION)
    assert {table: rows for table, rows in left.items() if rows}.keys() == {"applied_commands", "keyed_commands"}
    assert await rows_of(shards.home, OTHER) == theirs
    for pool in shards.pools.values():
        assert await left_over(pool) == {}
    async with session(shards.home) as conn:
        assert [(move.partition, move.state) for move in await list_moves(conn)] == [(PARTITION, "done")]


@pytest.mark.usefixtures("relays")
async def test_a_repeated_call_gets_on_the_target_what_it_got_on_the_source(shards: Shards, filled: Filled) -> None:
    await move_partition(shards, PARTITION, 1, silent)
    async with session(shards.pools[1]) as conn:
        again = await recall_leases(conn, filled.request_id)
        assert set(await read_outcomes(conn, [filled.command_id])) == {filled.command_id}
    assert {run.run_id: run.lease_token for run in again} == {run.run_id: run.lease_token for run in filled.leased}
    assert not await note_keyed_command(shards.pools[1], PARTITION, filled.keyed_id, b"another")
    async with session(shards.home) as conn:
        assert await recall_leases(conn, filled.request_id) == []


@pytest.mark.parametrize("at", ["noting", "copied", "followed"])
@pytest.mark.usefixtures("relays")
async def test_what_changes_while_it_is_copied_moves_along(shards: Shards, filled: Filled, at: str) -> None:
    then = {}

    async def change() -> None:
        await filled.change()
        then.update(await rows_of(shards.home, PARTITION))

    await move_partition(shards, PARTITION, 1, silent, step=at_step(at, change))
    assert await rows_of(shards.pools[1], PARTITION) == then
    run = filled.leased[2]
    moved = OwnedPartition(shards.pools[1], (await take_over(shards.pools[1], PARTITION, "owner-2")).fence)
    assert moved.fence.epoch == filled.owned.fence.epoch + 1
    assert await moved.complete(Completion(run.run_id, run.lease_token), now=datetime.now(UTC)) == [run.run_id]


async def test_events_of_the_target_come_after_all_of_the_source(
    shards: Shards, filled: Filled, relays: dict[int, StandInRelay]
) -> None:
    """A run's versions grow on the topic, though the source's relay has a lot to do just then."""
    source, target = relays[0], relays[1]

    async def hold_up() -> None:
        source.may_relay.clear()
        await filled.change()
        asyncio.get_running_loop().call_later(0.3, source.may_relay.set)

    await move_partition(shards, PARTITION, 1, silent, step=at_step("followed", hold_up))
    moved = OwnedPartition(shards.pools[1], (await take_over(shards.pools[1], PARTITION, "owner-2")).fence)
    for run in filled.leased[2:]:
        assert await moved.complete(Completion(run.run_id, run.lease_token), now=datetime.now(UTC))
    await target.has_told(filled.leased[3].run_id, 3)
    versions: defaultdict[UUID, list[int]] = defaultdict(list)
    for _, about, version in target.told:
        versions[about].append(version)
    assert all(told == sorted(told) for told in versions.values())
    assert versions[filled.leased[2].run_id] == [1, 2, 3]


@pytest.mark.parametrize("at", STEPS)
@pytest.mark.usefixtures("relays", "filled")
async def test_a_move_whose_mover_was_killed_goes_on_with_the_same_command(shards: Shards, at: str) -> None:
    before = await rows_of(shards.home, PARTITION)
    with pytest.raises(Killed):
        await move_partition(shards, PARTITION, 1, silent, step=killing(at))
    assert len(await holders(shards, PARTITION)) <= 1
    with pytest.raises(MoveRefused, match="half-way to shard 1"):
        await move_partition(shards, PARTITION, 0, silent)
    await move_partition(shards, PARTITION, 1, silent)
    assert await holders(shards, PARTITION) == [1]
    assert await rows_of(shards.pools[1], PARTITION) == before
    for pool in shards.pools.values():
        assert await left_over(pool) == {}
    async with session(shards.home) as conn:
        found = await read_shard_map(conn)
    assert (found.placed[PARTITION], found.moving) == (1, frozenset())


@pytest.mark.parametrize("at", STEPS)
@pytest.mark.usefixtures("relays")
async def test_a_move_whose_mover_was_killed_is_taken_back_unless_it_was_through(
    shards: Shards, filled: Filled, at: str
) -> None:
    before, place = await rows_of(shards.home, PARTITION), await row_of_partition(shards.home, PARTITION)
    with pytest.raises(Killed):
        await move_partition(shards, PARTITION, 1, silent, step=killing(at))
    await abort_move(shards, PARTITION, silent)
    where = 1 if at in STEPS[STEPS.index("arrived") :] else 0
    assert await holders(shards, PARTITION) == [where]
    assert await rows_of(shards.pools[where], PARTITION) == before
    if where == 0:  # as if nothing had been: its owner goes on
        assert await row_of_partition(shards.home, PARTITION) == place
        await filled.owned.runs(1)
    await shards.look_again()
    assert shards.number_of(PARTITION) == where
    for pool in shards.pools.values():
        assert await left_over(pool) == {}
    with pytest.raises(MoveRefused, match=f"is on shard {where}, and on no way"):
        await abort_move(shards, PARTITION, silent)


@pytest.mark.usefixtures("relays", "filled")
async def test_taking_back_is_finished_by_the_next_one_too(shards: Shards) -> None:
    before = await rows_of(shards.home, PARTITION)
    with pytest.raises(Killed):
        await move_partition(shards, PARTITION, 1, silent, step=killing("caught up"))
    with pytest.raises(Killed):
        await abort_move(shards, PARTITION, silent, step=killing("returning"))
    await move_partition(shards, PARTITION, 1, silent)
    assert await holders(shards, PARTITION) == [1]
    assert await rows_of(shards.pools[1], PARTITION) == before


@pytest.mark.parametrize(
    ("at", "where"), [("copied", 0), ("frozen", 0), ("drained", 0), ("arrived", 1), ("removed", 1)]
)
@pytest.mark.usefixtures("relays", "filled")
async def test_what_a_dead_mover_has_left_is_ended_without_anybody_s_doing_and_a_living_one_is_left_alone(
    shards: Shards, two_ledgers: list[Database], at: str, where: int
) -> None:
    before = await rows_of(shards.home, PARTITION)

    async def end_what_is_dead() -> None:
        await end_what_is_abandoned(shards.home, two_ledgers[0].dsn)

    await move_partition(shards, OTHER, 1, silent, step=at_step("copied", end_what_is_dead))
    assert await holders(shards, OTHER) == [1]
    with pytest.raises(Killed):
        await move_partition(shards, PARTITION, 1, silent, step=killing(at))
    await end_what_is_dead()
    assert await holders(shards, PARTITION) == [where]
    assert await rows_of(shards.pools[where], PARTITION) == before
    for pool in shards.pools.values():
        assert await left_over(pool) == {}


@pytest.mark.parametrize("at", ["copied", "followed", "frozen", "drained"])
@pytest.mark.usefixtures("relays")
async def test_a_mover_who_was_frozen_cannot_go_on_once_another_has_taken_the_move_up(
    shards: Shards, filled: Filled, two_ledgers: list[Database], at: str
) -> None:
    """Its session with home is gone, and with it the right to be the only one; it does not know."""
    before = await rows_of(shards.home, PARTITION)

    async def meanwhile() -> None:
        async with await psycopg.AsyncConnection.connect(two_ledgers[0].dsn, autocommit=True) as conn:
            await conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s::int"
                " AND classid = (fence_class() + 2)::oid", (PARTITION,),
            )  # fmt: skip
        async with open_shards(two_ledgers[0].dsn, size=4) as another:
            await abort_move(another, PARTITION, silent)

    with pytest.raises(MoveRefused, match="another process has taken the move up"):
        await move_partition(shards, PARTITION, 1, silent, step=at_step(at, meanwhile))
    await shards.look_again()
    assert shards.number_of(PARTITION) == 0
    assert await holders(shards, PARTITION) == [0]
    assert await rows_of(shards.home, PARTITION) == before
    await filled.owned.runs(1)


@pytest.mark.usefixtures("relays")
async def test_nobody_writes_to_the_source_any_more_once_it_is_frozen(shards: Shards, filled: Filled) -> None:
    owned, run = filled.owned, filled.leased[0]

    async def try_all() -> None:
        assert await holders(shards, PARTITION) == []
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: owned.runs(1),
            lambda: owned.complete(Completion(run.run_id, run.lease_token), now=datetime.now(UTC)),
            lambda: note_keyed_command(shards.home, PARTITION, uuid4(), b"digest"),
        ]
        for attempt in attempts:
            with pytest.raises(NotOnThisShard) as refused:
                await attempt()
            assert refused.value.partitions == {PARTITION}
        with pytest.raises(LedgerMismatch):
            await take_over(shards.home, PARTITION, "another")

    await move_partition(shards, PARTITION, 1, silent, step=at_step("frozen", try_all))
    with pytest.raises(NotOnThisShard):
        await owned.runs(1)
    with pytest.raises(NotOnThisShard):  # nor is the former owner one on the target
        async with owner_transaction(shards.home, owned.fence):
            pass


@pytest.mark.usefixtures("relays")
async def test_rows_are_found_and_counted_on_one_shard_only_while_they_are_on_both(
    shards: Shards, filled: Filled
) -> None:
    async def look() -> tuple[object, ...]:
        due = await shards.ask_all(lambda conn: find_due(conn, [("acme", "mail")], 1_000))
        waiting = await shards.ask_all(lambda conn: count_waiting(conn, "acme", "mail"))
        dead = await shards.ask_all(lambda conn: count_dead(conn, DeadFilter("acme")))
        checked = await shards.ask_all(lambda conn: check_runs(conn, "acme"))
        recalled = await shards.ask_all(lambda conn: recall_leases(conn, filled.request_id))
        return (
            sorted(run.run_id for each in due for run in each),
            sum(map(sum, waiting)),
            sum(dead),
            sum(each.overdue for each in checked),
            sorted(run.run_id for each in recalled for run in each),
        )

    seen = []

    async def note() -> None:
        seen.append(await look())

    before = await look()
    await move_partition(shards, PARTITION, 1, silent, step=at_step("copied", note))
    await move_partition(shards, PARTITION, 0, silent, step=at_step("moved", note))
    assert before[0]
    assert seen == [before, before]


@pytest.mark.usefixtures("filled")
async def test_a_partition_stays_when_nobody_relays_the_target(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_moves, "RELAYED_WITHIN_S", 0.1)
    async with relaying(shards, without=1):
        with pytest.raises(MoveRefused, match="nobody relays the events of shard 1"):
            await move_partition(shards, PARTITION, 1, silent)
    assert await holders(shards, PARTITION) == [0]
    assert {table for table, rows in (await rows_of(shards.pools[1], PARTITION)).items() if rows} <= {
        "applied_commands", "keyed_commands",
    }  # fmt: skip


async def test_a_partition_is_back_when_its_events_are_not_relayed_in_time(
    shards: Shards, filled: Filled, relays: dict[int, StandInRelay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_moves, "DRAINED_WITHIN_S", 0.1)

    async def hold_up() -> None:
        relays[0].may_relay.clear()
        await filled.owned.runs(1)

    with pytest.raises(MoveRefused, match="stays on shard 0: its events were not relayed"):
        await move_partition(shards, PARTITION, 1, silent, step=at_step("followed", hold_up))
    assert await holders(shards, PARTITION) == [0]
    await filled.owned.runs(1)


@pytest.mark.usefixtures("relays")
async def test_a_partition_is_back_at_once_when_the_target_goes_away_before_it_can_have_it(
    shards: Shards, filled: Filled, two_ledgers: list[Database]
) -> None:
    before = await rows_of(shards.home, PARTITION)

    async def go_away() -> None:
        two_ledgers[1].go_away()

    with pytest.raises(LedgerUnavailable):  # what it has got cannot be forgotten yet
        await move_partition(shards, PARTITION, 1, silent, step=at_step("frozen", go_away))
    assert await row_of_partition(shards.home, PARTITION)
    assert await rows_of(shards.home, PARTITION) == before
    await filled.owned.runs(1)
    two_ledgers[1].come_back()
    await all_back(shards)
    await abort_move(shards, PARTITION, silent)
    assert await holders(shards, PARTITION) == [0]
    for pool in shards.pools.values():
        assert await left_over(pool) == {}


@pytest.mark.usefixtures("relays")
async def test_nobody_has_a_partition_that_may_have_arrived_until_the_target_answers(
    shards: Shards, filled: Filled, two_ledgers: list[Database]
) -> None:
    said: list[str] = []

    async def go_away() -> None:
        two_ledgers[1].go_away()

    async def come_back() -> None:
        await until(lambda: any(each.startswith("the partition has no shard yet") for each in said))
        assert await row_of_partition(shards.home, PARTITION) is None
        two_ledgers[1].come_back()

    coming_back = asyncio.create_task(come_back())
    with pytest.raises(MoveRefused, match="stays on shard 0"):
        await move_partition(shards, PARTITION, 1, said.append, step=at_step("drained", go_away))
    await coming_back
    assert await holders(shards, PARTITION) == [0]
    await filled.owned.runs(1)


@pytest.mark.usefixtures("relays")
async def test_only_one_process_moves_a_partition(shards: Shards) -> None:
    async def second() -> None:
        with pytest.raises(MoveRefused, match="being moved by another process"):
            await move_partition(shards, PARTITION, 1, silent)

    await move_partition(shards, PARTITION, 1, silent, step=at_step("noting", second))


async def test_what_cannot_be_moved_is_refused(shards: Shards) -> None:
    for partition, to_shard in ((PARTITIONS, 1), (-1, 1), (PARTITION, 2)):
        with pytest.raises(MoveRefused, match="there is no"):
            await move_partition(shards, partition, to_shard, silent)
    said: list[str] = []
    await move_partition(shards, PARTITION, 0, said.append)
    assert said == [f"partition {PARTITION} is on shard 0"]


@pytest.mark.usefixtures("relays")
async def test_an_interrupted_mover_does_not_end_while_nobody_has_the_partition(shards: Shards) -> None:
    async def interrupt() -> None:
        task.cancel()

    task = asyncio.create_task(
        move_partition(shards, PARTITION, 1, silent, step=at_step("frozen", interrupt)), name="the mover"
    )
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await holders(shards, PARTITION) == [1]
    await shards.look_again()
    assert shards.number_of(PARTITION) == 1


@pytest.mark.parametrize("at", ["frozen", "arrived", "moved"])
@pytest.mark.usefixtures("relays")
async def test_initialising_again_makes_no_second_one_of_a_partition_that_moves(
    shards: Shards, two_ledgers: list[Database], at: str
) -> None:
    with pytest.raises(Killed):
        await move_partition(shards, PARTITION, 1, silent, step=killing(at))
    before = await holders(shards, PARTITION)
    for number, database in enumerate(two_ledgers):
        async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as conn:
            async with session(shards.home) as home:
                found = await read_shard_map(home)
            await init_shard(conn, found, number)
    assert await holders(shards, PARTITION) == before
