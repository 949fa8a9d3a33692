"""Retention of jobs: deleted ones, and one-offs that are over, leave the ledger after a while.

Neither can ever fire again. What they did is told by the history; who names one of them in a command learns that there
is no such job. Kept are jobs with a run that waits, is leased, held or dead, paused jobs, whatever recurs, and what a
file declares: forgotten, its past one-off would be taken for one that is still to be created.

Whoever forgets owns no partition. So while it deletes it has the states of the partition's jobs alone (see
ARCHITECTURE, The fence), and commands hold them from before they read a job (`keep_jobs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from psycopg.errors import LockNotAvailable

from ledger.connection import Connection, Pool, ledger_errors
from ledger.fence import CHANGE_JOB_STATES, FENCE_PARTITIONS, HOLD_JOB_STATES, OwnerTransaction

AT_ONCE = 1_000


async def keep_jobs(tx: OwnerTransaction) -> None:
    """Let no job of the partition be forgotten until the transaction ends: what is read from here on stays."""
    await tx.conn.execute(HOLD_JOB_STATES, ([tx.fence.partition],))


class Place(NamedTuple):
    """A job's place in the order in which a partition's jobs are looked at: by age."""

    created_at: datetime
    job_id: UUID


class Look(NamedTuple):
    """forgettable: of the jobs that were looked at. last: where to go on, or None at the end of the partition."""

    forgettable: list[UUID]
    last: Place | None


# As the index jobs_over has it, word for word. Needs `jobs j`, as do the next two.
_NEVER_RECURS = "(j.state = 'deleted' OR j.definition::jsonb -> 'schedule' ?| ARRAY['runAt', 'delaySeconds'])"
_AGE = "coalesce(%(now)s::timestamptz, now()) - %(kept)s::interval"
# An instant that is to come keeps a job, too: a one-off that was cancelled is shown until its time is long past. A
# scalar subquery can only be a look-up a job; EXISTS might become a hash of all runs.
_IS_OVER = f"""
    j.state <> 'paused' AND j.declared_as IS NULL AND greatest(j.created_at, j.updated_at, j.next_fire_at) < {_AGE}
    AND (SELECT r.run_id FROM runs r WHERE r.partition = j.partition AND r.job_id = j.job_id LIMIT 1) IS NULL
    AND (SELECT d.run_id FROM dead_runs d WHERE d.job_id = j.job_id LIMIT 1) IS NULL
"""

FIND_FORGETTABLE = f"""
SELECT j.created_at, j.job_id, {_IS_OVER} FROM jobs j
WHERE j.partition = %(partition)s AND {_NEVER_RECURS} AND j.created_at < {_AGE}
  AND (j.created_at, j.job_id) > (coalesce(%(after_at)s::timestamptz, '-infinity'), %(after_id)s::uuid)
ORDER BY j.created_at, j.job_id LIMIT %(limit)s
"""
_FIRST_ID = UUID(int=0)


async def find_forgettable(
    conn: Connection,
    partition: int,
    kept: timedelta,
    *,
    after: Place | None = None,
    limit: int = AT_ONCE,
    now: datetime | None = None,
) -> Look:
    """Look at the next jobs of a partition, at most `limit`, that could be forgotten for their age; changes nothing.

    kept: for how long a job stays after its creation, its last change and its time. after: the last look's `last`.
    """
    after_at, after_id = after or (None, _FIRST_ID)
    asked = {"partition": partition, "kept": kept, "after_at": after_at, "after_id": after_id, "limit": limit}
    rows = await (await conn.execute(FIND_FORGETTABLE, {**asked, "now": now})).fetchall()
    last = Place(*rows[-1][:2]) if len(rows) == limit else None
    return Look([job_id for _, job_id, is_over in rows if is_over], last)


# Commands hold the lock for as long as they write, and who waits for it lets nobody else have it: waiting long, upkeep
# would hold up what it is there for.
_WAIT_BRIEFLY = "SET LOCAL lock_timeout = '100ms'"

# Read by the primary key alone, in the ids' order: conditions beside it would lead the planner through the partition.
FORGET_JOBS = f"""
WITH asked AS MATERIALIZED (
    SELECT k.job_id, partition, state, definition, declared_as, created_at, updated_at, next_fire_at
    FROM unnest(%(job_ids)b::uuid[]) AS a (job_id), jobs k WHERE k.job_id = a.job_id
)
DELETE FROM jobs gone USING asked j
WHERE gone.job_id = j.job_id AND j.partition = %(partition)s AND {_NEVER_RECURS} AND {_IS_OVER}
"""


async def forget_jobs(
    pool: Pool, partition: int, job_ids: Sequence[UUID], kept: timedelta, *, now: datetime | None = None
) -> int:
    """Forget those of a partition's jobs (at most 1,000) that still can be; returns how many.

    None of them when somebody writes for longer than it is good to wait: the next round finds them again. No event
    tells of it, for no owner has a timer of such a job. Raises LedgerUnavailable, EpochLost for another shard's
    partition.
    """
    asked = {"job_ids": sorted(job_ids), "partition": partition, "kept": kept, "now": now}
    with ledger_errors(partition):
        try:
            async with pool.connection() as conn, conn.transaction():
                await conn.execute(_WAIT_BRIEFLY)
                await conn.execute(FENCE_PARTITIONS, ([partition],))
                await conn.execute(CHANGE_JOB_STATES, (partition,))
                return (await conn.execute(FORGET_JOBS, asked)).rowcount
        except LockNotAvailable:
            return 0
