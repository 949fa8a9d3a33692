"""A queue gets a limit of live runs while some are leased: these are counted once, and home gives no permit before.

From when every shard knows of the limit nothing is leased without a permit. What was leased until then gets one here,
also beyond the limit: then nothing more is leased until enough of them have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.connection import Connection, Pool, ledger_errors, session
from ledger.fence import partitions_transaction
from ledger.partitions import held_here
from ledger.permits import Wish
from ledger.queue_settings import QueueName
from ledger.shards import Shards

HAVE_PARTITION_ALONE = "SELECT pg_advisory_xact_lock(fence_class(), %s)"
KNOWS_LIMIT = "SELECT EXISTS (SELECT FROM live_limits WHERE tenant = %(tenant)s AND queue = %(queue)s)"
FIND_LIVE = f"""
SELECT r.run_id, r.concurrency_key FROM runs r
WHERE r.tenant = %(tenant)s AND r.queue = %(queue)s AND r.state = 'leased' AND {held_here("r")}
"""
ADOPT_LEASES = """
INSERT INTO permits (run_id, tenant, queue, concurrency_key)
SELECT run_id, %(tenant)s, %(queue)s, key FROM unnest(%(run_ids)b::uuid[], %(keys)b::text[]) AS a (run_id, key)
ORDER BY run_id
ON CONFLICT (run_id) DO NOTHING
"""
SET_COUNTED = "UPDATE live_limits SET counted = true WHERE tenant = %(tenant)s AND queue = %(queue)s"


async def count_live(shards: Shards, queue: QueueName) -> bool:
    """Give all that is leased of a queue its permit, and let home give more. Safe to repeat.

    False when a shard has not been told of the limit, or it is gone. Raises LedgerUnavailable when one is away,
    NotOnThisShard when a partition is moving just now: try again.
    """
    await shards.look_again()
    live: list[Wish] = []
    for number, pool in shards.pools.items():
        own = [partition for partition in range(shards.partitions) if shards.number_of(partition) == number]
        found = await _count_shard(pool, own, queue)
        if found is None:
            return False
        live += found
    asked = {**queue._asdict(), "run_ids": [run.run_id for run in live], "keys": [run.concurrency_key for run in live]}
    with ledger_errors():
        async with shards.home.connection() as conn, conn.transaction():
            await conn.execute(ADOPT_LEASES, asked)
            return (await conn.execute(SET_COUNTED, queue._asdict())).rowcount == 1


async def _count_shard(pool: Pool, partitions: Sequence[int], queue: QueueName) -> list[Wish] | None:
    """The live runs of these partitions, all of which the shard has; None when it does not know of the limit."""
    async with session(pool) as conn:
        if not await _knows_limit(conn, queue):
            return None
    for partition in partitions:
        # A statement that began before the limit was there may still be leasing under the fence: it ends first.
        with ledger_errors(partition):
            async with pool.connection() as alone, alone.transaction():
                await alone.execute(HAVE_PARTITION_ALONE, (partition,))
    async with partitions_transaction(pool, partitions) as conn:
        if not await _knows_limit(conn, queue):
            return None
        return [Wish(*row) for row in await (await conn.execute(FIND_LIVE, queue._asdict())).fetchall()]


async def _knows_limit(conn: Connection, queue: QueueName) -> bool:
    row = await (await conn.execute(KNOWS_LIMIT, queue._asdict())).fetchone()
    return bool(row and row[0])
