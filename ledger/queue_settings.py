"""What operators have set of a queue, a row a queue. Who works by a setting reads it here: a new one holds soon."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ledger.audits import note
from ledger.connection import Connection


class QueueName(NamedTuple):
    """A queue, among all tenants' queues."""

    tenant: str
    queue: str


class QueueSettings(NamedTuple):
    """rate_per_s: how many runs a second its workers are meant to take; None: as many as they like."""

    rate_per_s: float | None = None


READ_QUEUE_SETTINGS = "SELECT rate_per_s FROM queue_settings WHERE tenant = %s AND queue = %s"


async def read_queue_settings(conn: Connection, tenant: str, queue: str) -> QueueSettings:
    """What is set of a queue; one that nobody has set anything of has the defaults."""
    row = await (await conn.execute(READ_QUEUE_SETTINGS, (tenant, queue))).fetchone()
    return QueueSettings(*row) if row else QueueSettings()


# Instants that were taken at the old rate do not hold the new one up: what has them is moved (ledger/spreads.py).
_RATE = "'ratePerSecond: ' || coalesce(rate_per_s::text, 'none')"
SET_RATE = f"""
WITH done AS (
    INSERT INTO queue_settings AS q (tenant, queue, rate_per_s, rate_version, set_by, set_at)
    VALUES (%(tenant)s, %(queue)s, %(rate_per_s)s, 1, %(by)s, coalesce(%(now)s::timestamptz, now()))
    ON CONFLICT (tenant, queue) DO UPDATE
    SET rate_per_s = excluded.rate_per_s, rate_version = q.rate_version + 1, spread_through = NULL,
        set_by = excluded.set_by, set_at = excluded.set_at
    WHERE q.rate_per_s IS DISTINCT FROM excluded.rate_per_s
    RETURNING tenant, queue, rate_per_s
), noted AS ({note("done", action="'queue_changed'", subject="queue", detail=_RATE)})
SELECT tenant FROM done
"""


async def set_rate(
    conn: Connection, tenant: str, queue: str, rate_per_s: float | None, by: str, *, now: datetime | None = None
) -> bool:
    """Give a queue a rate, or None for no limit. by: a token's id. False when that is its rate already."""
    asked = {"tenant": tenant, "queue": queue, "rate_per_s": rate_per_s, "by": by, "now": now}
    return (await conn.execute(SET_RATE, asked)).rowcount == 1


READ_RATE_VERSIONS = """
SELECT tenant, queue, rate_version AS version, rate_per_s IS NOT NULL AS is_set FROM queue_settings
"""


class RateVersion(NamedTuple):
    """version: another one after each change. is_set: whether the queue has a rate now."""

    version: int
    is_set: bool
