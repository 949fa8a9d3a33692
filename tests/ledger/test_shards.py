"""Which shard has what: written once, found again by every role, and never taken for another."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest

from ledger.connection import Pool, session
from ledger.fence import take_over
from ledger.partitions import list_partitions
from ledger.pauses import list_pauses, pause_queue
from ledger.shard_map import init_shard, plan_shards, prove_home, read_shard_map, spread
from ledger.shards import Shards, open_shards
from schemas.errors import LedgerMismatch, LedgerUnavailable
from schemas.ids import new_id, partition_of_job, partition_of_run, run_id_for
from tests.ledger_fixtures import PARTITIONS, Database, all_back

ODD = list(range(1, PARTITIONS, 2))


async def connect(dsn: str) -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True)


def test_partitions_are_spread_evenly_and_doubling_moves_none_between_old_shards() -> None:
    two, four = spread(16, ["b"]), spread(16, ["b", "c", "d"])
    assert Counter(four.placed) == {0: 4, 1: 4, 2: 4, 3: 4}
    moves = {(old, new) for old, new in zip(two.placed, four.placed, strict=True) if old != new}
    assert moves == {(0, 2), (1, 3)}


def test_more_shards_than_partitions_are_refused() -> None:
    with pytest.raises(LedgerMismatch, match="3 shards are too many for 2 partitions"):
        spread(2, ["b", "c"])


async def test_each_shard_has_its_partitions_and_refuses_the_others(two_ledgers: list[Database]) -> None:
    async with open_shards(two_ledgers[0].dsn) as shards:
        held = await shards.ask_all(list_partitions)
        assert [[status.partition for status in part] for part in held] == [list(range(0, PARTITIONS, 2)), ODD]
        for partition in range(PARTITIONS):
            assert (await take_over(shards.of(partition), partition, "owner")).fence.epoch == 1
        with pytest.raises(LedgerMismatch, match="partition 1 is not in the ledger"):
            await take_over(shards.home, 1, "owner")


async def test_a_job_and_its_runs_are_on_the_shard_of_their_partition(two_ledgers: list[Database]) -> None:
    async with open_shards(two_ledgers[0].dsn) as shards:
        for _ in range(20):
            job_id = new_id()
            partition = partition_of_job(job_id, PARTITIONS)
            run_id = run_id_for(job_id, datetime.now(UTC), partition)
            assert shards.of_job(job_id) is shards.of_run(run_id) is shards.pools[partition % 2]
        nobody = run_id_for(new_id(), datetime.now(UTC), PARTITIONS)
        assert partition_of_run(nobody) == PARTITIONS
        assert shards.of_run(nobody) is shards.home


async def test_initialising_again_changes_nothing_and_other_shards_are_refused(two_ledgers: list[Database]) -> None:
    home, other = (database.dsn for database in two_ledgers)
    async with await connect(home) as conn:
        for dsns in ([], [other]):
            found, is_there = await plan_shards(conn, PARTITIONS, dsns)
            assert (found, is_there) == (spread(PARTITIONS, [other]), True)
            await init_shard(conn, found, 0)
        with pytest.raises(LedgerMismatch, match="there are 2, not 3: partitions stay"):
            await plan_shards(conn, PARTITIONS, [other, "dbname=third"])
        with pytest.raises(LedgerMismatch, match="16 partitions, not 8"):
            await plan_shards(conn, 8, [other])
        assert await read_shard_map(conn) == spread(PARTITIONS, [other])


async def test_a_ledger_of_one_shard_does_not_become_one_of_two(ledger_pool: Pool, another_ledger_dsn: str) -> None:
    async with session(ledger_pool) as conn:
        with pytest.raises(LedgerMismatch, match="there are 1, not 2"):
            await plan_shards(conn, PARTITIONS, [another_ledger_dsn])


async def test_a_database_that_is_a_shard_already_does_not_become_another(two_ledgers: list[Database]) -> None:
    async with await connect(two_ledgers[1].dsn) as conn:
        with pytest.raises(LedgerMismatch, match="is shard 1, not 2"):
            await init_shard(conn, spread(PARTITIONS, ["b", "c"]), 2)
        with pytest.raises(LedgerMismatch, match="is shard 1, not 0"):
            await prove_home(conn)
        with pytest.raises(LedgerMismatch, match="another placement"):
            await init_shard(conn, spread(PARTITIONS, ["b", "c", "d"]), 1)


async def test_a_role_refuses_to_start_with_an_address_that_leads_elsewhere(two_ledgers: list[Database]) -> None:
    home, other = two_ledgers
    with pytest.raises(LedgerMismatch, match="is shard 1, not 0"):
        async with open_shards(other.dsn):
            pass
    async with await connect(home.dsn) as conn:
        await conn.execute("UPDATE shards SET dsn = %s WHERE shard = 1", (home.dsn,))
    with pytest.raises(LedgerMismatch, match="is shard 0, not 1"):
        async with open_shards(home.dsn):
            pass


async def test_an_address_that_leads_elsewhere_later_gives_no_session(
    two_ledgers: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a name is given to another server while the role runs."""
    monkeypatch.setattr("ledger.connection.PATIENCE_S", 0.5)
    home, other = two_ledgers
    async with await connect(other.dsn) as conn:
        await conn.execute("UPDATE settings SET value = '2' WHERE key = 'shard'")
    other.go_away()
    async with open_shards(home.dsn) as shards:
        other.come_back()
        with pytest.raises(LedgerUnavailable):
            async with session(shards.pools[1]):
                pass


async def test_what_is_told_to_all_is_on_each_and_a_shard_that_was_away_gets_it_by_the_same_call(
    two_ledgers: list[Database],
) -> None:
    async with open_shards(two_ledgers[0].dsn) as shards:
        await shards.ask_all(list_partitions)
        two_ledgers[1].go_away()
        with pytest.raises(LedgerUnavailable, match="shard 1 is away"):
            await shards.tell_all(lambda conn: pause_queue(conn, "acme", "mail", "me"))
        assert await pauses(shards) == {0: 1, 1: None}
        two_ledgers[1].come_back()
        await all_back(shards)
        await shards.tell_all(lambda conn: pause_queue(conn, "acme", "mail", "me"))
        assert await pauses(shards) == {0: 1, 1: 1}


async def test_nothing_is_told_to_others_while_home_is_away(two_ledgers: list[Database]) -> None:
    async with open_shards(two_ledgers[0].dsn) as shards:
        await shards.ask_all(list_partitions)
        two_ledgers[0].go_away()
        with pytest.raises(LedgerUnavailable):
            await shards.tell_all(lambda conn: pause_queue(conn, "acme", "mail", "me"))
        assert await pauses(shards) == {0: None, 1: 0}
        two_ledgers[0].come_back()


async def pauses(shards: Shards) -> dict[int, int | None]:
    """How many there are on each shard; None where it is away."""
    answers = await shards.ask_each(lambda conn: list_pauses(conn, "acme"))
    return {shard: None if isinstance(each, LedgerUnavailable) else len(each) for shard, each in answers.items()}


async def test_things_about_runs_are_split_by_shard_and_keep_their_order(two_ledgers: list[Database]) -> None:
    class Thing:
        def __init__(self, partition: int) -> None:
            self.run_id = run_id_for(uuid4(), datetime.now(UTC), partition)

    things = [Thing(partition) for partition in (3, 2, 1, 0, 5)]
    async with open_shards(two_ledgers[0].dsn) as shards:
        assert shards.split(things) == {1: [things[0], things[2], things[4]], 0: [things[1], things[3]]}
        assert shards.split([]) == {}
