"""Which shards there are, and which of them has which partition.

Written by `fencepostd init` and, when a shard is added or a partition moves, by `fencepostd shard`; read by every role.

The map is home's. Each shard knows the number of partitions and its own number, so that a wrong address is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from psycopg.errors import UndefinedTable

from ledger.confirmed_connection import patience
from ledger.connection import CONFIRM_COMMITS, Connection, Pool, session
from ledger.fence import API_SILENCE_S
from ledger.partitions import partition_count
from ledger.poolers import prove_session
from schemas.errors import LedgerMismatch, LedgerUnavailable
from schemas.ids import MAX_PARTITIONS

log = logging.getLogger(__name__)

HOME = 0
ASK_AGAIN_S = 0.5


@dataclass(frozen=True)
class ShardMap:
    """dsns: of each shard but home, by its number. placed: the shard of each partition.

    moving: partitions on their way between shards, which the one that has them may refuse for a moment.
    """

    dsns: Mapping[int, str]
    placed: Sequence[int]
    moving: frozenset[int] = frozenset()

    def held_by(self, shard: int) -> list[int]:
        """The partitions of a shard."""
        return [partition for partition, its_shard in enumerate(self.placed) if its_shard == shard]


def spread(partitions: int, dsns: Sequence[str]) -> ShardMap:
    """A new map of home and these, in turn: then doubling the shards moves half of each to one new shard, and nothing
    between old ones. Raises LedgerMismatch for numbers that cannot be."""
    shards = 1 + len(dsns)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise LedgerMismatch([f"partitions must be 1 to {MAX_PARTITIONS}, not {partitions}"])
    if shards > partitions:
        raise LedgerMismatch([f"{shards} shards are too many for {partitions} partitions"])
    return ShardMap(dict(enumerate(dsns, HOME + 1)), [partition % shards for partition in range(partitions)])


READ_SHARDS = "SELECT shard, dsn FROM shards ORDER BY shard"
READ_PLACEMENTS = "SELECT shard FROM placements ORDER BY partition"
READ_MOVING = "SELECT partition FROM moves WHERE state NOT IN ('done', 'returned')"


async def prove_home(conn: Connection) -> int:
    """How many partitions there are. Raises LedgerMismatch when this is another shard, or was never initialised."""
    count = await partition_count(conn)
    await prove_shard(conn, HOME, count)
    return count


async def read_shard_map(home: Connection) -> ShardMap:
    """Raises LedgerMismatch when this is not home, or was never initialised."""
    count = await prove_home(home)
    shards: dict[int, str] = dict(await (await home.execute(READ_SHARDS)).fetchall())
    placed = [shard for (shard,) in await (await home.execute(READ_PLACEMENTS)).fetchall()]
    if len(placed) != count:
        raise LedgerMismatch([f"the map has {len(placed)} partitions, and the ledger {count}"])
    del shards[HOME]
    moving = frozenset(partition for (partition,) in await (await home.execute(READ_MOVING)).fetchall())
    return ShardMap(shards, placed, moving)


# With CONFIRM_COMMITS: who only reads would otherwise never notice that another server has become home's primary.
READ_CHANGES = f"""
SELECT ARRAY({READ_PLACEMENTS}), ARRAY({READ_MOVING}), (SELECT count(*) FROM shards), ({CONFIRM_COMMITS})
"""


async def read_changes(home: Connection, known: ShardMap) -> ShardMap:
    """The map as it is now, in one statement unless there are shards that were not known. Raises LedgerMismatch."""
    with patience(home, API_SILENCE_S):  # callers of the API may wait for it
        row = await (await home.execute(READ_CHANGES)).fetchone()
    assert row is not None
    placed, moving, shards, _ = row
    if shards != 1 + len(known.dsns):
        return await read_shard_map(home)
    return ShardMap(known.dsns, placed, frozenset(moving))


async def await_shard_map(home: Pool) -> ShardMap:
    """The map, once home answers: no role can begin without it. Raises LedgerMismatch."""
    while True:
        try:
            async with session(home) as conn:
                return await read_shard_map(conn)
        except LedgerUnavailable as error:
            log.warning("waiting for the ledger: %s", error)
            await asyncio.sleep(ASK_AGAIN_S)


READ_OWN_NUMBER = "SELECT value, pg_backend_pid() FROM settings WHERE key = 'shard'"


async def prove_shard(conn: Connection, shard: int, partitions: int) -> None:
    """Raises LedgerMismatch unless this database is that shard of a ledger with so many partitions, and the session
    is one of ours alone."""
    where = f"{conn.info.host}:{conn.info.port}/{conn.info.dbname}"
    with suppress(UndefinedTable):
        row = await (await conn.execute(READ_OWN_NUMBER)).fetchone()
        if row is not None and int(row[0]) != shard:
            raise LedgerMismatch([f"{where} is shard {row[0]}, not {shard}"])
        if row is not None:
            if (count := await partition_count(conn)) != partitions:
                raise LedgerMismatch([f"{where} is of a ledger with {count} partitions, not {partitions}"])
            await prove_session(conn, row[1])
            return
    raise LedgerMismatch([f"{where} is no shard: run `fencepostd init`"])


async def plan_shards(home: Connection, partitions: int, dsns: Sequence[str]) -> tuple[ShardMap, bool]:
    """The map as it is to be, and whether it is there already. dsns: of shards 1, 2, …; none for those that are there.

    Raises LedgerMismatch for other numbers than there are: partitions stay where they are.
    """
    row = await (await home.execute("SELECT EXISTS (SELECT FROM placements)")).fetchone()
    if not (row and row[0]):
        return spread(partitions, dsns), False
    there = await read_shard_map(home)
    if partitions != len(there.placed):
        raise LedgerMismatch([f"the ledger was initialised with {len(there.placed)} partitions, not {partitions}"])
    if dsns and len(dsns) != len(there.dsns):
        counts = f"of shards there are {1 + len(there.dsns)}, not {1 + len(dsns)}"
        raise LedgerMismatch([f"{counts}: partitions stay where the first `fencepostd init` has put them"])
    return (replace(there, dsns=dict(enumerate(dsns, HOME + 1))) if dsns else there), True


INIT_SETTINGS = """
INSERT INTO settings (key, value) VALUES ('partitions', %s), ('shard', %s) ON CONFLICT DO NOTHING
"""
INIT_PARTITIONS = "INSERT INTO partitions (partition) SELECT unnest(%s::int[]) ON CONFLICT DO NOTHING"
READ_PARTITIONS = "SELECT partition FROM partitions ORDER BY partition"


async def init_shard(conn: Connection, found: ShardMap, shard: int) -> None:
    """Make this database that shard, for ever. Safe to repeat. Raises LedgerMismatch when it is something else already.

    Others than home first: home's has the map, by which roles find them.
    """
    partitions, held = len(found.placed), found.held_by(shard)
    async with conn.transaction():
        is_new = (await conn.execute(INIT_SETTINGS, (str(partitions), str(shard)))).rowcount > 0
        if (count := await partition_count(conn)) != partitions:
            raise LedgerMismatch([f"the ledger was initialised with {count} partitions, not {partitions}"])
        await prove_shard(conn, shard, partitions)
        if is_new:  # later on a partition that is not here has moved, or is just being moved
            await conn.execute(INIT_PARTITIONS, (held,))
        there = [partition for (partition,) in await (await conn.execute(READ_PARTITIONS)).fetchall()]
        if not set(there) ^ set(held) <= found.moving:
            raise LedgerMismatch([f"shard {shard} has partitions of another placement: give it an empty database"])
        if shard == HOME:
            await _write_map(conn, found)


async def init_alone(conn: Connection, partitions: int) -> None:
    """Make this database a whole ledger. Raises LedgerMismatch when it is something else already."""
    await init_shard(conn, spread(partitions, []), HOME)


READ_VERSION = "SELECT array_agg(name ORDER BY name) FROM schema_migrations"
# Whoever changes one of them writes to home first, and reads the map after that: see ledger/shards.py: Shards.tell_all.
LOCK_TOLD_TO_ALL = "LOCK TABLE pauses, queue_settings, tenant_limits, live_limits IN SHARE MODE"
TOLD_TO_ALL = {
    "pauses": "tenant, queue, paused_at, resumed_at, by",
    "queue_settings": "tenant, queue, rate_per_s, rate_version, set_at, set_by",
    "tenant_limits": "tenant, leases_per_s, lease_burst, max_pending, weight, set_at, set_by",
    "live_limits": "tenant, queue, max_live, max_live_per_key, set_at, set_by",
}
ADD_SHARD = "INSERT INTO shards (shard, dsn) VALUES (%s, %s)"


async def add_shard(home: Connection, dsn: str, conn: Connection) -> int:
    """Make a migrated, empty database the next shard, which has no partition yet; returns its number.

    It gets what is told to all shards while nobody can tell anything, and is on the map from the same instant on. Safe
    to repeat. Raises LedgerMismatch when the database is something else already, or of another version.
    """
    found = await read_shard_map(home)
    number, partitions = await _number_for(conn, found, dsn), len(found.placed)
    if number in found.dsns:
        return number
    versions = [await (await each.execute(READ_VERSION)).fetchone() for each in (home, conn)]
    if versions[0] != versions[1]:
        raise LedgerMismatch(["home is of another version: run `fencepostd init` first"])
    await init_shard(conn, ShardMap({**found.dsns, number: dsn}, found.placed), number)
    async with home.transaction():
        await home.execute(LOCK_TOLD_TO_ALL)
        async with conn.transaction():
            for relation, columns in TOLD_TO_ALL.items():
                rows = await (await home.execute(f"SELECT {columns} FROM {relation}".encode())).fetchall()
                await conn.execute(f"DELETE FROM {relation}".encode())
                places = ", ".join(["%s"] * len(columns.split(",")))
                insert = f"INSERT INTO {relation} ({columns}) VALUES ({places})"
                await conn.cursor().executemany(insert.encode(), rows)
        await home.execute(ADD_SHARD, (number, dsn))
    await prove_shard(conn, number, partitions)
    return number


async def _number_for(conn: Connection, found: ShardMap, dsn: str) -> int:
    """The number that the database has, or is to have. Raises LedgerMismatch when it cannot be a new shard."""
    following = max(found.dsns, default=HOME) + 1
    row = await (await conn.execute(READ_OWN_NUMBER)).fetchone()
    if row is None:
        return following
    own = int(row[0])
    if own == following or found.dsns.get(own) == dsn:
        return own
    where = f"{conn.info.host}:{conn.info.port}/{conn.info.dbname}"
    raise LedgerMismatch([f"{where} is shard {own} already: give a new shard an empty database"])


WRITE_SHARDS = """
INSERT INTO shards (shard, dsn) SELECT * FROM unnest(%s::int[], %s::text[])
ON CONFLICT (shard) DO UPDATE SET dsn = excluded.dsn
"""
WRITE_PLACEMENTS = """
INSERT INTO placements (partition, shard)
SELECT ordinality - 1, shard FROM unnest(%s::int[]) WITH ORDINALITY AS p (shard)
ON CONFLICT DO NOTHING
"""


async def _write_map(home: Connection, found: ShardMap) -> None:
    """Addresses may change, places do not."""
    await home.execute(WRITE_SHARDS, ([HOME, *found.dsns], [None, *found.dsns.values()]))
    await home.execute(WRITE_PLACEMENTS, (list(found.placed),))
