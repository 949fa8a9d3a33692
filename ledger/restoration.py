"""After a backup was restored: what others have seen of the time since it was made is never given out again.

Workers, receivers of webhooks and owners have seen epochs and lease tokens that this ledger no longer knows of, and the
topics hold events by ids that it would give again. All three go on above one floor. It is the time since 1970, in units
of which there are a million a second: more than anybody gives. So a ledger that is restored again, from the same backup
too, has a higher one, however little later. Where the clock is behind a former floor that the backup knows of, the new
one is as far above that as four thousand million takeovers, leases or events reach.
"""

from __future__ import annotations

from typing import NamedTuple

from ledger.connection import Connection
from ledger.partitions import LOCK_ALL_PARTITIONS, partition_count

# 2^20 a second: below 2^53, which JSON keeps exact, until the year 2242.
READ_FLOOR = """
SELECT CASE WHEN clock > known THEN clock ELSE known + (1::bigint << 32) END
FROM (SELECT (extract(epoch FROM clock_timestamp()) * (1 << 20))::bigint) AS read (clock),
     (SELECT greatest(max(epoch), max(token_floor), nextval(pg_get_serial_sequence('outbox', 'id')))
      FROM partitions) AS given (known)
"""

RAISE_EPOCHS = """
UPDATE partitions SET epoch = %(floor)s + 1, token_floor = %(floor)s, owner = NULL, owner_since = now()
"""

# Whoever held them may have gone on under a token that is lost. The owner ends them as it ends any lease.
VOID_LEASES = """
UPDATE runs
SET lease_token = greatest(lease_token, %(floor)s), lease_expires_at = least(lease_expires_at, now())
WHERE state = 'leased'
"""

RAISE_OUTBOX_IDS = """
SELECT setval(pg_get_serial_sequence('outbox', 'id'), %(floor)s),
       setval(pg_get_serial_sequence('audit_outbox', 'id'), %(floor)s)
"""

# Home alone has any permits: what is leased on other shards is counted anew, under numbers that nobody has seen.
COUNT_LIVE_ANEW = """
WITH again AS (UPDATE live_limits SET counted = false RETURNING tenant)
SELECT setval(pg_get_serial_sequence('permits', 'permit'), %(floor)s) FROM (SELECT count(*) FROM again) AS done
"""


class Restoration(NamedTuple):
    """floor: epochs, lease tokens and event ids that are given from now on are larger. leases: how many were ended."""

    partitions: int
    floor: int
    leases: int


async def declare_restored(conn: Connection) -> Restoration:
    """Let epochs, lease tokens and event ids go on above whatever was given since the backup. May be repeated.

    Of one shard: each has a backup of its own. Its partitions alone are touched.

    The server's clock must not be behind the moment at which the same ledger was restored before, if it ever was, from
    a backup that is older than that. All or nothing, while no transaction of any owner or worker is open. Raises
    LedgerMismatch when the ledger was never initialised.
    """
    await partition_count(conn)
    async with conn.transaction():
        await conn.execute(LOCK_ALL_PARTITIONS)
        row = await (await conn.execute(READ_FLOOR)).fetchone()
        assert row is not None
        asked = {"floor": row[0]}
        partitions = (await conn.execute(RAISE_EPOCHS, asked)).rowcount
        leases = (await conn.execute(VOID_LEASES, asked)).rowcount
        await conn.execute(RAISE_OUTBOX_IDS, asked)
        await conn.execute(COUNT_LIVE_ANEW, asked)
    return Restoration(partitions, row[0], leases)
