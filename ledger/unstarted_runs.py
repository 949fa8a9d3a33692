"""Runs of jobs that nobody has leased yet: what a new schedule takes away of the old one, beside its pending run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ledger.connection import Connection
from ledger.fence import OwnerTransaction
from ledger.outbox import emit


class UnstartedRun(NamedTuple):
    run_id: UUID
    job_id: UUID
    scheduled_for: datetime


READ_UNSTARTED = """
SELECT run_id, job_id, scheduled_for FROM runs
WHERE partition = %s AND job_id = ANY (%b) AND state <> 'leased' AND lease_token = 0
"""


async def read_unstarted(conn: Connection, partition: int, job_ids: Sequence[UUID]) -> list[UnstartedRun]:
    """The runs of these jobs that wait or are held and were never leased, manual ones among them."""
    cursor = await conn.execute(READ_UNSTARTED, (partition, list(job_ids)))
    return [UnstartedRun(*row) for row in await cursor.fetchall()]


DROP_UNSTARTED = f"""
WITH dropped AS (
    DELETE FROM runs r USING unnest(%(run_ids)b::uuid[]) AS a (run_id)
    WHERE r.run_id = a.run_id AND r.partition = %(partition)s AND r.state <> 'leased' AND r.lease_token = 0
    RETURNING r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane, r.version + 1 AS version, r.attempt,
              r.scheduled_for
), cancel_event AS (
    {emit("run_cancelled", "dropped", attempts="attempt", scheduled_for="scheduled_for", reasons="'edited'::text")}
)
SELECT run_id FROM dropped
"""


async def drop_unstarted(tx: OwnerTransaction, run_ids: Sequence[UUID], *, now: datetime | None = None) -> list[UUID]:
    """Cancel those of the runs that are still unstarted; returns them. One that was leased meanwhile stays."""
    asked = {"run_ids": sorted(run_ids), "partition": tx.fence.partition, "now": now}
    return [row[0] for row in await (await tx.conn.execute(DROP_UNSTARTED, asked)).fetchall()]
