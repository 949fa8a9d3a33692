"""Slots: of a job whose overlap is not `allow`, at most one run is leased at a time, however it came to be asked for.

The statement that leases such a gated run takes its job's slot, and whichever ends the lease frees it. Runs that were
leased before an edit gated their job have no slot, and there may be several of them (see ledger/overlap_changes.py):
while one of them is leased the slot is nobody's.
"""

from __future__ import annotations

from ledger.connection import Connection

# Needs `r (job_id)`. One look into a table that is all but always empty.
_NO_SLOTLESS_LEASE = """
    NOT EXISTS (SELECT FROM slotless_runs l, runs leased
                WHERE l.job_id = r.job_id AND leased.run_id = l.run_id AND leased.state = 'leased')
"""
# A run that goes in turn (overlap 3) is not leased for the first time while one of its job that has started waits for
# its next attempt, or another one that goes in turn was due before. Needs `runs r`.
_IS_ITS_TURN = """
    (r.overlap <> 3 OR r.lease_token > 0 OR NOT EXISTS (
        SELECT FROM runs s
        WHERE s.partition = r.partition AND s.job_id = r.job_id AND s.run_id <> r.run_id AND s.state = 'pending'
          AND (s.lease_token > 0 OR (s.overlap = 3 AND
               (s.due_at, s.scheduled_for, s.run_id) < (r.due_at, r.scheduled_for, r.run_id)))))
"""
# For those who look for runs that could be leased; who leases one takes the slot. Needs `runs r`.
MAY_TAKE_SLOT = f"""
    NOT EXISTS (SELECT FROM job_slots s WHERE s.job_id = r.job_id) AND {_NO_SLOTLESS_LEASE} AND {_IS_ITS_TURN}
"""


def take_slots(asked: str, leasable: str) -> str:
    """SQL of the CTEs `gated` and `slots (run_id)`: the gated runs among those asked for that got their job's slot.

    asked, leasable: a FROM item `ask`, and when `r` may be leased for it. The rows of runs are locked before any slot
    is asked for: who waits for a slot then holds nothing that its holder still wants. Of two runs of a job the one that
    was due first gets it, one that goes in turn after the others.
    """
    return f"""
gated AS (
    SELECT r.run_id, r.job_id, r.due_at, r.scheduled_for, r.overlap = 3 AND r.lease_token = 0 AS in_turn
    FROM {asked}, runs r, partitions p
    WHERE {leasable} AND {_IS_ITS_TURN}
    FOR UPDATE OF r
), slots AS (
    INSERT INTO job_slots (job_id, run_id)
    SELECT job_id, run_id FROM gated r WHERE {_NO_SLOTLESS_LEASE}
    ORDER BY job_id, in_turn, due_at, scheduled_for, run_id
    ON CONFLICT (job_id) DO NOTHING
    RETURNING run_id
)
"""


# Needs a CTE `ended (run_id, job_id, overlap)` of runs whose leases end.
FREE_SLOTS = """
    DELETE FROM job_slots s USING ended e WHERE e.overlap <> 0 AND s.job_id = e.job_id AND s.run_id = e.run_id
"""

FORGET_SLOTLESS = """
DELETE FROM slotless_runs l WHERE NOT EXISTS (SELECT FROM runs r WHERE r.run_id = l.run_id AND r.state = 'leased')
"""


async def forget_slotless(conn: Connection) -> None:
    """Drop the rows of runs that are not leased any more: nobody heeds them."""
    await conn.execute(FORGET_SLOTLESS)
