"""How many runs tenants have that wait or are leased: for those who have a limit of that."""

from __future__ import annotations

from collections.abc import Mapping

from ledger.connection import Connection

# By an index alone, and no further than the limit. Copies of a partition that is just moving here are among them.
COUNT_PENDING = """
SELECT asked.tenant, (SELECT count(*) FROM (SELECT FROM runs r WHERE r.tenant = asked.tenant LIMIT asked.most) AS r)
FROM unnest(%b::text[], %b::int[]) AS asked (tenant, most)
"""


async def count_pending(conn: Connection, most: Mapping[str, int]) -> dict[str, int]:
    """Of each tenant on this shard, but no more than so many, which is as far as is counted."""
    rows = await (await conn.execute(COUNT_PENDING, (list(most), list(most.values())))).fetchall()
    return dict(rows)
