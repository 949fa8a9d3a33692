"""The partitions of this shard: fixed once, checked at every start, watched by operators."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from psycopg.errors import UndefinedTable

from ledger.connection import Connection
from ledger.fence import Fence, OwnerTransaction
from schemas.errors import LedgerMismatch


async def partition_count(conn: Connection) -> int:
    """P, of all shards together. Raises LedgerMismatch when the ledger was never initialised."""
    with suppress(UndefinedTable):
        row = await (await conn.execute("SELECT value FROM settings WHERE key = 'partitions'")).fetchone()
        if row is not None:
            return int(row[0])
    raise LedgerMismatch(["the ledger is not initialised: run `fencepostd init`"])


def held_here(row: str) -> str:
    """SQL for whether a row's partition is on this shard. There are others while a partition moves to it, or from it.

    The array is made once a statement. IS TRUE keeps the planner from beginning with an index of partitions.
    """
    return f"({row}.partition = ANY (ARRAY(SELECT partition FROM partitions))) IS TRUE"


class PartitionStatus(NamedTuple):
    partition: int
    epoch: int
    owner: str | None
    owner_since: datetime
    consumed_offset: int
    decided_through: datetime


LIST_PARTITIONS = """
SELECT partition, epoch, owner, owner_since, consumed_offset, decided_through FROM partitions ORDER BY partition
"""


async def list_partitions(conn: Connection) -> list[PartitionStatus]:
    """Every partition, in order."""
    return [PartitionStatus(*row) for row in await (await conn.execute(LIST_PARTITIONS)).fetchall()]


OWNERS_KEEP_UP = """
SELECT coalesce(bool_and(owner IS NOT NULL AND decided_through > since) FILTER (WHERE partition IS NOT NULL), true)
       AND coalesce((SELECT at > since FROM outbox ORDER BY id LIMIT 1), true)
FROM (SELECT coalesce(%(now)s::timestamptz, now()) - %(lag_s)s * interval '1 second') AS seen (since)
     LEFT JOIN partitions ON true
GROUP BY since
"""


async def owners_keep_up(conn: Connection, lag_s: float, *, now: datetime | None = None) -> bool:
    """Whether every partition has an owner who is alive and hears of what happens, late by no more than that.

    A shard without partitions has nobody to wait for.
    """
    row = await (await conn.execute(OWNERS_KEEP_UP, {"lag_s": lag_s, "now": now})).fetchone()
    return bool(row and row[0])


class Tenure(NamedTuple):
    """Who took a partition over when, under which epoch. decided_through: the last sign of the owner before."""

    epoch: int
    owner: str
    at: datetime
    decided_through: datetime


LIST_TAKEOVERS = """
SELECT epoch, owner, at, decided_through FROM takeovers WHERE partition = %(partition)s
  AND epoch >= coalesce((SELECT max(epoch) FROM takeovers WHERE partition = %(partition)s AND at <= %(since)s), 0)
ORDER BY epoch
"""


async def list_takeovers(conn: Connection, partition: int, since: datetime) -> list[Tenure]:
    """Who has owned a partition since an instant, beginning with the owner of that instant."""
    asked = {"partition": partition, "since": since}
    return [Tenure(*row) for row in await (await conn.execute(LIST_TAKEOVERS, asked)).fetchall()]


# Epochs without a takeover are jumps: after a backup was restored, or for a new commands topic.
IS_TOLD_SINCE = """
SELECT count(*) = %(epoch)s - %(since)s + 1 AND bool_or(epoch = %(since)s AND owner = %(owner)s)
FROM takeovers WHERE partition = %(partition)s AND epoch BETWEEN %(since)s AND %(epoch)s
"""


async def is_told_since(conn: Connection, fence: Fence, epoch: int, owner: str) -> bool:
    """Whether events tell all that has become of a partition's jobs since an earlier epoch of that owner's.

    So it is when this ledger knows that owner and everyone since, up to the fence's. False too when it knew them, but
    has forgotten them.
    """
    asked = {"partition": fence.partition, "epoch": fence.epoch, "since": epoch, "owner": owner}
    row = await (await conn.execute(IS_TOLD_SINCE, asked)).fetchone()
    return bool(row and row[0])


LEAVE_UNTOLD = "DELETE FROM takeovers WHERE partition = %s AND epoch = %s"


async def leave_untold(tx: OwnerTransaction) -> None:
    """No event tells what this owner does: as if it were not known who had the partition meanwhile."""
    await tx.conn.execute(LEAVE_UNTOLD, (tx.fence.partition, tx.fence.epoch))


# The last ones stay, however old: whoever has owned a partition for months is known when it comes back.
FORGET_TAKEOVERS = """
DELETE FROM takeovers t USING partitions p
WHERE t.partition = p.partition AND t.at < now() - interval '30 days' AND t.epoch <= p.epoch - 100
"""


async def forget_takeovers(conn: Connection) -> None:
    """Drop what nobody asks about any more."""
    await conn.execute(FORGET_TAKEOVERS)


ADVANCE_OFFSET = "UPDATE partitions SET consumed_offset = %s WHERE partition = %s"


async def advance_offset(tx: OwnerTransaction, next_offset: int) -> None:
    """The commands up to next_offset (exclusive) take effect with this transaction."""
    await tx.conn.execute(ADVANCE_OFFSET, (next_offset, tx.fence.partition))


LOCK_ALL_PARTITIONS = """
SELECT pg_advisory_xact_lock(fence_class(), p) FROM (SELECT partition FROM partitions ORDER BY partition) AS all_of (p)
"""
RESET_OFFSETS = """
UPDATE partitions SET consumed_offset = 0, epoch = epoch + 1, owner = NULL, owner_since = now()
WHERE partition = ANY(%s) AND consumed_offset > 0
"""


FORGET_ALL_AHEAD = "DELETE FROM commands_ahead WHERE partition = ANY(%s)"


async def reset_offsets(conn: Connection, partitions: Sequence[int]) -> int:
    """The commands topic of these is a new one: read it from its beginning. Returns how many had read an older one.

    The epochs grow, so that no owner goes on with offsets of the topic that is gone; as in a takeover, once every
    transaction under the old epochs has ended.
    """
    async with conn.transaction():
        await conn.execute(LOCK_ALL_PARTITIONS)
        await conn.execute(FORGET_ALL_AHEAD, (list(partitions),))
        return (await conn.execute(RESET_OFFSETS, (list(partitions),))).rowcount
