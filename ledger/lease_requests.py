"""Lease calls that carry a request id: their repetition gets the same runs again instead of leaking a lease.

What a call gets is noted by the statement that leases it (ledger/leases.py).
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from ledger.connection import Connection, confirm_commits
from ledger.leases import LEASE_LEFT_S, LeasedRun
from ledger.partitions import held_here

RECALL_LEASES = f"""
SELECT r.run_id, r.job_id, r.attempt, r.lease_token, r.lease_expires_at, r.scheduled_for, r.due_at, r.queue,
       r.payload, {LEASE_LEFT_S}
FROM lease_requests q, unnest(q.run_ids, q.lease_tokens) AS lease (run_id, lease_token), runs r
WHERE q.request_id = %(request_id)s AND r.run_id = lease.run_id AND r.lease_token = lease.lease_token
  AND r.state = 'leased' AND r.lease_expires_at > coalesce(%(now)s::timestamptz, now())
  AND {held_here("r")}
"""


async def recall_leases(conn: Connection, request_id: UUID, *, now: datetime | None = None) -> list[LeasedRun]:
    """The runs that an earlier call with this request id leased and still holds; none for a new id."""
    asked = {"request_id": request_id, "now": now}
    recalled = [LeasedRun(*row) for row in await (await conn.execute(RECALL_LEASES, asked)).fetchall()]
    if recalled:
        await confirm_commits(conn)
    return recalled


FORGET_LEASE_REQUESTS = "DELETE FROM lease_requests WHERE at < now() - interval '2 minutes'"


async def forget_lease_requests(conn: Connection) -> None:
    """Drop what no repetition will ask for any more."""
    await conn.execute(FORGET_LEASE_REQUESTS)
