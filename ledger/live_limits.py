"""How many runs of a queue, and of one concurrency key in it, may be live (leased) at once: what operators have set.

Told to every shard, home first: the statement that leases a run of such a queue wants a permit for it from then on, and
permits are home's to give (ledger/permits.py). A queue without a row has no limit, and costs nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from ledger.audits import note
from ledger.connection import Connection
from ledger.queue_settings import QueueName

# Needs `runs r`. As for pauses: the array is made once a statement.
NOT_LIMITED = """
    (NOT (SELECT EXISTS (SELECT FROM live_limits))
     OR r.tenant || ' ' || r.queue <> ALL (ARRAY(SELECT tenant || ' ' || queue FROM live_limits)))
"""


class LiveLimit(NamedTuple):
    """max_live: of all of the queue's runs; max_live_per_key: of those with one concurrency key. None: any number.

    is_counted: home's word. Until all that was leased before has its permit none is given.
    """

    max_live: int | None = None
    max_live_per_key: int | None = None
    is_counted: bool = False


READ_LIVE_LIMITS = "SELECT tenant, queue, max_live, max_live_per_key, counted FROM live_limits"


async def read_live_limits(conn: Connection) -> dict[QueueName, LiveLimit]:
    """Every queue that has a limit."""
    rows = await (await conn.execute(READ_LIVE_LIMITS)).fetchall()
    return {QueueName(tenant, queue): LiveLimit(*limit) for tenant, queue, *limit in rows}


READ_LIVE_LIMIT = f"{READ_LIVE_LIMITS} WHERE tenant = %s AND queue = %s"


async def read_live_limit(conn: Connection, queue: QueueName) -> LiveLimit | None:
    """None: the queue has no limit."""
    row = await (await conn.execute(READ_LIVE_LIMIT, queue)).fetchone()
    return LiveLimit(*row[2:]) if row else None


def _changed(limit: str) -> str:
    return f"CASE WHEN '{limit}' = ANY (%(named)s) THEN excluded.{limit} ELSE l.{limit} END"


_WORDS = (
    "'maxLiveRuns: ' || coalesce(max_live::text, 'none') || ', maxLiveRunsPerKey: ' || "
    "coalesce(max_live_per_key::text, 'none')"
)
SET_LIVE_LIMIT = f"""
WITH done AS (
    INSERT INTO live_limits AS l (tenant, queue, max_live, max_live_per_key, set_by, set_at)
    VALUES (%(tenant)s, %(queue)s, %(max_live)s, %(max_live_per_key)s, %(by)s, coalesce(%(now)s::timestamptz, now()))
    ON CONFLICT (tenant, queue) DO UPDATE
    SET max_live = {_changed("max_live")}, max_live_per_key = {_changed("max_live_per_key")},
        set_by = excluded.set_by, set_at = excluded.set_at
    RETURNING tenant, queue, max_live, max_live_per_key
), noted AS ({note("done", action="'queue_changed'", subject="queue", detail=_WORDS)})
SELECT tenant FROM done
"""
DROP_NO_LIMIT = """
DELETE FROM live_limits
WHERE tenant = %(tenant)s AND queue = %(queue)s AND max_live IS NULL AND max_live_per_key IS NULL
"""


async def set_live_limit(
    conn: Connection, queue: QueueName, changes: Mapping[str, int | None], by: str, *, now: datetime | None = None
) -> None:
    """Change the limits that are named, `max_live` and `max_live_per_key`; the other stays. by: a token's id.

    Nothing that is leased is touched. In a queue that had no limit nothing is leased until `count_live` was heard.
    """
    asked = {"max_live": None, "max_live_per_key": None, **changes, "named": list(changes), "by": by, "now": now}
    await conn.execute(SET_LIVE_LIMIT, {**asked, **queue._asdict()})
    await conn.execute(DROP_NO_LIMIT, queue._asdict())
