"""Which API processes there are: what a tenant may lease is shared out among them. At home alone, a row a process."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from ledger.connection import Connection

LIVE_S = 3.0  # since its last word


class Peers(NamedTuple):
    """others: how many live beside this one. knew_us: whether they counted this one before it spoke now."""

    others: int
    knew_us: bool


# What it counts is as before the insert.
ANNOUNCE_INSTANCE = """
WITH announced AS (
    INSERT INTO api_instances (instance, seen_at) VALUES (%(instance)s, now())
    ON CONFLICT (instance) DO UPDATE SET seen_at = now()
)
SELECT count(*) FILTER (WHERE instance <> %(instance)s), count(*) FILTER (WHERE instance = %(instance)s) > 0
FROM api_instances WHERE seen_at > now() - %(live_s)s * interval '1 second'
"""


async def announce_instance(conn: Connection, instance: UUID) -> Peers:
    """Say that this process lives, which counts for LIVE_S."""
    asked = {"instance": instance, "live_s": LIVE_S}
    row = await (await conn.execute(ANNOUNCE_INSTANCE, asked)).fetchone()
    assert row is not None
    return Peers(*row)


FORGET_INSTANCE = """
DELETE FROM api_instances WHERE instance = %(instance)s OR seen_at < now() - interval '1 hour'
"""


async def forget_instance(conn: Connection, instance: UUID) -> None:
    """This process ends; those that were killed long ago go too."""
    await conn.execute(FORGET_INSTANCE, {"instance": instance})
