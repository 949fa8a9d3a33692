"""Pauses of queues and of whole tenants: nothing of theirs is leased while one is open.

Waiting runs stay where they are, and go on from there when the pause ends. One row a pause, kept after its end for
telling why a run waited. What a single job's pause does is in ledger/jobs.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ledger.audits import note
from ledger.connection import Connection
from ledger.partitions import held_here

# Needs a row `r` with tenant and queue, names without a space. The arrays are made once a statement; with look-ups row
# by row instead the planner would think that a row costs much.
NOT_PAUSED = """
    (NOT (SELECT EXISTS (SELECT FROM pauses WHERE resumed_at IS NULL))
     OR (r.tenant <> ALL (ARRAY(SELECT tenant FROM pauses WHERE queue IS NULL AND resumed_at IS NULL))
         AND r.tenant || ' ' || r.queue <> ALL (ARRAY(
             SELECT tenant || ' ' || queue FROM pauses WHERE queue IS NOT NULL AND resumed_at IS NULL))))
"""


class Pause(NamedTuple):
    """queue: None for the whole tenant. resumed_at: None while it is open. by: who asked for it, a token's id."""

    tenant: str
    queue: str | None
    paused_at: datetime
    resumed_at: datetime | None
    by: str


# Of an action on what a row of `done` names: a queue, or a whole tenant.
_SUBJECT = "coalesce(queue, tenant)"


def _action(verb: str) -> str:
    return f"CASE WHEN queue IS NULL THEN 'tenant_{verb}' ELSE 'queue_{verb}' END"


OPEN_PAUSE = f"""
WITH done AS (
    INSERT INTO pauses (tenant, queue, by, paused_at)
    VALUES (%(tenant)s, %(queue)s, %(by)s, coalesce(%(now)s::timestamptz, now()))
    ON CONFLICT (tenant, queue) WHERE resumed_at IS NULL DO NOTHING
    RETURNING tenant, queue
), noted AS ({note("done", action=_action("paused"), subject=_SUBJECT)})
SELECT tenant FROM done
"""


async def pause_queue(conn: Connection, tenant: str, queue: str, by: str, *, now: datetime | None = None) -> bool:
    """Lease nothing of a queue any more. False when it is paused already."""
    return await _change(conn, OPEN_PAUSE, tenant, queue, by, now)


async def pause_tenant(conn: Connection, tenant: str, by: str, *, now: datetime | None = None) -> bool:
    """Lease nothing of a tenant any more. False when it is paused already."""
    return await _change(conn, OPEN_PAUSE, tenant, None, by, now)


CLOSE_PAUSE = f"""
WITH done AS (
    UPDATE pauses SET resumed_at = coalesce(%(now)s::timestamptz, now())
    WHERE tenant = %(tenant)s AND queue IS NOT DISTINCT FROM %(queue)s AND resumed_at IS NULL
    RETURNING tenant, queue
), noted AS ({note("done", action=_action("resumed"), subject=_SUBJECT)})
SELECT tenant FROM done
"""


async def resume_queue(conn: Connection, tenant: str, queue: str, by: str, *, now: datetime | None = None) -> bool:
    """End the queue's own pause (one of its tenant goes on). False when there is none."""
    return await _change(conn, CLOSE_PAUSE, tenant, queue, by, now)


async def resume_tenant(conn: Connection, tenant: str, by: str, *, now: datetime | None = None) -> bool:
    """End the tenant's own pause (those of single queues go on). False when there is none."""
    return await _change(conn, CLOSE_PAUSE, tenant, None, by, now)


async def _change(
    conn: Connection, statement: str, tenant: str, queue: str | None, by: str, now: datetime | None
) -> bool:
    asked = {"tenant": tenant, "queue": queue, "by": by, "now": now}
    return (await conn.execute(statement, asked)).rowcount == 1


LIST_PAUSES = """
SELECT tenant, queue, paused_at, resumed_at, by FROM pauses
WHERE tenant = %(tenant)s AND (%(queue)s::text IS NULL OR queue IS NULL OR queue = %(queue)s)
  AND (resumed_at IS NULL OR resumed_at > %(since)s)
ORDER BY paused_at
"""


async def list_pauses(
    conn: Connection, tenant: str, *, queue: str | None = None, since: datetime | None = None
) -> list[Pause]:
    """A tenant's pauses, oldest first: the open ones, and with `since` those that ended after it.

    queue: only those that stop this queue, its tenant's own among them.
    """
    asked = {"tenant": tenant, "queue": queue, "since": since}
    return [Pause(*row) for row in await (await conn.execute(LIST_PAUSES, asked)).fetchall()]


FORGET_PAUSES = "DELETE FROM pauses WHERE resumed_at < now() - interval '30 days'"


async def forget_pauses(conn: Connection) -> None:
    """Drop ended ones that nobody asks about any more."""
    await conn.execute(FORGET_PAUSES)


COUNT_WAITING = f"""
SELECT lane, count(*) FROM runs r
WHERE tenant = %(tenant)s AND queue = %(queue)s AND state = 'pending'
  AND due_at <= coalesce(%(now)s::timestamptz, now()) AND {held_here("r")}
GROUP BY lane
"""


async def count_waiting(conn: Connection, tenant: str, queue: str, *, now: datetime | None = None) -> list[int]:
    """How many runs of a queue are due and wait for a worker, by lane: high, normal, low."""
    rows = await (await conn.execute(COUNT_WAITING, {"tenant": tenant, "queue": queue, "now": now})).fetchall()
    waiting: dict[int, int] = dict(rows)
    return [waiting.get(lane, 0) for lane in range(3)]
