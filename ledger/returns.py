"""Where a run goes that comes back from its worker undone: to wait again, or to what became of it or its job meanwhile.

The statements that take runs back (fail, expire, release, snooze) are made of these pieces. Their callers hold the
states of the runs' jobs first (see `hold_job_states`), so that no pause and no deletion misses a run on its way back.
"""

from __future__ import annotations

from ledger.outbox import emit
from ledger.slots import FREE_SLOTS

# Needs `runs r`, and selects locked rows of it into a CTE
# `ended (run_id, job_id, overlap, permit, fate, attempt, due_at, worker_id, reason)`, whose first four are ENDED_RUN.
JOB_OF_RUN = "LEFT JOIN jobs j ON j.job_id = r.job_id"
ENDED_RUN = "r.run_id, r.job_id, r.overlap, r.permit"


def fate(otherwise: str, *, dead: str = "false") -> str:
    """SQL for what happens to a run: once asked to, it is cancelled; else it is dead, or as its job's state has it.

    dead: SQL for whether it has no further attempt. A paused job holds its runs, a deleted one cancels them.
    """
    return f"""CASE WHEN r.cancel_reason IS NOT NULL THEN 'cancelled' WHEN {dead} THEN 'dead'
         WHEN j.state = 'paused' THEN 'held' WHEN j.state = 'deleted' THEN 'cancelled' ELSE '{otherwise}' END"""


RETRY_AFTER_MAX_S = 7 * 86400

# Full jitter, but never at once: uniform in (0, delay], with a delay that grows as the job says and has a bound.
# Source: ARCHITECTURE, Policies.
_BACKOFF_S = """
    (1 - random()) * least(coalesce(j.retry_max_s, 600), coalesce(j.retry_base_s, 1) * CASE coalesce(j.retry_backoff, 0)
        WHEN 0 THEN power(2::float8, r.attempt) WHEN 1 THEN r.attempt ELSE 1 END)
"""


def retry_delay_s(asked_s: str) -> str:
    """SQL for the seconds until a run's next attempt: what the worker asked for, or else the job's back-off."""
    return f"""CASE WHEN {asked_s} IS NULL THEN greatest(0.000001, {_BACKOFF_S})
        ELSE greatest(0, least({RETRY_AFTER_MAX_S}, {asked_s})) END"""


_RUN = "r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane"
_ATTEMPT = {"attempts": "attempt", "lease_tokens": "lease_token", "scheduled_for": "scheduled_for"}

# The CTEs after `ended`: `cancelled` and `returned` are disjoint, and leave those of fate 'dead' to others. A run that
# has started has no deadline for its start any more; one that was given back unexecuted has not started.
TAKE_BACK = f"""
freed AS ({FREE_SLOTS}), cancelled AS (
    DELETE FROM runs r USING ended e
    WHERE r.run_id = e.run_id AND e.fate = 'cancelled'
    RETURNING {_RUN}, r.version + 1 AS version, e.attempt, r.lease_token, r.scheduled_for, e.worker_id,
              coalesce(r.cancel_reason, 'deleted') AS reason
), returned AS (
    UPDATE runs r
    SET state = CASE e.fate WHEN 'held' THEN 'held' ELSE 'pending' END, version = r.version + 1, attempt = e.attempt,
        due_at = e.due_at, lease_expires_at = NULL, worker_id = NULL, attempt_ends_at = NULL,
        start_by = CASE WHEN e.attempt < r.attempt AND e.due_at = r.due_at THEN r.start_by END
    FROM ended e
    WHERE r.run_id = e.run_id AND e.fate NOT IN ('cancelled', 'dead')
    RETURNING {_RUN}, r.overlap, r.version, r.attempt, r.lease_token, r.scheduled_for, r.due_at, e.worker_id, e.reason,
              e.fate
), cancel_event AS (
    {emit("run_cancelled", "cancelled", **_ATTEMPT, worker_ids="worker_id", reasons="reason")}
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
