"""Permits: in a queue with a limit of live runs no run is leased without one, and home gives no more than the limit.

Partitions of one queue lie on several shards, so permits are given by home, whatever shard a run is on:

    take_permits (home) -> lease_runs with it (the run's shard) -> the attempt ends there -> free_permits (home)

Every live lease of such a queue has its permit, and a permit may for a moment be without a lease. A permit is good for
one lease: the run keeps its number, and is leased with a larger one only. Whoever crashes on the way leaves a permit
behind that `spent_permits` and `void_permits` find by the word of the run's own shard; see api/permit_upkeep.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

from ledger.connection import Connection, Pool, ledger_errors
from ledger.fence import api_transaction
from ledger.queue_settings import QueueName


class Permit(NamedTuple):
    """What a run may be leased with once, while it is in that queue and has that concurrency key."""

    run_id: UUID
    number: int
    queue: str
    concurrency_key: str | None


class SpentPermit(NamedTuple):
    """A permit that no lease has, and none can have any more."""

    run_id: UUID
    number: int


class Wish(NamedTuple):
    """A run for which a permit is wanted."""

    run_id: UUID
    concurrency_key: str | None


Refusal = Literal["queue_full", "key_full", "has_one"]


class Taken(NamedTuple):
    """Both by run. refused: why it got none; has_one: it is leased, or was until just now."""

    permits: dict[UUID, Permit]
    refused: dict[UUID, Refusal]


# Whoever gives permits of a queue, or changes its limit, waits here; the next statement sees what it waited for.
LOCK_LIVE_LIMIT = "SELECT FROM live_limits WHERE tenant = %(tenant)s AND queue = %(queue)s FOR NO KEY UPDATE"
TAKE_PERMITS = """
WITH asked AS MATERIALIZED (
    SELECT a.*, l.max_live, l.max_live_per_key, l.counted,
           EXISTS (SELECT FROM permits p WHERE p.run_id = a.run_id) AS has_one,
           CASE WHEN a.key IS NULL OR l.max_live_per_key IS NULL THEN 0 ELSE (
               SELECT count(*) FROM permits p
               WHERE p.tenant = %(tenant)s AND p.queue = %(queue)s AND p.concurrency_key = a.key) END AS live_of_key
    FROM live_limits l, unnest(%(run_ids)b::uuid[], %(keys)b::text[]) WITH ORDINALITY AS a (run_id, key, place)
    WHERE l.tenant = %(tenant)s AND l.queue = %(queue)s
), by_key AS (
    SELECT *, NOT has_one AND (key IS NULL OR max_live_per_key IS NULL OR live_of_key + row_number() OVER (
              PARTITION BY key ORDER BY has_one, place) <= max_live_per_key) AS fits_key
    FROM asked
), judged AS (
    SELECT *, fits_key AND counted AND (max_live IS NULL OR row_number() OVER (ORDER BY fits_key DESC, place) + (
              SELECT count(*) FROM permits p WHERE p.tenant = %(tenant)s AND p.queue = %(queue)s) <= max_live) AS fits
    FROM by_key
), taken AS (
    INSERT INTO permits (run_id, tenant, queue, concurrency_key)
    SELECT run_id, %(tenant)s, %(queue)s, key FROM judged WHERE fits ORDER BY run_id
    RETURNING run_id, permit, queue, concurrency_key
)
SELECT run_id, permit, queue, concurrency_key, NULL FROM taken
UNION ALL
SELECT run_id, NULL, NULL, NULL,
       CASE WHEN has_one THEN 'has_one' WHEN NOT fits_key THEN 'key_full' ELSE 'queue_full' END
FROM judged WHERE NOT fits
"""


async def take_permits(home: Pool, queue: QueueName, wishes: Sequence[Wish]) -> Taken | None:
    """Permits for runs of one queue, in their order, as far as its limits let; None when it has no limit.

    wishes: at most 1,000, of distinct runs. Raises LedgerUnavailable: then nobody knows of what may have been taken.
    """
    if not wishes:
        return Taken({}, {})
    asked = {
        **queue._asdict(),
        "run_ids": [wish.run_id for wish in wishes],
        "keys": [wish.concurrency_key for wish in wishes],
    }
    with ledger_errors():
        async with home.connection() as conn, conn.pipeline(), conn.transaction():
            await conn.execute(LOCK_LIVE_LIMIT, asked)
            cursor = await conn.execute(TAKE_PERMITS, asked)
        rows = await cursor.fetchall()
    if not rows:
        return None
    permits = {row[0]: Permit(*row[:4]) for row in rows if row[1] is not None}
    return Taken(permits, {run_id: refusal for run_id, number, *_, refusal in rows if number is None})


class FreedPermit(NamedTuple):
    """Whose place is free again."""

    queue: QueueName
    concurrency_key: str | None


FREE_PERMITS = """
DELETE FROM permits p USING unnest(%b::uuid[], %b::bigint[]) AS f (run_id, permit)
WHERE p.run_id = f.run_id AND p.permit = f.permit
RETURNING p.tenant, p.queue, p.concurrency_key
"""


async def free_permits(conn: Connection, spent: Sequence[SpentPermit]) -> list[FreedPermit]:
    """Give back what no lease has, and none can have any more, at home. Safe to repeat."""
    spent = sorted(spent, key=lambda each: each.run_id.int)
    asked = ([each.run_id for each in spent], [each.number for each in spent])
    rows = await (await conn.execute(FREE_PERMITS, asked)).fetchall()
    return [FreedPermit(QueueName(tenant, queue), key) for tenant, queue, key in rows]


class LivePermits(NamedTuple):
    """How many permits a queue has out, and since when the oldest of them."""

    live: int
    since: datetime | None


COUNT_PERMITS = """
SELECT count(*), min(taken_at) FROM permits
WHERE tenant = %(tenant)s AND queue = %(queue)s AND (%(key)s::text IS NULL OR concurrency_key = %(key)s)
"""


async def count_permits(conn: Connection, queue: QueueName, concurrency_key: str | None = None) -> LivePermits:
    """Of the whole queue, or of those of one key, at home."""
    asked = {**queue._asdict(), "key": concurrency_key}
    row = await (await conn.execute(COUNT_PERMITS, asked)).fetchone()
    assert row is not None
    return LivePermits(*row)


class GivenPermit(NamedTuple):
    """is_old: a lease with it that has not come by now need not be waited for."""

    run_id: UUID
    number: int
    is_old: bool


# Far beyond the time that a lease takes. A lease that comes later still is refused: see void_permits.
OLD_S = 5
READ_PERMITS = f"SELECT run_id, permit, taken_at < now() - interval '{OLD_S} s' FROM permits ORDER BY run_id"


async def read_permits(conn: Connection) -> list[GivenPermit]:
    """All that are out, at home."""
    return [GivenPermit(*row) for row in await (await conn.execute(READ_PERMITS)).fetchall()]


# -- on the shard of the run


READ_WISHES = "SELECT run_id, concurrency_key FROM runs WHERE run_id = ANY (%b::uuid[]) AND state = 'pending'"


async def read_wishes(conn: Connection, run_ids: Sequence[UUID]) -> list[Wish]:
    """Those of the runs that wait, in no order."""
    return [Wish(*row) for row in await (await conn.execute(READ_WISHES, (list(run_ids),))).fetchall()]


# A run that is gone had its permit, or nobody will lease it.
READ_SPENT = """
SELECT g.run_id, g.permit, coalesce(r.permit >= g.permit, r.run_id IS NULL)
FROM unnest(%b::uuid[], %b::bigint[]) AS g (run_id, permit) LEFT JOIN runs r ON r.run_id = g.run_id
WHERE (r.state = 'leased') IS NOT TRUE
"""
VOID_PERMITS = """
UPDATE runs r SET permit = g.permit
FROM unnest(%b::uuid[], %b::bigint[]) AS g (run_id, permit)
WHERE r.run_id = g.run_id AND r.state <> 'leased' AND (r.permit >= g.permit) IS NOT TRUE
RETURNING r.run_id, g.permit
"""


async def spent_permits(pool: Pool, given: Sequence[GivenPermit]) -> list[SpentPermit]:
    """Those without a lease, of runs of this shard. What is old and was never used is made useless first.

    A lease that is on its way then finds its permit used: the two statements meet at the run's row. Raises
    NotOnThisShard, LedgerUnavailable.
    """
    run_ids = [each.run_id for each in given]
    async with api_transaction(pool, run_ids) as conn:
        rows = await (await conn.execute(READ_SPENT, (run_ids, [each.number for each in given]))).fetchall()
    spent = [SpentPermit(run_id, number) for run_id, number, is_used in rows if is_used]
    ages = {each.run_id: each.is_old for each in given}
    unused = sorted(run_id for run_id, _, is_used in rows if not is_used and ages[run_id])
    if unused:
        numbers = {run_id: number for run_id, number, _ in rows}
        async with api_transaction(pool, unused) as conn:
            cursor = await conn.execute(VOID_PERMITS, (unused, [numbers[run_id] for run_id in unused]))
            spent += [SpentPermit(*row) for row in await cursor.fetchall()]
    return spent
