"""Slots: of a job whose overlap is not `allow`, at most one run is leased at a time, however it came to be asked for.

The statement that leases such a gated run takes its job's slot, and whichever ends the lease frees it.
"""

from __future__ import annotations


def take_slots(asked: str, leasable: str) -> str:
    """SQL of the CTEs `gated` and `slots (run_id)`: the gated runs among those asked for that got their job's slot.

    asked, leasable: a FROM item `ask`, and when `r` may be leased for it. The rows of runs are locked before any slot
    is asked for: who waits for a slot then holds nothing that its holder still wants. Of two runs of a job the one that
    was due first gets it.
    """
    return f"""
gated AS (
    SELECT r.run_id, r.job_id, r.due_at, r.scheduled_for FROM {asked}, runs r, partitions p
    WHERE {leasable}
    FOR UPDATE OF r
), slots AS (
    INSERT INTO job_slots (job_id, run_id)
    SELECT job_id, run_id FROM gated ORDER BY job_id, due_at, scheduled_for, run_id
    ON CONFLICT (job_id) DO NOTHING
    RETURNING run_id
)
"""


# Needs a CTE `ended (run_id, job_id, overlap)` of runs whose leases end.
FREE_SLOTS = """
    DELETE FROM job_slots s USING ended e WHERE e.overlap <> 0 AND s.job_id = e.job_id AND s.run_id = e.run_id
"""
