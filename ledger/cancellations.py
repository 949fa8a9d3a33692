"""Cancelling runs: at once when nobody executes them, else through the answer to the worker's next heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

from ledger.connection import Connection
from ledger.fence import OwnerTransaction
from ledger.outbox import emit


class Cancelled(NamedTuple):
    """cancelled: the run is gone. requested: its worker is told; it ends as cancelled, unless it is completed first."""

    run_id: UUID
    outcome: Literal["cancelled", "requested"]


# The CTEs after `doomed (run_id, state, reason)`, which selects locked rows of runs and a cancel_reason: those that are
# leased are asked to end, the others are gone. Shared with what `replace` does, see ledger/admissions.py.
CANCEL_DOOMED = f"""
gone AS (
    DELETE FROM runs r USING doomed d
    WHERE r.run_id = d.run_id AND d.state <> 'leased'
    RETURNING r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane, r.version + 1 AS version, r.attempt,
              r.scheduled_for, d.reason
), told AS (
    UPDATE runs r SET cancel_reason = d.reason, version = r.version + 1
    FROM doomed d WHERE r.run_id = d.run_id AND d.state = 'leased' AND r.cancel_reason IS NULL
    RETURNING r.*
), cancel_event AS (
    {emit("run_cancelled", "gone", attempts="attempt", scheduled_for="scheduled_for", reasons="reason")}
), request_event AS (
    {
    emit(
        "run_cancel_requested",
        "told",
        attempts="attempt",
        lease_tokens="lease_token",
        scheduled_for="scheduled_for",
        due_at="due_at",
        lease_expires_at="lease_expires_at",
        worker_ids="worker_id",
        reasons="cancel_reason",
    )
}
)
"""

CANCEL_RUNS = f"""
WITH doomed AS (
    SELECT r.run_id, r.state, 'cancelled'::text AS reason
    FROM unnest(%(run_ids)b::uuid[]) AS c (run_id), runs r
    WHERE r.run_id = c.run_id AND r.partition = %(partition)s
    FOR UPDATE OF r
), {CANCEL_DOOMED}
SELECT run_id, CASE state WHEN 'leased' THEN 'requested' ELSE 'cancelled' END FROM doomed
"""


async def cancel_runs(tx: OwnerTransaction, run_ids: Sequence[UUID], *, now: datetime | None = None) -> list[Cancelled]:
    """Cancel runs of the partition; one missing from the answer is none that waits or is leased.

    A second request for a leased run changes nothing. The cursors of jobs stay where they are.
    """
    asked = {"run_ids": sorted(run_ids), "partition": tx.fence.partition, "now": now}
    return [Cancelled(*row) for row in await (await tx.conn.execute(CANCEL_RUNS, asked)).fetchall()]


class RunOwner(NamedTuple):
    job_id: UUID
    tenant: str
    state: str


OWNERS_OF_RUNS = """
SELECT run_id, job_id, tenant, state FROM runs WHERE run_id = ANY(%(run_ids)b)
UNION ALL
SELECT run_id, job_id, tenant, 'dead' FROM dead_runs WHERE run_id = ANY(%(run_ids)b)
"""


async def owners_of_runs(conn: Connection, run_ids: Sequence[UUID]) -> dict[UUID, RunOwner]:
    """Whose the runs are that wait, are leased, held or dead: for checking a command that names one."""
    rows = await (await conn.execute(OWNERS_OF_RUNS, {"run_ids": list(run_ids)})).fetchall()
    return {row[0]: RunOwner(*row[1:]) for row in rows}
