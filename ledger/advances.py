"""The cursor of a job: it moves from the occurrence that was read, so that each occurrence is decided exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ledger.fence import FencedTransaction, hold_job_states
from ledger.outbox import emit
from ledger.run_locks import lock_runs
from ledger.runs import RUN_COLUMNS, PendingRun, make_run
from schemas.events import SPREAD
from schemas.zones import TZDATA_VERSION


class Advance(NamedTuple):
    """Moves a job's cursor from fired_at, if it is still there under this version, to next_fire_at with its run.

    skipped_run_id, skip_reason: the run of fired_at, which is not to run after all; it is left alone when somebody has
    had it leased already. range_*: occurrences between the two that make no run, told as one event of the job; with
    it the job's version grows by one. spread_at, rate_version: when the run is due instead of at due_at, apart from
    other made-up ones by that rate of its queue; the deadline for its start counts from due_at all the same.
    """

    job_id: UUID
    version: int
    fired_at: datetime
    next_fire_at: datetime | None
    run_id: UUID | None
    due_at: datetime | None
    skipped_run_id: UUID | None = None
    skip_reason: str | None = None
    range_first: datetime | None = None
    range_last: datetime | None = None
    range_count: int | None = None
    range_reason: str | None = None
    spread_at: datetime | None = None
    rate_version: int | None = None


_REASON = f"CASE WHEN rate_version IS NOT NULL THEN '{SPREAD}' END"

ADVANCE_JOBS = f"""
WITH moved AS (
    UPDATE jobs j SET next_fire_at = a.next_fire_at, tzdata_version = %(tzdata)s,
                      version = j.version + (a.range_count IS NOT NULL)::int
    FROM unnest(%(job_id)b::uuid[], %(version)b::int[], %(fired_at)b::timestamptz[], %(next_fire_at)b::timestamptz[],
                %(run_id)b::uuid[], %(due_at)b::timestamptz[], %(skipped_run_id)b::uuid[], %(skip_reason)b::text[],
                %(range_first)b::timestamptz[], %(range_last)b::timestamptz[], %(range_count)b::bigint[],
                %(range_reason)b::text[], %(spread_at)b::timestamptz[], %(rate_version)b::int[])
             AS a (job_id, version, fired_at, next_fire_at, run_id, due_at, skipped_run_id, skip_reason,
                   range_first, range_last, range_count, range_reason, spread_at, rate_version)
    WHERE j.job_id = a.job_id AND j.version = a.version AND j.next_fire_at = a.fired_at AND j.state = 'active'
    RETURNING j.*, a.run_id, a.due_at, a.next_fire_at AS scheduled_for, a.skipped_run_id, a.skip_reason,
              a.range_first, a.range_last, a.range_count, a.range_reason, a.spread_at, a.rate_version
), skipped AS (
    DELETE FROM runs r USING moved m
    WHERE r.run_id = m.skipped_run_id AND r.state = 'pending' AND r.lease_token = 0
    RETURNING r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane, r.version + 1 AS version, r.attempt,
              r.scheduled_for, m.skip_reason
), next AS (
    {
    make_run(
        "moved j WHERE j.run_id IS NOT NULL", due_at="coalesce(j.spread_at, j.due_at)", rate_version="j.rate_version"
    )
}
    ON CONFLICT (run_id) DO NOTHING
    RETURNING *
), range_event AS (
    {
    emit(
        "occurrences_skipped",
        "moved WHERE range_count IS NOT NULL",
        scheduled_for="range_first",
        due_at="range_last",
        counts="range_count",
        reasons="range_reason",
    )
}
), skip_event AS (
    {emit("run_skipped", "skipped", attempts="attempt", scheduled_for="scheduled_for", reasons="skip_reason")}
), run_event AS (
    {emit("run_scheduled", "next", scheduled_for="scheduled_for", due_at="due_at", reasons=_REASON)}
)
SELECT {RUN_COLUMNS} FROM next
"""


async def advance_jobs(
    tx: FencedTransaction, advances: Sequence[Advance], *, now: datetime | None = None
) -> list[PendingRun]:
    """Decide the next occurrence of jobs (distinct ones) whose pending one has come; returns the new runs.

    A job that was changed or advanced meanwhile is left alone: each occurrence is decided exactly once.
    """
    advances = sorted(advances, key=lambda advance: advance.job_id)
    skipped = [advance.skipped_run_id for advance in advances if advance.skipped_run_id]
    await hold_job_states(tx.conn, [*skipped, *(advance.run_id for advance in advances if advance.run_id)])
    if len(skipped) > 1:
        await lock_runs(tx, run_ids=skipped)
    columns = {field: [getattr(each, field) for each in advances] for field in Advance._fields}
    cursor = await tx.conn.execute(ADVANCE_JOBS, {**columns, "tzdata": TZDATA_VERSION, "now": now})
    return [PendingRun(*row) for row in await cursor.fetchall()]
