"""Jobs whose pending occurrence was computed with another tzdata, and the rules of time that each tzdata had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from ledger.connection import Connection, read_batches
from ledger.fence import OwnerTransaction, change_job_states
from schemas.zones import TZDATA_VERSION

HAS_RULES = "SELECT EXISTS (SELECT FROM zone_rules WHERE tzdata_version = %s)"


async def has_rules(conn: Connection) -> bool:
    """Whether the rules of this process's tzdata are kept."""
    row = await (await conn.execute(HAS_RULES, (TZDATA_VERSION,))).fetchone()
    return bool(row and row[0])


HAS_OTHER_RULES = "SELECT EXISTS (SELECT FROM zone_rules WHERE tzdata_version <> %s)"


async def has_other_rules(conn: Connection) -> bool:
    """Whether the rules of another tzdata are kept, too: then some owner has run it, at some time."""
    row = await (await conn.execute(HAS_OTHER_RULES, (TZDATA_VERSION,))).fetchone()
    return bool(row and row[0])


KEEP_RULES = """
INSERT INTO zone_rules (tzdata_version, zone, tzif)
SELECT %(tzdata)s, * FROM unnest(%(zones)b::text[], %(tzifs)b::bytea[])
ON CONFLICT DO NOTHING
"""


async def keep_rules(tx: OwnerTransaction, rules: Mapping[str, bytes]) -> None:
    """Keep what this process's tzdata says of each zone: half a megabyte, once a version."""
    zones = sorted(rules)
    asked = {"tzdata": TZDATA_VERSION, "zones": zones, "tzifs": [rules[zone] for zone in zones]}
    await tx.conn.execute(KEEP_RULES, asked)


READ_RULES = "SELECT zone, tzif FROM zone_rules WHERE tzdata_version = %s"


async def read_rules(conn: Connection, tzdata_version: str) -> dict[str, bytes]:
    """What that tzdata said of each zone; nothing when no owner that ran it has kept it."""
    return dict(await (await conn.execute(READ_RULES, (tzdata_version,))).fetchall())


class StaleJob(NamedTuple):
    """A job whose pending occurrence was computed with another tzdata. zone: its cron's, None when it names none."""

    job_id: UUID
    tzdata_version: str | None
    zone: str | None


FIND_STALE_JOBS = """
SELECT job_id, tzdata_version, definition::jsonb #>> '{schedule,zone}' FROM jobs
WHERE partition = %s AND tzdata_version IS DISTINCT FROM %s AND state <> 'deleted' AND next_fire_at IS NOT NULL
"""


async def find_stale_jobs(conn: Connection, partition: int) -> list[StaleJob]:
    """Those of a partition: one look at each of its jobs, which for a million may take longer than a writer may."""
    batches = read_batches(conn, StaleJob, FIND_STALE_JOBS, (partition, TZDATA_VERSION))
    return [job async for batch in batches for job in batch]


STAMP_JOBS = "UPDATE jobs SET tzdata_version = %s WHERE job_id = ANY(%b)"


async def stamp_jobs(tx: OwnerTransaction, job_ids: Sequence[UUID]) -> None:
    """Note that the pending occurrences of these jobs are as this process's tzdata has them, too."""
    await tx.conn.execute(STAMP_JOBS, (TZDATA_VERSION, sorted(job_ids)))


LOCK_UNSTARTED = """
SELECT run_id, version FROM runs
WHERE run_id = ANY(%b) AND state <> 'leased' AND lease_token = 0
ORDER BY run_id FOR UPDATE
"""


async def lock_unstarted(tx: OwnerTransaction, run_ids: Sequence[UUID]) -> dict[UUID, int]:
    """Those of the runs that nobody has leased yet, nor can until the transaction ends, with their versions."""
    await change_job_states(tx)  # first, as everywhere
    return dict(await (await tx.conn.execute(LOCK_UNSTARTED, (list(run_ids),))).fetchall())
