"""Tenants whose commands were applied before others' that are in front of them in a partition's topic.

Everything below the partition's consumed offset is applied; of a tenant with a row here all below that of its row.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledger.connection import Connection, Pool, session
from ledger.fence import OwnerTransaction

READ_AHEAD = "SELECT tenant, next_offset FROM commands_ahead WHERE partition = %s"


async def read_ahead(pool: Pool, partition: int) -> dict[str, int]:
    """By tenant, the offset below which its commands are applied. For the owner. Raises LedgerUnavailable."""
    async with session(pool) as conn:
        return await offsets_ahead(conn, partition)


async def offsets_ahead(conn: Connection, partition: int) -> dict[str, int]:
    """The same, in a transaction."""
    return dict(await (await conn.execute(READ_AHEAD, (partition,))).fetchall())


NOTE_AHEAD = """
INSERT INTO commands_ahead AS known (partition, tenant, next_offset)
SELECT %s::int, * FROM unnest(%b::text[], %b::bigint[])
ON CONFLICT (partition, tenant) DO UPDATE SET next_offset = greatest(known.next_offset, excluded.next_offset)
"""


async def note_ahead(tx: OwnerTransaction, ahead: Mapping[str, int]) -> None:
    """The commands of these tenants up to the offset (exclusive) take effect with this transaction."""
    await tx.conn.execute(NOTE_AHEAD, (tx.fence.partition, list(ahead), list(ahead.values())))


FORGET_AHEAD = "DELETE FROM commands_ahead WHERE partition = %s AND next_offset <= %s"


async def forget_ahead(tx: OwnerTransaction, consumed_offset: int) -> None:
    """Nobody is ahead any more whom the partition has come up with."""
    await tx.conn.execute(FORGET_AHEAD, (tx.fence.partition, consumed_offset))
