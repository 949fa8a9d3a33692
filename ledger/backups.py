"""What `fencepostd backup-check` reads of a shard: how its server keeps what is committed, and what a backup needs."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ledger.connection import Connection


class Keeping(NamedTuple):
    """How a server keeps what is committed. now: its clock. archive_timeout_s: 0 when a segment is archived once full.

    archived_at, failed_at: the last success and failure; None when there was none, or nobody archives. receivers: who
    streams its WAL. size_bytes: of this database.
    """

    server: str
    now: datetime
    size_bytes: int
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    wal_level: str
    archive_mode: str
    archive_timeout_s: float
    archived_at: datetime | None
    failed_at: datetime | None
    receivers: int


READ_KEEPING = """
SELECT format('%s:%s/%s', coalesce(host(inet_server_addr()), 'local'), coalesce(inet_server_port(), 0),
              current_database()),
       clock_timestamp(), pg_database_size(current_database()), current_setting('fsync')::bool,
       current_setting('full_page_writes')::bool, current_setting('synchronous_commit'), current_setting('wal_level'),
       current_setting('archive_mode'),
       extract(epoch FROM current_setting('archive_timeout')::interval)::float8,
       last_archived_time, last_failed_time,
       (SELECT count(*) FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup')
FROM pg_stat_archiver
"""


async def read_keeping(conn: Connection) -> Keeping:
    """Of the server that the session is with."""
    row = await (await conn.execute(READ_KEEPING)).fetchone()
    assert row is not None
    return Keeping(*row)


READ_CONSUMED = "SELECT partition, consumed_offset FROM partitions"


async def read_consumed(conn: Connection) -> dict[int, int]:
    """The next command of each partition of this shard to be applied, by its offset."""
    return dict(await (await conn.execute(READ_CONSUMED)).fetchall())


# All jobs are looked at, which for millions takes longer than a statement may.
READ_TZDATA = """
SELECT ARRAY(SELECT DISTINCT tzdata_version FROM jobs
             WHERE state <> 'deleted' AND next_fire_at IS NOT NULL AND tzdata_version IS NOT NULL),
       ARRAY(SELECT DISTINCT tzdata_version FROM zone_rules)
"""


async def read_tzdata(conn: Connection) -> tuple[set[str], set[str]]:
    """The versions of tzdata by which pending occurrences were computed, and those whose rules are kept here."""
    async with conn.transaction():
        await conn.execute("SET LOCAL transaction_timeout = 0")
        row = await (await conn.execute(READ_TZDATA)).fetchone()
    assert row is not None
    return set(row[0]), set(row[1])
