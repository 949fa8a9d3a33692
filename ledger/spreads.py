"""Runs that are made up for at their queue's rate: the instants that are taken of it, and who has them.

An instant is given away in the transaction that makes or moves the run that gets it, with the queue's row locked: so
all owners together give away no more of them than the rate, whatever becomes of any owner, and none twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ledger.connection import Connection
from ledger.fence import OwnerTransaction, hold_job_states
from ledger.outbox import emit
from ledger.queue_settings import QueueName
from ledger.runs import RUN_COLUMNS, PendingRun
from schemas.events import SPREAD


class RatedJob(NamedTuple):
    """A job of a queue with a rate. is_unspread: its pending run waits, was never leased, and is due as scheduled."""

    job_id: UUID
    tenant: str
    queue: str
    is_unspread: bool


FIND_RATED_JOBS = """
SELECT j.job_id, j.tenant, j.queue, EXISTS (
           SELECT FROM runs r
           WHERE r.run_id = a.run_id AND r.state = 'pending' AND r.lease_token = 0 AND r.rate_version IS NULL)
FROM unnest(%b::uuid[], %b::uuid[]) AS a (job_id, run_id), jobs j, queue_settings s
WHERE j.job_id = a.job_id AND j.state = 'active'
  AND s.tenant = j.tenant AND s.queue = j.queue AND s.rate_per_s IS NOT NULL
"""


async def find_rated_jobs(conn: Connection, pending: Sequence[tuple[UUID, UUID]]) -> list[RatedJob]:
    """Those of the jobs whose queue has a rate. pending: (job id, the id of its pending occurrence's run)."""
    columns = ([job_id for job_id, _ in pending], [run_id for _, run_id in pending])
    return [RatedJob(*row) for row in await (await conn.execute(FIND_RATED_JOBS, columns)).fetchall()]


class Rate(NamedTuple):
    """A queue's rate as it is until the transaction ends. rate_per_s: None when there is none any more.

    taken_through: the instants before it are taken; None while none is. It may lie in the past.
    """

    rate_per_s: float | None
    version: int
    taken_through: datetime | None


LOCK_RATE = """
SELECT rate_per_s, rate_version, spread_through FROM queue_settings WHERE tenant = %s AND queue = %s FOR UPDATE
"""


async def lock_rate(tx: OwnerTransaction, queue: QueueName) -> Rate:
    """Have the queue's instants to oneself. Before any other lock, so that those who wait for it hold nothing."""
    row = await (await tx.conn.execute(LOCK_RATE, queue)).fetchone()
    return Rate(*row) if row else Rate(None, 0, None)


TAKE_INSTANTS = "UPDATE queue_settings SET spread_through = %s WHERE tenant = %s AND queue = %s"


async def take_instants(tx: OwnerTransaction, queue: QueueName, through: datetime) -> None:
    """The instants before `through` are given away. The rate is locked."""
    await tx.conn.execute(TAKE_INSTANTS, (through, *queue))


SPREAD_RUNS = f"""
WITH moved AS (
    UPDATE runs r SET due_at = a.due_at, rate_version = %(rate_version)s::int, version = r.version + 1
    FROM unnest(%(run_id)b::uuid[], %(due_at)b::timestamptz[]) AS a (run_id, due_at)
    WHERE r.run_id = a.run_id AND r.partition = %(partition)s AND r.state = 'pending' AND r.lease_token = 0
    RETURNING r.*
), run_event AS (
    {
    emit(
        "run_scheduled",
        "moved",
        attempts="attempt",
        scheduled_for="scheduled_for",
        due_at="due_at",
        reasons=f"'{SPREAD}'::text",
    )
}
)
SELECT {RUN_COLUMNS} FROM moved
"""


async def spread_runs(
    tx: OwnerTransaction,
    due: Sequence[tuple[UUID, datetime]],
    rate_version: int | None,
    *,
    now: datetime | None = None,
) -> list[PendingRun]:
    """Give runs that wait other due times; returns those that got theirs. One that was leased before keeps its own.

    rate_version: of the rate that the times are apart by; None: of none. Their start deadlines stay.
    """
    due = sorted(due)
    await hold_job_states(tx.conn, [run_id for run_id, _ in due])
    columns = {"run_id": [run_id for run_id, _ in due], "due_at": [at for _, at in due]}
    given = {"rate_version": rate_version, "partition": tx.fence.partition, "now": now}
    return [PendingRun(*row) for row in await (await tx.conn.execute(SPREAD_RUNS, columns | given)).fetchall()]


# Version by version, so that each is read in the index's order, beginning behind what is due already.
FIND_OUTDATED = """
SELECT r.run_id
FROM generate_series(1, %(version)s - 1) AS former (version), LATERAL (
    SELECT run_id FROM runs
    WHERE partition = %(partition)s AND tenant = %(tenant)s AND queue = %(queue)s AND rate_version = former.version
      AND due_at > coalesce(%(now)s::timestamptz, now()) AND state = 'pending' AND lease_token = 0
    ORDER BY due_at LIMIT %(limit)s
) AS r
LIMIT %(limit)s
"""


async def find_outdated(
    tx: OwnerTransaction, queue: QueueName, rate_version: int, limit: int, *, now: datetime | None = None
) -> list[UUID]:
    """Runs of the partition that are not due yet and apart by a former rate of their queue, the soonest first."""
    asked = {"partition": tx.fence.partition, "version": rate_version, "limit": limit, "now": now}
    cursor = await tx.conn.execute(FIND_OUTDATED, asked | queue._asdict())
    return [row[0] for row in await cursor.fetchall()]
