"""The schedules of a tenant that fire: what its load of the next days is computed from."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ledger.connection import Connection
from ledger.partitions import held_here


class LiveSchedule(NamedTuple):
    """schedule: its JSON form as text. next_fire_at: the pending occurrence."""

    job_id: UUID
    queue: str
    schedule: str
    created_at: datetime
    next_fire_at: datetime


READ_LIVE_SCHEDULES = f"""
SELECT job_id, queue, (definition::jsonb -> 'schedule')::text, created_at, next_fire_at
FROM jobs j
WHERE tenant = %(tenant)s AND state = 'active' AND next_fire_at IS NOT NULL
  AND (%(queues)b::text[] IS NULL OR queue = ANY (%(queues)b::text[]))
  AND job_id > %(after)s AND {held_here("j")}
ORDER BY job_id
LIMIT %(limit)s
"""


async def read_live_schedules(
    conn: Connection, tenant: str, *, queues: list[str] | None = None, after: UUID | None = None, limit: int
) -> list[LiveSchedule]:
    """A page of the active jobs that have an occurrence left, in the order of their ids. queues: only of these."""
    asked = {"tenant": tenant, "queues": queues, "after": after or UUID(int=0), "limit": limit}
    rows = await (await conn.execute(READ_LIVE_SCHEDULES, asked)).fetchall()
    return [LiveSchedule(*row) for row in rows]
