"""Locking runs: all that a transaction is about to change, at once, and in the order of their ids.

In that order everybody locks several of them, be it to lease, to end or to judge them. Who locks with each statement
what that one changes is in no order any more, and a lease call and he could wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from ledger.fence import FencedTransaction

# Of a job's leased runs only an edit of its overlap changes anything, as it does of a backfill's long line: else those
# that go in turn are left to whoever leases them.
LOCK_RUNS = """
SELECT r.run_id FROM runs r
WHERE r.run_id = ANY (ARRAY(
    SELECT s.run_id FROM unnest(%(job_ids)b::uuid[], %(overlaps)b::smallint[]) AS a (job_id, overlap), jobs j, runs s
    WHERE j.job_id = a.job_id AND s.partition = j.partition AND s.job_id = j.job_id
      AND (a.overlap <> j.overlap
           OR s.state <> 'leased' AND (a.overlap IS NULL OR s.overlap <> 3 OR s.lease_token > 0))
    UNION ALL SELECT unnest(%(run_ids)b::uuid[])))
ORDER BY r.run_id FOR UPDATE
"""


async def lock_runs(
    tx: FencedTransaction, jobs: Iterable[tuple[UUID, int | None]] = (), run_ids: Sequence[UUID] = ()
) -> None:
    """Lock these runs, and those of jobs that are about to change, each with its overlap after an edit, or None.

    Each lease of them that is under way is committed before this returns, or finds what the transaction makes of it.
    After the lock of job states, if that is taken.
    """
    job_ids, overlaps = [], []
    for job_id, overlap in jobs:
        job_ids.append(job_id)
        overlaps.append(overlap)
    await tx.conn.execute(LOCK_RUNS, {"job_ids": job_ids, "overlaps": overlaps, "run_ids": list(run_ids)})
