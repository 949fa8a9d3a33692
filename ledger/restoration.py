"""After a backup was restored: what others have seen of the time since it was made is never given out again.

Workers, receivers of webhooks and owners have seen epochs and lease tokens that this ledger no longer knows of, and the
topics hold events by ids that it would give again. Seconds since 1970 are larger than all of them: an epoch grows by
one a takeover, and in the lower bits of a token or of an outbox id there is room for a million more in each second.
"""

from __future__ import annotations

from typing import NamedTuple

from ledger.connection import Connection
from ledger.partitions import LOCK_ALL_PARTITIONS, partition_count

# 2^20 a second: below 2^53, which JSON keeps exact, until the year 2242.
READ_FLOORS = """
SELECT extract(epoch FROM clock_timestamp())::bigint, extract(epoch FROM clock_timestamp())::bigint << 20
"""

RAISE_EPOCHS = """
UPDATE partitions
SET epoch = greatest(epoch, %(seconds)s) + 1, token_floor = greatest(token_floor, %(tokens)s), owner = NULL,
    owner_since = now()
"""

# Whoever held them may have gone on under a token that is lost. The owner ends them as it ends any lease.
VOID_LEASES = """
UPDATE runs
SET lease_token = greatest(lease_token, %(tokens)s), lease_expires_at = least(lease_expires_at, now())
WHERE state = 'leased'
"""

RAISE_OUTBOX_IDS = """
SELECT setval(pg_get_serial_sequence('outbox', 'id'), greatest(nextval(pg_get_serial_sequence('outbox', 'id')), %s))
"""


class Restoration(NamedTuple):
    """epoch, lease_token: what is given from now on is larger. leases: how many were ended."""

    partitions: int
    epoch: int
    lease_token: int
    leases: int


async def declare_restored(conn: Connection) -> Restoration:
    """Let epochs, lease tokens and event ids go on above whatever was given since the backup. May be repeated.

    Of one shard: each has a backup of its own. Its partitions alone are touched.

    Goes by the server's clock, which must not be behind that of the server whose backup it was. All or nothing, while
    no transaction of any owner or worker is open. Raises LedgerMismatch when the ledger was never initialised.
    """
    await partition_count(conn)
    async with conn.transaction():
        await conn.execute(LOCK_ALL_PARTITIONS)
        row = await (await conn.execute(READ_FLOORS)).fetchone()
        assert row is not None
        seconds, tokens = row
        partitions = (await conn.execute(RAISE_EPOCHS, {"seconds": seconds, "tokens": tokens})).rowcount
        leases = (await conn.execute(VOID_LEASES, {"tokens": tokens})).rowcount
        await conn.execute(RAISE_OUTBOX_IDS, (tokens,))
    return Restoration(partitions, seconds, tokens, leases)
