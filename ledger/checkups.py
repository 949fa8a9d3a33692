"""What `fencepost doctor` reads of the ledger: how partitions, and one tenant's runs and jobs, are at this moment."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ledger.connection import Connection
from ledger.partitions import held_here
from ledger.slots import MAY_TAKE_SLOT


class PartitionsCheckup(NamedTuple):
    """oldest_decided_s: since the oldest decided_through. Who owns them is told by ledger/watchdogs.py.

    undecided_s: for how long the oldest occurrence has waited for its decision; 0 when none does.
    """

    total: int
    oldest_decided_s: float
    undecided_partitions: int
    undecided_s: float


# Of jobs: not those that fire once. The decision of a one-off is its making, and its cursor stays where it is.
_RECURRING = "NOT coalesce(definition::jsonb -> 'schedule' ?| ARRAY['runAt', 'delaySeconds'], false)"

CHECK_PARTITIONS = f"""
WITH behind AS (
    SELECT partition, min(next_fire_at) AS since FROM jobs
    WHERE state = 'active' AND next_fire_at < coalesce(%(now)s::timestamptz, now()) AND {_RECURRING} GROUP BY partition
), ages AS (
    SELECT extract(epoch FROM coalesce(%(now)s::timestamptz, now()) - p.decided_through)::float8 AS decided_s,
           extract(epoch FROM coalesce(%(now)s::timestamptz, now()) - b.since)::float8 AS behind_s
    FROM partitions p LEFT JOIN behind b USING (partition)
)
SELECT count(*), coalesce(max(decided_s), 0), count(behind_s), coalesce(max(behind_s), 0)
FROM ages
"""


async def check_partitions(conn: Connection, *, now: datetime | None = None) -> PartitionsCheckup:
    """All partitions of this ledger, whoever's jobs they have."""
    row = await (await conn.execute(CHECK_PARTITIONS, {"now": now})).fetchone()
    assert row is not None
    return PartitionsCheckup(*row)


class RunsCheckup(NamedTuple):
    """Runs of a tenant. overdue: due, and nothing but a missing worker keeps them; expired: leases past their end.

    dead_last_hour: of those that died, how many did so within the hour.
    """

    overdue: int
    overdue_s: float
    overdue_run_id: UUID | None
    overdue_queue: str | None
    expired: int
    expired_s: float
    dead_last_hour: int


CHECK_RUNS = f"""
WITH clock AS (SELECT coalesce(%(now)s::timestamptz, now()) AS now),
overdue AS (
    SELECT r.run_id, r.queue, r.due_at FROM runs r, clock
    WHERE r.tenant = %(tenant)s AND r.state = 'pending' AND r.due_at < clock.now
      AND (r.overlap = 0 OR ({MAY_TAKE_SLOT})) AND {held_here("r")}
      AND NOT EXISTS (SELECT FROM pauses p WHERE p.tenant = r.tenant AND (p.queue IS NULL OR p.queue = r.queue)
                      AND p.resumed_at IS NULL)
), oldest AS (
    SELECT * FROM overdue ORDER BY due_at LIMIT 1
), expired AS (
    SELECT count(*) AS count, min(r.lease_expires_at) AS since FROM runs r, clock
    WHERE r.tenant = %(tenant)s AND r.state = 'leased' AND r.lease_expires_at < clock.now AND {held_here("r")}
)
SELECT (SELECT count(*) FROM overdue), coalesce(extract(epoch FROM clock.now - oldest.due_at), 0)::float8,
       oldest.run_id, oldest.queue, expired.count, coalesce(extract(epoch FROM clock.now - expired.since), 0)::float8,
       (SELECT count(*) FROM dead_runs d
        WHERE d.tenant = %(tenant)s AND d.died_at > clock.now - interval '1 hour' AND {held_here("d")})
FROM clock CROSS JOIN expired LEFT JOIN oldest ON true
"""


async def check_runs(conn: Connection, tenant: str, *, now: datetime | None = None) -> RunsCheckup:
    """Looks at every run of the tenant: for a look now and then."""
    row = await (await conn.execute(CHECK_RUNS, {"tenant": tenant, "now": now})).fetchone()
    assert row is not None
    return RunsCheckup(*row)


class StalledJob(NamedTuple):
    """A job whose pending occurrence has come and has not been decided; since then it waits."""

    job_id: UUID
    next_fire_at: datetime
    definition: str


STALLED_JOBS = f"""
SELECT job_id, next_fire_at, definition FROM jobs j
WHERE tenant = %(tenant)s AND state = 'active' AND {_RECURRING}
  AND next_fire_at < coalesce(%(now)s::timestamptz, now()) - %(waited_s)s * interval '1 second' AND {held_here("j")}
ORDER BY next_fire_at LIMIT %(limit)s
"""


async def stalled_jobs(
    conn: Connection, tenant: str, waited_s: float, limit: int, *, now: datetime | None = None
) -> list[StalledJob]:
    """The tenant's jobs whose pending occurrence has waited for its decision for that long, the oldest first."""
    asked = {"tenant": tenant, "waited_s": waited_s, "limit": limit, "now": now}
    return [StalledJob(*row) for row in await (await conn.execute(STALLED_JOBS, asked)).fetchall()]


TZDATA_VERSIONS = f"""
SELECT DISTINCT tzdata_version FROM jobs j
WHERE tenant = %s AND state = 'active' AND next_fire_at IS NOT NULL AND tzdata_version IS NOT NULL AND {held_here("j")}
"""


async def tzdata_versions(conn: Connection, tenant: str) -> set[str]:
    """The versions of tzdata that the pending occurrences of a tenant's jobs were computed with."""
    return {row[0] for row in await (await conn.execute(TZDATA_VERSIONS, (tenant,))).fetchall()}
