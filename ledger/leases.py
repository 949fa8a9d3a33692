"""Leases: who may execute a run, until when. Every lease of a run has a larger token, which fences attempts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ledger.connection import Connection
from ledger.fence import hold_job_states
from ledger.outbox import emit
from ledger.returns import JOB_OF_RUN, TAKE_BACK, fate


class LeaseAsk(NamedTuple):
    """A run that a worker may have if it is still pending, due, and hinted by the partition's current epoch."""

    run_id: UUID
    epoch: int
    worker_id: str
    visibility_s: float


class LeasedRun(NamedTuple):
    """What the worker gets."""

    run_id: UUID
    job_id: UUID
    attempt: int
    lease_token: int
    lease_expires_at: datetime
    scheduled_for: datetime
    due_at: datetime
    payload: str | None


LEASE_RUNS = f"""
WITH leased AS (
    UPDATE runs r
    SET state = 'leased', version = r.version + 1, attempt = r.attempt + 1, lease_token = r.lease_token + 1,
        worker_id = ask.worker_id,
        lease_expires_at = coalesce(%(now)s::timestamptz, now()) + ask.visibility_s * interval '1 second'
    FROM unnest(%(run_ids)s::uuid[], %(epochs)s::bigint[], %(worker_ids)s::text[], %(visibility_s)s::float8[])
             AS ask (run_id, epoch, worker_id, visibility_s),
         partitions p
    WHERE r.run_id = ask.run_id AND r.state = 'pending' AND r.due_at <= coalesce(%(now)s::timestamptz, now())
      AND p.partition = r.partition AND p.epoch = ask.epoch
    RETURNING r.*
), event AS (
    {
    emit(
        "run_leased",
        "leased",
        attempts="attempt",
        lease_tokens="lease_token",
        scheduled_for="scheduled_for",
        due_at="due_at",
        lease_expires_at="lease_expires_at",
        worker_ids="worker_id",
    )
}
)
SELECT run_id, job_id, attempt, lease_token, lease_expires_at, scheduled_for, due_at, payload FROM leased
"""


async def lease_runs(conn: Connection, asks: Sequence[LeaseAsk], *, now: datetime | None = None) -> list[LeasedRun]:
    """Lease the runs that may be leased, in the caller's API transaction; an attempt is charged to each.

    asks: at most 1,000, of distinct runs. A run that is missing from the answer is leased by another, finished, held,
    not due yet, or was hinted by an owner who lost its partition. Locks only these rows, in the order of their ids.
    """
    asks = sorted(asks, key=lambda ask: ask.run_id.int)  # UUID's own comparison runs in Python
    cursor = await conn.execute(
        LEASE_RUNS,
        {
            "run_ids": [ask.run_id for ask in asks],
            "epochs": [ask.epoch for ask in asks],
            "worker_ids": [ask.worker_id for ask in asks],
            "visibility_s": [ask.visibility_s for ask in asks],
            "now": now,
        },
    )
    return [LeasedRun(*row) for row in await cursor.fetchall()]


class Beat(NamedTuple):
    """A worker's sign of life for one lease. tenant, queues: whose run it must be, see `OF_CALLER`."""

    run_id: UUID
    lease_token: int
    visibility_s: float
    tenant: str | None = None
    queues: str | None = None


class ExtendedLease(NamedTuple):
    run_id: UUID
    lease_expires_at: datetime
    cancel: bool


# What a caller of the API may touch: with a tenant only that tenant's runs, with queues (their names joined by commas)
# only the runs of those. Needs `c (tenant, queues)` beside `runs r`.
OF_CALLER = """
  (c.tenant IS NULL OR r.tenant = c.tenant) AND (c.queues IS NULL OR r.queue = ANY (string_to_array(c.queues, ',')))
"""

EXTEND_LEASES = f"""
UPDATE runs r
SET lease_expires_at = greatest(
        r.lease_expires_at, coalesce(%(now)s::timestamptz, now()) + c.visibility_s * interval '1 second')
FROM unnest(%(run_ids)s::uuid[], %(lease_tokens)s::bigint[], %(visibility_s)s::float8[], %(tenants)s::text[],
            %(queues)s::text[]) AS c (run_id, lease_token, visibility_s, tenant, queues)
WHERE r.run_id = c.run_id AND r.lease_token = c.lease_token AND r.state = 'leased'
  AND r.lease_expires_at > coalesce(%(now)s::timestamptz, now()) AND {OF_CALLER}
RETURNING r.run_id, r.lease_expires_at, r.cancel_requested
"""


async def extend_leases(conn: Connection, beats: Sequence[Beat], *, now: datetime | None = None) -> list[ExtendedLease]:
    """Heartbeats, in the caller's API transaction. A run missing from the answer has lost that lease."""
    beats = sorted(beats, key=lambda beat: beat.run_id.int)
    cursor = await conn.execute(
        EXTEND_LEASES,
        {
            "run_ids": [beat.run_id for beat in beats],
            "lease_tokens": [beat.lease_token for beat in beats],
            "visibility_s": [beat.visibility_s for beat in beats],
            "tenants": [beat.tenant for beat in beats],
            "queues": [beat.queues for beat in beats],
            "now": now,
        },
    )
    return [ExtendedLease(*row) for row in await cursor.fetchall()]


class HeldLease(NamedTuple):
    """A lease to give back. tenant, queues: whose run it must be, see `OF_CALLER`."""

    run_id: UUID
    lease_token: int
    tenant: str | None = None
    queues: str | None = None


RELEASE_RUNS = f"""
WITH ended AS (
    SELECT r.run_id, {fate("released")} AS fate, r.attempt - 1 AS attempt, r.due_at, r.worker_id, NULL::text AS reason
    FROM unnest(%(run_ids)s::uuid[], %(lease_tokens)s::bigint[], %(tenants)s::text[], %(queues)s::text[])
             AS c (run_id, lease_token, tenant, queues)
         JOIN runs r ON r.run_id = c.run_id {JOB_OF_RUN}
    WHERE r.lease_token = c.lease_token AND r.state = 'leased'
      AND r.lease_expires_at > coalesce(%(now)s::timestamptz, now()) AND {OF_CALLER}
    FOR UPDATE OF r
), {TAKE_BACK}, release_event AS (
    {
    emit(
        "run_released",
        "returned WHERE fate = 'released'",
        attempts="attempt",
        lease_tokens="lease_token",
        scheduled_for="scheduled_for",
        due_at="due_at",
    )
}
)
SELECT run_id FROM ended
"""


async def release_runs(conn: Connection, leases: Sequence[HeldLease], *, now: datetime | None = None) -> list[UUID]:
    """Give leases back unexecuted, in the caller's API transaction: the attempt is not charged.

    A run whose job was paused meanwhile is held, one whose job was deleted is cancelled.
    """
    leases = sorted(leases, key=lambda lease: lease.run_id.int)
    run_ids = [lease.run_id for lease in leases]
    await hold_job_states(conn, run_ids)
    cursor = await conn.execute(
        RELEASE_RUNS,
        {
            "run_ids": run_ids,
            "lease_tokens": [lease.lease_token for lease in leases],
            "tenants": [lease.tenant for lease in leases],
            "queues": [lease.queues for lease in leases],
            "now": now,
        },
    )
    return [row[0] for row in await cursor.fetchall()]


# A request id that is there already belongs to a call whose leases are gone, or its repetition would have got them.
REMEMBER_LEASES = """
INSERT INTO lease_requests (request_id, run_ids, lease_tokens) VALUES (%s, %s, %s)
ON CONFLICT (request_id) DO UPDATE SET run_ids = excluded.run_ids, lease_tokens = excluded.lease_tokens, at = now()
"""


async def remember_leases(conn: Connection, request_id: UUID, runs: Sequence[LeasedRun]) -> None:
    """Note what a lease call got, in the transaction that leased it, so that its repetition gets the same."""
    await conn.execute(REMEMBER_LEASES, (request_id, [run.run_id for run in runs], [run.lease_token for run in runs]))


RECALL_LEASES = """
SELECT r.run_id, r.job_id, r.attempt, r.lease_token, r.lease_expires_at, r.scheduled_for, r.due_at, r.payload
FROM lease_requests q, unnest(q.run_ids, q.lease_tokens) AS lease (run_id, lease_token), runs r
WHERE q.request_id = %s AND r.run_id = lease.run_id AND r.lease_token = lease.lease_token
  AND r.state = 'leased' AND r.lease_expires_at > now()
"""


async def recall_leases(conn: Connection, request_id: UUID) -> list[LeasedRun]:
    """The runs that an earlier call with this request id leased and still holds; none for a new id."""
    return [LeasedRun(*row) for row in await (await conn.execute(RECALL_LEASES, (request_id,))).fetchall()]


FORGET_LEASE_REQUESTS = "DELETE FROM lease_requests WHERE at < now() - interval '2 minutes'"


async def forget_lease_requests(conn: Connection) -> None:
    """Drop what no repetition will ask for any more."""
    await conn.execute(FORGET_LEASE_REQUESTS)
