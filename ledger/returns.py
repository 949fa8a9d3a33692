"""Where a run goes that comes back from its worker undone: to wait again, or to what became of its job meanwhile.

The statements that take runs back (fail, expire, release) are made of these pieces. Their callers hold the states of
the runs' jobs first (see `hold_job_states`), so that no pause and no deletion misses a run on its way back.
"""

from __future__ import annotations

from ledger.outbox import emit

# Needs `runs r`, and selects locked rows of it into a CTE `ended (run_id, fate, attempt, due_at, worker_id, reason)`.
JOB_OF_RUN = "LEFT JOIN jobs j ON j.job_id = r.job_id"


def fate(otherwise: str) -> str:
    """SQL for what happens to a run that is not dead: a paused job holds it, a deleted one cancels it."""
    return f"CASE j.state WHEN 'paused' THEN 'held' WHEN 'deleted' THEN 'cancelled' ELSE '{otherwise}' END"


_RUN = "r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane"
_ATTEMPT = {"attempts": "attempt", "lease_tokens": "lease_token", "scheduled_for": "scheduled_for"}

# The CTEs after `ended`: `cancelled` and `returned` are disjoint, and leave those of fate 'dead' to others.
TAKE_BACK = f"""
cancelled AS (
    DELETE FROM runs r USING ended e
    WHERE r.run_id = e.run_id AND e.fate = 'cancelled'
    RETURNING {_RUN}, r.version + 1 AS version, e.attempt, r.lease_token, r.scheduled_for, e.worker_id
), returned AS (
    UPDATE runs r
    SET state = CASE e.fate WHEN 'held' THEN 'held' ELSE 'pending' END, version = r.version + 1, attempt = e.attempt,
        due_at = e.due_at, lease_expires_at = NULL, worker_id = NULL
    FROM ended e
    WHERE r.run_id = e.run_id AND e.fate NOT IN ('cancelled', 'dead')
    RETURNING {_RUN}, r.version, r.attempt, r.lease_token, r.scheduled_for, r.due_at, e.worker_id, e.reason, e.fate
), cancel_event AS (
    {emit("run_cancelled", "cancelled", **_ATTEMPT, worker_ids="worker_id", reasons="'its job was deleted'::text")}
), hold_event AS (
    {
    emit(
        "run_held",
        "returned WHERE fate = 'held'",
        **_ATTEMPT,
        due_at="due_at",
        worker_ids="worker_id",
        reasons="reason",
    )
}
)
"""
