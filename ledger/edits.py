"""Edits: a job gets another definition, and its pending run is replaced by one that is as the new definition says.

Only the run of the cursor is replaced, and only while nobody has had it leased: the old run fires only if it was leased
before the edit. Other runs (leased ones, retries, manual ones) stay as they were made, but for their overlap: that is
the job's, see ledger/overlap_changes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ledger.fence import OwnerTransaction, change_job_states
from ledger.jobs import POLICY_ARRAYS, POLICY_COLUMNS, Policies, policy_parameters
from ledger.outbox import emit
from ledger.overlap_changes import follow_overlap
from ledger.run_locks import lock_runs
from ledger.runs import RUN_COLUMNS, PendingRun, make_run
from schemas.zones import TZDATA_VERSION


class Edit(NamedTuple):
    """The new definition of a job, and its cursor from now on.

    replaced_run_id: the run of the old cursor (see `run_id_for`), or None when it had none. run_id, due_at: the run of
    next_fire_at, None exactly when that is; the same occurrence may well be pending again.
    """

    job_id: UUID
    queue: str
    lane: int
    definition: str
    payload: str | None
    max_attempts: int
    next_fire_at: datetime | None
    replaced_run_id: UUID | None
    run_id: UUID | None
    due_at: datetime | None
    policies: Policies = Policies()


_SET_POLICIES = ", ".join(f"{name} = a.{name}" for name in Policies._fields)
_REASON = "%(reason)s::text"
_WHEN = {"attempts": "attempt", "scheduled_for": "scheduled_for"}

# An occurrence that stays pending keeps its run, which is changed in place. One whose run is not there any more
# although the cursor is at it (it was cancelled, or it ended) has had its decision: no edit brings it back.
UPDATE_JOBS = f"""
WITH changed AS (
    UPDATE jobs j
    SET queue = a.queue, lane = a.lane, definition = a.definition, payload = a.payload, max_attempts = a.max_attempts,
        next_fire_at = a.next_fire_at, {_SET_POLICIES}, tzdata_version = %(tzdata)s, version = j.version + 1,
        edited_at = coalesce(%(now)s::timestamptz, now()), updated_at = now()
    FROM unnest(%(job_id)b::uuid[], %(queue)b::text[], %(lane)b::smallint[], %(definition)b::text[],
                %(payload)b::text[], %(max_attempts)b::smallint[], %(next_fire_at)b::timestamptz[],
                %(replaced_run_id)b::uuid[], %(run_id)b::uuid[], %(due_at)b::timestamptz[], {POLICY_ARRAYS})
             AS a (job_id, queue, lane, definition, payload, max_attempts, next_fire_at, replaced_run_id, run_id,
                   due_at, {POLICY_COLUMNS})
    WHERE j.job_id = a.job_id AND j.state <> 'deleted'
    RETURNING j.*, a.replaced_run_id, a.run_id, a.due_at, a.next_fire_at AS scheduled_for
), replaced AS (
    DELETE FROM runs r USING changed c
    WHERE r.run_id = c.replaced_run_id AND r.run_id IS DISTINCT FROM c.run_id
      AND r.state <> 'leased' AND r.lease_token = 0
    RETURNING r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane, r.version + 1 AS version, r.attempt,
              r.scheduled_for
), kept AS (
    UPDATE runs r
    SET queue = c.queue, lane = c.lane, max_attempts = c.max_attempts, payload = c.payload,
        due_at = CASE WHEN r.rate_version IS NULL THEN c.due_at ELSE r.due_at END,
        rate_version = CASE WHEN r.queue = c.queue THEN r.rate_version END,
        overlap = c.overlap, timeout_s = c.timeout_s, concurrency_key = c.concurrency_key, version = r.version + 1,
        start_by = c.due_at + c.start_deadline_s * interval '1 second'
    FROM changed c
    WHERE r.run_id = c.run_id AND r.state <> 'leased' AND r.lease_token = 0
    RETURNING r.*
), next AS (
    {
    make_run(
        "changed j WHERE j.run_id IS NOT NULL AND j.run_id IS DISTINCT FROM j.replaced_run_id",
        state="CASE j.state WHEN 'paused' THEN 'held' ELSE 'pending' END",
    )
}
    ON CONFLICT (run_id) DO NOTHING
    RETURNING *
), waiting AS (
    SELECT * FROM kept UNION ALL SELECT * FROM next
), job_event AS (
    {emit("job_updated", "changed", definitions="definition", scheduled_for="created_at", due_at="next_fire_at")}
), cancel_event AS (
    {emit("run_cancelled", "replaced", **_WHEN, reasons=_REASON)}
), hold_event AS (
    {emit("run_held", "waiting WHERE state = 'held'", **_WHEN, due_at="due_at", reasons=_REASON)}
), run_event AS (
    {emit("run_scheduled", "waiting WHERE state = 'pending'", **_WHEN, due_at="due_at", reasons=_REASON)}
)
SELECT {RUN_COLUMNS} FROM waiting WHERE state = 'pending'
"""


async def update_jobs(
    tx: OwnerTransaction,
    edits: Sequence[Edit],
    *,
    reason: str = "edited",
    now: datetime | None = None,
) -> list[PendingRun]:
    """Give jobs (distinct ones) other definitions; returns the runs that wait from now on in place of the old ones.

    reason: why their runs are replaced. Runs that wait under another overlap from now on are returned, too. The version
    of each job grows by one. A paused job stays paused and its new run is held; a deleted one is left.
    """
    await change_job_states(tx)
    job_ids = [edit.job_id for edit in edits]
    pending = [run_id for edit in edits for run_id in (edit.replaced_run_id, edit.run_id) if run_id]
    await lock_runs(tx, [(edit.job_id, edit.policies.overlap) for edit in edits], pending)
    names = [field for field in Edit._fields if field != "policies"]
    columns = {field: [getattr(edit, field) for edit in edits] for field in names}
    columns |= policy_parameters([edit.policies for edit in edits])
    cursor = await tx.conn.execute(UPDATE_JOBS, {**columns, "tzdata": TZDATA_VERSION, "reason": reason, "now": now})
    runs = [PendingRun(*row) for row in await cursor.fetchall()]
    return runs + await follow_overlap(tx, job_ids, now=now)
