"""How an attempt ends: completed, failed, or its lease expired. Ended runs leave the hot table, or wait for a retry."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

from ledger.connection import Connection
from ledger.fence import hold_job_states
from ledger.leases import OF_CALLER
from ledger.outbox import emit
from ledger.returns import ENDED_RUN, JOB_OF_RUN, TAKE_BACK, fate, retry_delay_s
from ledger.slots import FREE_SLOTS


class Completion(NamedTuple):
    """result: a JSON document of at most 64 KiB, or None. tenant, queues: whose run it must be, see `OF_CALLER`."""

    run_id: UUID
    lease_token: int
    result: str | None = None
    tenant: str | None = None
    queues: str | None = None


COMPLETE_RUNS = f"""
WITH ended AS (
    DELETE FROM runs r
    USING unnest(%(run_ids)b::uuid[], %(lease_tokens)b::bigint[], %(results)b::text[], %(tenants)b::text[],
                 %(queues)b::text[]) AS c (run_id, lease_token, result, tenant, queues)
    WHERE r.run_id = c.run_id AND r.lease_token = c.lease_token AND r.state = 'leased'
      AND r.lease_expires_at > coalesce(%(now)s::timestamptz, now()) AND {OF_CALLER}
      AND r.cancel_reason IS DISTINCT FROM 'replaced'
    RETURNING r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane, r.version + 1 AS version, r.attempt,
              r.lease_token, r.scheduled_for, r.worker_id, r.overlap, r.permit, c.result
), freed AS ({FREE_SLOTS}), event AS (
    {
    emit(
        "run_completed",
        "ended",
        attempts="attempt",
        lease_tokens="lease_token",
        scheduled_for="scheduled_for",
        worker_ids="worker_id",
        results="result",
    )
}
)
SELECT run_id, permit FROM ended
"""

# The rare path, for runs that another of their job has replaced: too late to be completed, but their slot is wanted.
END_REPLACED = f"""
WITH ended AS (
    DELETE FROM runs r
    USING unnest(%(run_ids)b::uuid[], %(lease_tokens)b::bigint[], %(tenants)b::text[], %(queues)b::text[])
              AS c (run_id, lease_token, tenant, queues)
    WHERE r.run_id = c.run_id AND r.lease_token = c.lease_token AND r.cancel_reason = 'replaced' AND {OF_CALLER}
    RETURNING r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane, r.version + 1 AS version, r.attempt,
              r.lease_token, r.scheduled_for, r.worker_id, r.overlap, r.cancel_reason
), freed AS ({FREE_SLOTS})
{
    emit(
        "run_cancelled",
        "ended",
        attempts="attempt",
        lease_tokens="lease_token",
        scheduled_for="scheduled_for",
        worker_ids="worker_id",
        reasons="cancel_reason",
    )
}
"""


class Completed(NamedTuple):
    """permit: the number of the one that the lease had, which the caller gives back; None: it had none."""

    run_id: UUID
    permit: int | None = None


async def complete_runs(
    conn: Connection, completions: Sequence[Completion], *, now: datetime | None = None
) -> list[Completed]:
    """Finish leased runs and queue their events, in the caller's API transaction.

    completions: at most 1,000, of distinct runs. Returns those that were finished; one missing from it has lost its
    lease, or was completed before (see `what_ended`), and nothing of it was written. A run that another has replaced is
    missing, too: it ends as cancelled, and the other may start. Locks only these rows.
    """
    completions = sorted(completions, key=lambda completion: completion.run_id.int)
    asked = {
        "run_ids": [completion.run_id for completion in completions],
        "lease_tokens": [completion.lease_token for completion in completions],
        "results": [completion.result for completion in completions],
        "tenants": [completion.tenant for completion in completions],
        "queues": [completion.queues for completion in completions],
        "now": now,
    }
    done = [Completed(*row) for row in await (await conn.execute(COMPLETE_RUNS, asked)).fetchall()]
    if len(done) < len(completions):
        await conn.execute(END_REPLACED, asked)
    return done


class Ended(NamedTuple):
    """What became of a run whose attempt ended without success; due_at is its next attempt's.

    retried: it waits until due_at. dead: no attempts are left, or the failure was permanent. held: it would be retried,
    once its paused job is resumed. cancelled: that was asked for, or it would be retried, but its job was deleted.
    permit: as in `Completed`.
    """

    run_id: UUID
    outcome: Literal["retried", "dead", "held", "cancelled"]
    due_at: datetime | None
    permit: int | None = None


def _ended(reason: str, permanent: str, retry_after_s: str) -> str:
    """The columns of `ended`, see ledger/returns.py, from SQL for how the attempt ended."""
    return f"""
    {ENDED_RUN}, {fate("retried", dead=f"{permanent} OR r.attempt >= r.max_attempts")} AS fate,
    r.attempt, r.worker_id, {reason} AS reason,
    coalesce(%(now)s::timestamptz, now()) + interval '1 second' * {retry_delay_s(retry_after_s)} AS due_at
    """


_RETRY_OR_BURY = f"""
{TAKE_BACK}, buried AS (
    DELETE FROM runs r USING ended e
    WHERE r.run_id = e.run_id AND e.fate = 'dead'
    RETURNING r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane, r.version + 1 AS version, r.attempt,
              r.max_attempts, r.lease_token, r.scheduled_for, r.payload, e.worker_id, e.reason
), grave AS (
    INSERT INTO dead_runs (run_id, job_id, partition, tenant, queue, lane, version, attempt, max_attempts, lease_token,
                           scheduled_for, payload, worker_id, reason, died_at)
    SELECT *, coalesce(%(now)s::timestamptz, now()) FROM buried
), dead_event AS (
    {
    emit(
        "run_dead",
        "buried",
        attempts="attempt",
        lease_tokens="lease_token",
        scheduled_for="scheduled_for",
        worker_ids="worker_id",
        reasons="reason",
    )
}
), retry_event AS (
    {
    emit(
        "run_retried",
        "returned WHERE fate = 'retried'",
        attempts="attempt",
        lease_tokens="lease_token",
        scheduled_for="scheduled_for",
        due_at="due_at",
        worker_ids="worker_id",
        reasons="reason",
    )
}
)
SELECT run_id, fate, CASE fate WHEN 'retried' THEN due_at END, permit FROM ended
"""


class Failure(NamedTuple):
    """permanent: do not try again. retry_after_s: instead of the job's own back-off, at most 7 days.

    tenant, queues: whose run it must be, see `OF_CALLER`.
    """

    run_id: UUID
    lease_token: int
    reason: str
    permanent: bool = False
    retry_after_s: float | None = None
    tenant: str | None = None
    queues: str | None = None


FAIL_RUNS = f"""
WITH ended AS (
    SELECT {_ended("c.reason", "c.permanent", "c.retry_after_s")}
    FROM unnest(%(run_ids)b::uuid[], %(lease_tokens)b::bigint[], %(reasons)b::text[], %(permanent)b::bool[],
                %(retry_after_s)b::float8[], %(tenants)b::text[], %(queues)b::text[])
             AS c (run_id, lease_token, reason, permanent, retry_after_s, tenant, queues)
         JOIN runs r ON r.run_id = c.run_id {JOB_OF_RUN}
    WHERE r.lease_token = c.lease_token AND r.state = 'leased'
      AND r.lease_expires_at > coalesce(%(now)s::timestamptz, now()) AND {OF_CALLER}
    FOR UPDATE OF r
), {_RETRY_OR_BURY}
"""


async def fail_runs(conn: Connection, failures: Sequence[Failure], *, now: datetime | None = None) -> list[Ended]:
    """End attempts that failed, in the caller's API transaction: a retry later, or dead when attempts are used up.

    failures: at most 1,000, of distinct runs. A run missing from the answer has lost its lease.
    """
    failures = sorted(failures, key=lambda failure: failure.run_id.int)
    run_ids = [failure.run_id for failure in failures]
    await hold_job_states(conn, run_ids)
    cursor = await conn.execute(
        FAIL_RUNS,
        {
            "run_ids": run_ids,
            "lease_tokens": [failure.lease_token for failure in failures],
            "reasons": [failure.reason for failure in failures],
            "permanent": [failure.permanent for failure in failures],
            "retry_after_s": [failure.retry_after_s for failure in failures],
            "tenants": [failure.tenant for failure in failures],
            "queues": [failure.queues for failure in failures],
            "now": now,
        },
    )
    return [Ended(*row) for row in await cursor.fetchall()]


_EXPIRY_REASON = """CASE WHEN r.attempt_ends_at <= coalesce(%(now)s::timestamptz, now()) THEN 'timed out'
         ELSE 'lease expired' END"""
EXPIRE_LEASES = f"""
WITH ended AS (
    SELECT {_ended(_EXPIRY_REASON, "false", "NULL::float8")}
    FROM unnest(%(run_ids)b::uuid[]) AS l (run_id) JOIN runs r ON r.run_id = l.run_id {JOB_OF_RUN}
    WHERE r.state = 'leased' AND r.lease_expires_at <= coalesce(%(now)s::timestamptz, now())
    FOR UPDATE OF r
), {_RETRY_OR_BURY}
"""


async def expire_leases(conn: Connection, run_ids: Sequence[UUID], *, now: datetime | None = None) -> list[Ended]:
    """End the attempts whose lease has run out, in the owner's fenced transaction.

    A run missing from the answer is not leased, or its lease was extended: see `lease_expiries`.
    """
    await hold_job_states(conn, run_ids)
    cursor = await conn.execute(EXPIRE_LEASES, {"run_ids": sorted(run_ids), "now": now})
    return [Ended(*row) for row in await cursor.fetchall()]


LEASE_EXPIRIES = """
SELECT r.run_id, r.lease_expires_at FROM unnest(%b::uuid[]) AS l (run_id), runs r
WHERE r.run_id = l.run_id AND r.state = 'leased'
"""


async def lease_expiries(conn: Connection, run_ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """When the leases of those runs that are leased now expire. Heartbeats make no events, so owners ask."""
    return dict(await (await conn.execute(LEASE_EXPIRIES, (list(run_ids),))).fetchall())


class AttemptEnd(NamedTuple):
    """The end of an attempt, or of a run that nobody had leased, as its event tells it.

    lease_token: None when no lease ended. due_at: the next attempt's.
    """

    event: str
    lease_token: int | None
    tenant: str
    queue: str
    lane: int
    job_id: UUID
    attempt: int | None
    scheduled_for: datetime
    worker_id: str | None
    due_at: datetime | None
    reason: str | None
    result: str | None


_ENDS = ["run_completed", "run_dead", "run_retried", "run_held", "run_cancelled", "run_skipped"]
WHAT_ENDED = """
SELECT o.event, o.lease_tokens[i], o.tenants[i], o.queues[i], o.lanes[i], o.job_ids[i], o.attempts[i],
       o.scheduled_for[i], o.worker_ids[i], o.due_at[i], o.reasons[i], o.results[i]
FROM outbox o, LATERAL array_position(o.run_ids, %(run_id)s::uuid) AS i
WHERE o.run_ids @> ARRAY[%(run_id)s::uuid] AND o.event = ANY (%(ends)s)
  AND (%(lease_token)s::bigint IS NULL OR o.lease_tokens[i] = %(lease_token)s)
ORDER BY o.id DESC LIMIT 1
"""


async def what_ended(conn: Connection, run_id: UUID, lease_token: int | None = None) -> AttemptEnd | None:
    """The last end of the run or of an attempt of it, that still waits in the outbox. The miss path: it scans.

    lease_token: only the end of that lease.
    """
    asked = {"run_id": run_id, "lease_token": lease_token, "ends": _ENDS}
    row = await (await conn.execute(WHAT_ENDED, asked)).fetchone()
    return AttemptEnd(*row) if row else None
