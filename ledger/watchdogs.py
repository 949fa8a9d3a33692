"""What only the ledger sees of an installation that goes wrong: partitions without a living owner, standbys that are
gone or behind, and old snapshots, which keep vacuum from taking dead rows away.

Of one shard, each in a statement that costs next to nothing. Of other users' sessions Postgres tells only members of
pg_monitor. Called by the API when its metrics are read, and by the doctor.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ledger.connection import Connection

# An owner says every 2 s how far decisions are, and one that dies is missed after 15 s.
SILENT_AFTER_S = 15.0


class Attendance(NamedTuple):
    """unowned: partitions without an owner; silent: with one that has not spoken for 15 s. Each with the longest time.

    A silent owner is dead and not missed yet, frozen, or behind with decisions.
    """

    unowned: int
    unowned_s: float
    silent: int
    silent_s: float


WATCH_PARTITIONS = """
SELECT count(*) FILTER (WHERE owner IS NULL), coalesce(max(since_s) FILTER (WHERE owner IS NULL), 0),
       count(*) FILTER (WHERE owner IS NOT NULL AND silent_s > %(silent_after_s)s),
       coalesce(max(silent_s) FILTER (WHERE owner IS NOT NULL), 0)
FROM partitions, LATERAL (SELECT
    extract(epoch FROM coalesce(%(now)s::timestamptz, now()) - owner_since)::float8,
    extract(epoch FROM coalesce(%(now)s::timestamptz, now()) - greatest(decided_through, owner_since))::float8
) AS age (since_s, silent_s)
"""


async def watch_partitions(conn: Connection, *, now: datetime | None = None) -> Attendance:
    """Who attends to the partitions of this shard."""
    row = await (await conn.execute(WATCH_PARTITIONS, {"now": now, "silent_after_s": SILENT_AFTER_S})).fetchone()
    assert row is not None
    return Attendance(*row)


class Standbys(NamedTuple):
    """connected: who streams this server's WAL. sync_missing: commits wait for a synchronous one, and none is there.

    replay_lag_s, replay_lag_bytes: of the one that is the furthest behind; 0 when there is none.
    """

    connected: int
    synchronous: int
    sync_missing: bool
    replay_lag_s: float
    replay_lag_bytes: int


# A base backup that is being made streams too, and is no standby. Who only receives WAL has no replay.
WATCH_STANDBYS = """
SELECT count(*), count(*) FILTER (WHERE is_sync),
       current_setting('synchronous_standby_names') <> '' AND count(*) FILTER (WHERE is_sync) = 0,
       coalesce(extract(epoch FROM max(replay_lag)), 0)::float8,
       coalesce(max(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                                         ELSE pg_current_wal_lsn() END, coalesce(replay_lsn, flush_lsn))), 0)::bigint
FROM (SELECT *, sync_state IN ('sync', 'quorum') AND state = 'streaming' AS is_sync
      FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup') AS standbys
"""


async def watch_standbys(conn: Connection) -> Standbys:
    """Who streams from this server."""
    row = await (await conn.execute(WATCH_STANDBYS)).fetchone()
    assert row is not None
    return Standbys(*row)


class Snapshot(NamedTuple):
    """What holds vacuum back the most. transactions: begun since. held_s: for how long, None of a slot.

    holder: who it is, for an operator: a session with its pid, a prepared transaction or a replication slot.
    """

    transactions: int
    held_s: float | None
    holder: str


# Vacuums are no obstacle to others, however long they take; and this session is not one.
OLDEST_SNAPSHOT = """
SELECT transactions, held_s, holder FROM (
    SELECT greatest(age(backend_xmin), age(backend_xid)),
           extract(epoch FROM coalesce(%(now)s::timestamptz, clock_timestamp()) - xact_start)::float8,
           format('session %%s of %%s (%%s)', pid, coalesce(nullif(application_name, ''), backend_type),
                  coalesce(state, 'no state'))
    FROM pg_stat_activity
    WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
      AND backend_type <> 'autovacuum worker' AND (datid IS NULL OR datname = current_database())
    UNION ALL
    SELECT age(transaction), extract(epoch FROM coalesce(%(now)s::timestamptz, clock_timestamp()) - prepared)::float8,
           format('prepared transaction %%s', gid)
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT age(xmin), NULL, format('replication slot %%s', slot_name) FROM pg_replication_slots WHERE xmin IS NOT NULL
) AS found (transactions, held_s, holder)
ORDER BY transactions DESC, held_s DESC NULLS LAST LIMIT 1
"""


async def oldest_snapshot(conn: Connection, *, now: datetime | None = None) -> Snapshot | None:
    """None when there is none but this session's."""
    row = await (await conn.execute(OLDEST_SNAPSHOT, {"now": now})).fetchone()
    return Snapshot(*row) if row else None
