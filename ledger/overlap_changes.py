"""What an edit that changes a job's overlap means for the runs that the job has already: they are under it, too.

So that of a job which does not allow overlap no two runs are leased at once, but for those that were before the edit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from ledger.fence import OwnerTransaction
from ledger.outbox import emit
from ledger.runs import RUN_COLUMNS, PendingRun

# A run that goes in turn goes on to do so. What had come when the job still allowed overlap is kept, so it does so too.
_FOLLOWED = """
    CASE WHEN j.overlap = 0 THEN 0 WHEN r.overlap = 3 THEN 3
         WHEN r.overlap = 0 AND r.state <> 'leased' AND r.lease_token = 0
          AND r.due_at <= coalesce(%(now)s::timestamptz, now()) THEN 3
         ELSE j.overlap END
"""
_WHEN = {"attempts": "attempt", "scheduled_for": "scheduled_for", "due_at": "due_at", "reasons": "'edited'::text"}

# Nothing is told of a leased run: where it is and until when has not changed. It keeps the slot if it has it.
FOLLOW_OVERLAP = f"""
WITH changed AS (
    UPDATE runs r SET overlap = {_FOLLOWED}, version = r.version + (r.state <> 'leased')::int
    FROM jobs j, runs before
    WHERE j.job_id = ANY (%(job_ids)b::uuid[]) AND r.partition = j.partition AND r.job_id = j.job_id
      AND r.overlap <> {_FOLLOWED} AND before.run_id = r.run_id
    RETURNING r.*, before.overlap AS overlap_before
), slotless AS (
    INSERT INTO slotless_runs (job_id, run_id)
    SELECT job_id, run_id FROM changed WHERE state = 'leased' AND overlap_before = 0
    ON CONFLICT DO NOTHING
), freed AS (
    DELETE FROM job_slots s USING changed c WHERE c.overlap = 0 AND s.job_id = c.job_id AND s.run_id = c.run_id
), hold_event AS (
    {emit("run_held", "changed WHERE state = 'held'", **_WHEN)}
), run_event AS (
    {emit("run_scheduled", "changed WHERE state = 'pending'", **_WHEN)}
)
SELECT {RUN_COLUMNS} FROM changed WHERE state = 'pending'
"""


async def follow_overlap(
    tx: OwnerTransaction, job_ids: Sequence[UUID], *, now: datetime | None = None
) -> list[PendingRun]:
    """Put all runs of these jobs, which `lock_runs` has locked, under the overlap that the jobs have now.

    Returns those that wait. What is leased without a slot and is to be alone from now on goes on; until all such runs
    of a job have ended none of the job gets its slot. The slots of jobs that now allow overlap are free.
    """
    cursor = await tx.conn.execute(FOLLOW_OVERLAP, {"job_ids": list(job_ids), "now": now})
    return [PendingRun(*row) for row in await cursor.fetchall()]
