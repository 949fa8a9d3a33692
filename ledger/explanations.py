"""Who owns a run's partition: for telling why the run waits, beside pauses and takeovers."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ledger.connection import Connection
from schemas.errors import NotOnThisShard


class Ownership(NamedTuple):
    """Who owns a partition now, since when; owner None: nobody since then. now: the ledger's clock."""

    owner: str | None
    owner_since: datetime
    decided_through: datetime
    now: datetime


READ_OWNERSHIP = """
SELECT p.owner, p.owner_since, p.decided_through, t.now
FROM partitions p, (SELECT clock_timestamp() AS now) AS t WHERE p.partition = %s
"""


async def read_ownership(conn: Connection, partition: int) -> Ownership:
    """The partition as it is now. Raises NotOnThisShard."""
    row = await (await conn.execute(READ_OWNERSHIP, (partition,))).fetchone()
    if row is None:
        raise NotOnThisShard([partition])
    return Ownership(*row)
