"""Leases: who may execute a run, until when. Every lease of a run has a larger token, which fences attempts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from psycopg import AsyncCursor
from psycopg.rows import TupleRow

from ledger.connection import Connection, Pool
from ledger.fence import api_transaction, hold_job_states
from ledger.live_limits import NOT_LIMITED
from ledger.outbox import emit
from ledger.pauses import NOT_PAUSED
from ledger.permits import Permit
from ledger.returns import ENDED_RUN, JOB_OF_RUN, TAKE_BACK, fate
from ledger.slots import take_slots
from schemas.errors import FencepostError

log = logging.getLogger(__name__)


class LeaseAsk(NamedTuple):
    """A run that a worker may have if it is still pending, due, and hinted by the partition's current epoch.

    request_id: of the lease call, whose repetition gets the same runs (ledger/lease_requests.py); None: it has none.
    permit: without one no run of a queue with a limit of live runs is leased, with one only as it says.
    """

    run_id: UUID
    epoch: int
    worker_id: str
    visibility_s: float
    request_id: UUID | None = None
    permit: Permit | None = None


class LeasedRun(NamedTuple):
    """What the worker gets. lease_s: how long the lease lasts from now, by the ledger's clock."""

    run_id: UUID
    job_id: UUID
    attempt: int
    lease_token: int
    lease_expires_at: datetime
    scheduled_for: datetime
    due_at: datetime
    queue: str
    payload: str | None
    lease_s: float


# What is given is counted from here, not from the transaction's begin: it may have waited for the fence since.
_FROM_HERE = "coalesce(%(now)s::timestamptz, statement_timestamp())"
# The ledger's own word for how much of a lease is left: no other clock can tell.
LEASE_LEFT_S = f"extract(epoch FROM r.lease_expires_at - {_FROM_HERE})::float8"

_ASKED = """
    unnest(%(run_ids)b::uuid[], %(epochs)b::bigint[], %(worker_ids)b::text[], %(visibility_s)b::float8[],
           %(request_ids)b::uuid[]) AS ask (run_id, epoch, worker_id, visibility_s, request_id)
"""
_ASKED_WITH_PERMITS = """
    unnest(%(run_ids)b::uuid[], %(epochs)b::bigint[], %(worker_ids)b::text[], %(visibility_s)b::float8[],
           %(request_ids)b::uuid[], %(permits)b::bigint[], %(queues)b::text[], %(keys)b::text[])
        AS ask (run_id, epoch, worker_id, visibility_s, request_id, permit, queue, concurrency_key)
"""
# The number keeps a permit from being used twice, or after it was given back; the rest may have been edited since.
_PERMITTED = """
    (ask.permit <= r.permit) IS NOT TRUE AND r.queue = ask.queue
    AND r.concurrency_key IS NOT DISTINCT FROM ask.concurrency_key
"""


def _leasable(overlap: str, limited: str = NOT_LIMITED) -> str:
    """SQL for when run `r` may be leased for `ask`: due and the rest, and `overlap` and `limited` are as here.

    One CASE, so that the planner sees no condition that it might begin with: it goes from `ask` by primary key.
    """
    return f"""
    r.run_id = ask.run_id AND p.partition = r.partition AND p.epoch = ask.epoch AND CASE
        WHEN r.state <> 'pending' OR r.due_at > coalesce(%(now)s::timestamptz, now())
          OR r.start_by < coalesce(%(now)s::timestamptz, now()) THEN false
        ELSE r.overlap {overlap} AND {NOT_PAUSED} AND {limited} END
    """


# least() passes over the NULL of an attempt without an end.
_TAKE = f"""
    SET state = 'leased', version = r.version + 1, attempt = r.attempt + 1,
        lease_token = greatest(r.lease_token, p.token_floor) + 1, worker_id = ask.worker_id, progress = NULL,
        attempt_ends_at = {_FROM_HERE} + r.timeout_s * interval '1 second',
        lease_expires_at = {_FROM_HERE} + least(ask.visibility_s, r.timeout_s) * interval '1 second'
"""
_LEASED = """
    r.run_id, r.job_id, r.partition, r.tenant, r.queue, r.lane, r.version, r.attempt, r.lease_token, r.lease_expires_at,
    r.scheduled_for, r.due_at, r.worker_id, r.payload, least(ask.visibility_s, r.timeout_s) AS lease_s,
    ask.request_id
"""

_LEASE_EVENT = emit(
    "run_leased",
    "leased",
    attempts="attempt",
    lease_tokens="lease_token",
    scheduled_for="scheduled_for",
    due_at="due_at",
    lease_expires_at="lease_expires_at",
    worker_ids="worker_id",
)
# A call may get gated runs by a second statement. What else is there under its id is gone: its repetition would have
# got it instead of leasing.
_REMEMBER = """
    INSERT INTO lease_requests (request_id, run_ids, lease_tokens)
    SELECT request_id, array_agg(run_id ORDER BY due_at), array_agg(lease_token ORDER BY due_at) FROM leased
    WHERE request_id IS NOT NULL GROUP BY request_id
    ON CONFLICT (request_id) DO UPDATE SET run_ids = lease_requests.run_ids || excluded.run_ids,
        lease_tokens = lease_requests.lease_tokens || excluded.lease_tokens, at = now()
"""
_ANSWER = f"SELECT {', '.join(LeasedRun._fields)} FROM leased"

_TOLD = f"""
    RETURNING {_LEASED}
), event AS ({_LEASE_EVENT}), remembered AS ({_REMEMBER})
{_ANSWER}
"""
_TAKE_WITH_PERMIT = f"{_TAKE.rstrip()}, permit = ask.permit\n"


def _lease(asked: str, take: str, leasable: str) -> str:
    return f"""
WITH leased AS (
    UPDATE runs r {take} FROM {asked}, partitions p
    WHERE {leasable}
{_TOLD}"""


def _lease_gated(asked: str, take: str, leasable: str) -> str:
    """IS TRUE keeps it from being a join."""
    return f"""
WITH {take_slots(asked, leasable)}, leased AS (
    UPDATE runs r {take} FROM {asked}, partitions p
    WHERE r.run_id = ask.run_id AND p.partition = r.partition AND (ask.run_id IN (SELECT run_id FROM slots)) IS TRUE
{_TOLD}"""


class _Statements(NamedTuple):
    """gated: for what the first left: so that the others do not pay for gated runs."""

    first: str
    gated: str


LEASE_RUNS = _lease(_ASKED, _TAKE, _leasable("= 0"))
LEASE_GATED_RUNS = _lease_gated(_ASKED, _TAKE, _leasable("<> 0"))
LEASE_PERMITTED_RUNS = _lease(_ASKED_WITH_PERMITS, _TAKE_WITH_PERMIT, _leasable("= 0", _PERMITTED))
LEASE_PERMITTED_GATED_RUNS = _lease_gated(_ASKED_WITH_PERMITS, _TAKE_WITH_PERMIT, _leasable("<> 0", _PERMITTED))
_PLAIN = _Statements(LEASE_RUNS, LEASE_GATED_RUNS)
_WITH_PERMITS = _Statements(LEASE_PERMITTED_RUNS, LEASE_PERMITTED_GATED_RUNS)


async def lease_runs(conn: Connection, asks: Sequence[LeaseAsk], *, now: datetime | None = None) -> list[LeasedRun]:
    """Lease the runs that may be leased, in the caller's API transaction; an attempt is charged to each.

    asks: at most 1,000, of distinct runs. A run that is missing from the answer is leased by another, finished, held,
    not due yet, too late to start, of a paused queue, gated while another run of its job is leased, without the permit
    that its queue's limit wants, or was hinted by an owner who lost its partition. Locks only these rows, in the order
    of their ids, and then slots of their jobs.
    """
    leased = []
    for statements, own in _parts(asks):
        leased += await _leased(await _send(conn, statements.first, own, now))
        if left := _left(own, leased):
            leased += await _leased(await _send(conn, statements.gated, left, now))
    return leased


async def lease_at_once(pool: Pool, asks: Sequence[LeaseAsk]) -> list[LeasedRun]:
    """The same in transactions of its own, whose begin, fence, lease and commit travel together: one round trip.

    Gated runs have another one to themselves, and so have those with permits. Raises EpochLost, LedgerUnavailable: then
    nothing is known to be leased.
    """
    leased: list[LeasedRun] = []
    for statements, own in _parts(asks):
        for statement in statements:
            if left := _left(own, leased):
                try:
                    leased += await _lease_at_once(pool, statement, left)
                except FencepostError as error:
                    if not leased:
                        raise
                    log.warning("%d runs were leased, and others beside them were not: %s", len(leased), error)
    return leased


def _parts(asks: Sequence[LeaseAsk]) -> list[tuple[_Statements, Sequence[LeaseAsk]]]:
    permitted = [ask for ask in asks if ask.permit is not None]
    if not permitted:
        return [(_PLAIN, asks)]
    return [(_PLAIN, [ask for ask in asks if ask.permit is None]), (_WITH_PERMITS, permitted)]


async def _lease_at_once(pool: Pool, statement: str, asks: Sequence[LeaseAsk]) -> list[LeasedRun]:
    async with api_transaction(pool, [ask.run_id for ask in asks]) as conn:
        cursor = await _send(conn, statement, asks)
    return await _leased(cursor)  # only now: to wait for the answer within would keep the commit waiting


def _left(asks: Sequence[LeaseAsk], leased: Sequence[LeasedRun]) -> Sequence[LeaseAsk]:
    if not leased:
        return asks
    taken = {run.run_id for run in leased}
    return [ask for ask in asks if ask.run_id not in taken]


async def _send(
    conn: Connection, statement: str, asks: Sequence[LeaseAsk], now: datetime | None = None
) -> AsyncCursor[TupleRow]:
    asks = sorted(asks, key=lambda ask: ask.run_id.int)  # UUID's own comparison runs in Python
    asked = {
        "run_ids": [ask.run_id for ask in asks],
        "epochs": [ask.epoch for ask in asks],
        "worker_ids": [ask.worker_id for ask in asks],
        "visibility_s": [ask.visibility_s for ask in asks],
        "request_ids": [ask.request_id for ask in asks],
        "now": now,
    }
    if permits := [ask.permit for ask in asks if ask.permit is not None]:
        asked["permits"] = [permit.number for permit in permits]
        asked["queues"] = [permit.queue for permit in permits]
        asked["keys"] = [permit.concurrency_key for permit in permits]
    return await conn.execute(statement, asked)


async def _leased(cursor: AsyncCursor[TupleRow]) -> list[LeasedRun]:
    return [LeasedRun(*row) for row in await cursor.fetchall()]


class Beat(NamedTuple):
    """A worker's sign of life for one lease. tenant, queues: whose run it must be, see `OF_CALLER`.

    progress: a note of at most 1,000 characters, or None to leave the last one.
    """

    run_id: UUID
    lease_token: int
    visibility_s: float
    tenant: str | None = None
    queues: str | None = None
    progress: str | None = None


class ExtendedLease(NamedTuple):
    """cancel: the worker should end the attempt now; its lease is not extended any more.

    lease_s: how long the lease lasts from now, by the ledger's clock. permit: none is over.
    """

    run_id: UUID
    lease_expires_at: datetime
    cancel: bool
    lease_s: float
    permit: None = None


# What a caller of the API may touch: with a tenant only that tenant's runs, with queues (their names joined by commas)
# only the runs of those. Needs `c (tenant, queues)` beside `runs r`.
OF_CALLER = """
  (c.tenant IS NULL OR r.tenant = c.tenant) AND (c.queues IS NULL OR r.queue = ANY (string_to_array(c.queues, ',')))
"""

EXTEND_LEASES = f"""
UPDATE runs r
SET lease_expires_at = CASE WHEN r.cancel_reason IS NOT NULL THEN r.lease_expires_at ELSE least(
        r.attempt_ends_at, greatest(
            r.lease_expires_at, {_FROM_HERE} + c.visibility_s * interval '1 second')) END,
    progress = coalesce(left(c.progress, 1000), r.progress)
FROM unnest(%(run_ids)b::uuid[], %(lease_tokens)b::bigint[], %(visibility_s)b::float8[], %(tenants)b::text[],
            %(queues)b::text[], %(progress)b::text[])
         AS c (run_id, lease_token, visibility_s, tenant, queues, progress)
WHERE r.run_id = c.run_id AND r.lease_token = c.lease_token AND r.state = 'leased'
  AND r.lease_expires_at > coalesce(%(now)s::timestamptz, now()) AND {OF_CALLER}
RETURNING r.run_id, r.lease_expires_at, r.cancel_reason IS NOT NULL, {LEASE_LEFT_S}
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
            "progress": [beat.progress for beat in beats],
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


class Snooze(NamedTuple):
    """A lease to give back until delay_s from now. tenant, queues: whose run it must be, see `OF_CALLER`."""

    run_id: UUID
    lease_token: int
    delay_s: float
    tenant: str | None = None
    queues: str | None = None


# delay_s: NULL leaves the run as due as it was.
RELEASE_RUNS = f"""
WITH ended AS (
    SELECT {ENDED_RUN}, {fate("released")} AS fate, r.attempt - 1 AS attempt, r.worker_id, NULL::text AS reason,
           coalesce(coalesce(%(now)s::timestamptz, now()) + c.delay_s * interval '1 second', r.due_at) AS due_at
    FROM unnest(%(run_ids)b::uuid[], %(lease_tokens)b::bigint[], %(delays_s)b::float8[], %(tenants)b::text[],
                %(queues)b::text[]) AS c (run_id, lease_token, delay_s, tenant, queues)
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
SELECT run_id, fate, CASE fate WHEN 'released' THEN due_at END, permit FROM ended
"""


class Snoozed(NamedTuple):
    """outcome: released (due again at due_at), held or cancelled, as for `release_runs`. permit: as in `Completed`."""

    run_id: UUID
    outcome: str
    due_at: datetime | None
    permit: int | None = None


async def release_runs(conn: Connection, leases: Sequence[HeldLease], *, now: datetime | None = None) -> list[Snoozed]:
    """Give leases back unexecuted, in the caller's API transaction: the attempt is not charged.

    A run whose job was paused meanwhile is held; one that is to be cancelled, or whose job was deleted, is cancelled.
    """
    return await _give_back(conn, [(*lease[:2], None, *lease[2:]) for lease in leases], now)


async def snooze_runs(conn: Connection, snoozes: Sequence[Snooze], *, now: datetime | None = None) -> list[Snoozed]:
    """Give leases back until later, in the caller's API transaction: the attempt is not charged.

    snoozes: at most 1,000, of distinct runs. A run missing from the answer has lost its lease.
    """
    return await _give_back(conn, snoozes, now)


_Return = tuple[UUID, int, float | None, str | None, str | None]  # the fields of Snooze


async def _give_back(conn: Connection, returns: Sequence[_Return], now: datetime | None) -> list[Snoozed]:
    returns = sorted(returns, key=lambda each: each[0].int)
    names = ("run_ids", "lease_tokens", "delays_s", "tenants", "queues")
    columns = {name: [each[place] for each in returns] for place, name in enumerate(names)}
    await hold_job_states(conn, [each[0] for each in returns])
    cursor = await conn.execute(RELEASE_RUNS, {**columns, "now": now})
    return [Snoozed(*row) for row in await cursor.fetchall()]
