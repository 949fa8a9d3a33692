"""The fence: every write happens in one of these transactions, or not at all.

An owner proves that its epoch of the partition is current; other writers (the API) hold the epochs of the partitions
they touch still. Either way a takeover waits for the writer, and the writer sees the epoch that it waited for.
Source: ARCHITECTURE, The fence.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from ledger.confirmed_connection import patience
from ledger.connection import Connection, Pool, ledger_errors
from schemas.errors import LedgerMismatch
from schemas.ids import partition_of_run


@dataclass(frozen=True, slots=True)
class Fence:
    """What an owner must prove on every write."""

    partition: int
    epoch: int
    owner: str


@dataclass(frozen=True, slots=True)
class Takeover:
    """What the new owner of a partition got: its fence, and where the last one stopped."""

    fence: Fence
    previous_owner: str | None
    consumed_offset: int
    decided_through: datetime


@dataclass(frozen=True, slots=True)
class FencedTransaction:
    """An open transaction under the fence of each partition that it writes to. now is the transaction's instant."""

    conn: Connection
    now: datetime


@dataclass(frozen=True, slots=True)
class OwnerTransaction(FencedTransaction):
    """One under the fence of one partition. consumed_offset is the next command to apply."""

    fence: Fence
    consumed_offset: int


FENCE_OWNER = "SELECT fence_owner(%s, %s, %s), now()"


@asynccontextmanager
async def owner_transaction(pool: Pool, fence: Fence) -> AsyncIterator[OwnerTransaction]:
    """A transaction that commits only under the fence's epoch and owner.

    Raises EpochLost (drop the partition's memory), NotOnThisShard, or LedgerUnavailable (nothing is known to be
    written; try again: every write of ours is idempotent under its fence).
    """
    with ledger_errors(fence.partition):
        async with pool.connection() as conn, conn.transaction():
            cursor = await conn.execute(FENCE_OWNER, (fence.partition, fence.epoch, fence.owner))
            row = await cursor.fetchone()
            assert row is not None
            yield OwnerTransaction(conn, row[1], fence, row[0])


FENCE_OWNERS = """
SELECT now(), fence_owner(partition, epoch, owner)
FROM unnest(%b::int[], %b::bigint[], %b::text[]) AS f (partition, epoch, owner)
"""


@asynccontextmanager
async def owners_transaction(pool: Pool, fences: Iterable[Fence]) -> AsyncIterator[FencedTransaction]:
    """A transaction that commits only under all of the fences, which are of distinct partitions of this shard.

    Raises EpochLost (one of them is over: each apart will tell which) or LedgerUnavailable, as owner_transaction does.
    """
    fences = sorted(fences, key=lambda fence: fence.partition)
    columns = [[getattr(fence, name) for fence in fences] for name in ("partition", "epoch", "owner")]
    with ledger_errors():
        async with pool.connection() as conn, conn.transaction():
            row = await (await conn.execute(FENCE_OWNERS, columns)).fetchone()
            assert row is not None
            yield FencedTransaction(conn, row[0])


API_SILENCE_S = 8.0  # the SDK waits 10 s for an answer, and shall get one
FENCE_PARTITIONS = "SELECT fence_partitions(%s::int[])"


@asynccontextmanager
async def api_transaction(pool: Pool, run_ids: Iterable[UUID]) -> AsyncIterator[Connection]:
    """A transaction in which the epochs of these runs' partitions stand still. As `partitions_transaction`."""
    async with partitions_transaction(pool, sorted({partition_of_run(run_id) for run_id in run_ids})) as conn:
        yield conn


@asynccontextmanager
async def partitions_transaction(pool: Pool, partitions: Sequence[int]) -> AsyncIterator[Connection]:
    """A transaction in which the epochs of these partitions (ascending, no duplicates) stand still.

    Begin, fence and the caller's first statement travel together: two round trips a transaction, or one, when the
    caller waits for no answer before it leaves.
    Raises NotOnThisShard for partitions that are not, LedgerUnavailable; soon, for who waits is a client.
    """
    with ledger_errors():
        # conn.transaction() would take a fifth of the client's time. What fails is rolled back as it leaves the pool's
        # block; a COMMIT behind a failed statement is not executed.
        async with pool.connection() as conn:
            with patience(conn, API_SILENCE_S):
                async with conn.pipeline():
                    await conn.execute("BEGIN", prepare=False)
                    await conn.execute(FENCE_PARTITIONS, (list(partitions),))
                    yield conn
                    await conn.execute("COMMIT", prepare=False)


# A run that comes back to its job (a retry, a release, the next occurrence) goes where the job's state says, and a job
# whose state changes takes its waiting runs along. Side by side, each would miss what the other is about to commit. So
# the first kind of writer shares this lock of the partition, the second has it alone. As with the fence, the statement
# after the lock sees what the lock waited for. It is taken before any lock on a row that the other kind might want.
HOLD_JOB_STATES = "SELECT pg_advisory_xact_lock_shared(fence_class() + 1, p) FROM unnest(%s::int[]) AS p"


async def hold_job_states(conn: Connection, run_ids: Iterable[UUID]) -> None:
    """Keep the states of these runs' jobs as they are until the transaction ends."""
    await conn.execute(HOLD_JOB_STATES, (sorted({partition_of_run(run_id) for run_id in run_ids}),))


CHANGE_JOB_STATES = "SELECT pg_advisory_xact_lock(fence_class() + 1, %s)"


async def change_job_states(tx: OwnerTransaction) -> None:
    """Wait for everybody who holds the states of the partition's jobs, and keep others from it until the end."""
    await tx.conn.execute(CHANGE_JOB_STATES, (tx.fence.partition,))


TAKE_OVER = "SELECT epoch, previous_owner, consumed_offset, decided_through FROM take_over(%s, %s)"


async def take_over(pool: Pool, partition: int, owner: str) -> Takeover:
    """Make `owner` the partition's owner under a new epoch, after every transaction of the old one has ended.

    owner: a nonce of the process, never reused. Raises LedgerUnavailable, LedgerMismatch for a partition that this
    ledger does not have.
    """
    with ledger_errors(partition):
        async with pool.connection() as conn:
            row = await (await conn.execute(TAKE_OVER, (partition, owner))).fetchone()
    if row is None:
        raise LedgerMismatch([f"partition {partition} is not in the ledger; was it initialised with fewer?"])
    epoch, previous_owner, consumed_offset, decided_through = row
    return Takeover(Fence(partition, epoch, owner), previous_owner, consumed_offset, decided_through)


# A row of partitions is its own fence: a takeover changes the very row that these two compare and change, so whichever
# comes second waits for the other and sees what it wrote. They need no lock beside the row's.
RELEASE_PARTITION = """
UPDATE partitions SET owner = NULL, owner_since = now(), decided_through = greatest(decided_through, %s)
WHERE partition = %s AND epoch = %s AND owner = %s
"""


async def release_partition(pool: Pool, fence: Fence, decided_through: datetime | None = None) -> None:
    """Say that nobody owns the partition now; a no-op when somebody else took it over already.

    decided_through: the last word on it, if there is one.
    """
    with ledger_errors(fence.partition):
        async with pool.connection() as conn:
            await conn.execute(RELEASE_PARTITION, (decided_through, fence.partition, fence.epoch, fence.owner))


# Waits for nobody: a row that is locked is left out, so that no partition's transaction holds up another partition's.
# The words come as one text: to make four arrays of them was a sixth of what an idle owner's loop did.
SAY_DECIDED = """
WITH ours AS (
    SELECT p.partition, s.through
    FROM json_to_recordset(%s::json) AS s (partition int, epoch bigint, owner text, through timestamptz)
    JOIN partitions p ON p.partition = s.partition
    WHERE p.epoch = s.epoch AND p.owner = s.owner AND p.decided_through < s.through
    FOR NO KEY UPDATE OF p SKIP LOCKED
)
UPDATE partitions p SET decided_through = ours.through FROM ours WHERE p.partition = ours.partition
RETURNING p.partition
"""


async def say_decided(pool: Pool, through: Mapping[Fence, datetime]) -> set[int]:
    """Say of many partitions at once up to when every occurrence has its decision: one statement, each row fenced.

    Returns the partitions of which it was written. Of the others the epoch or the owner is another, the ledger knew as
    much, or somebody was writing to the row just then. Raises LedgerUnavailable.
    """
    words = [
        {"partition": fence.partition, "epoch": fence.epoch, "owner": fence.owner, "through": through[fence]}
        for fence in sorted(through, key=lambda fence: fence.partition)
    ]
    with ledger_errors():
        async with pool.connection() as conn:
            cursor = await conn.execute(SAY_DECIDED, (msgspec.json.encode(words).decode(),))
            return {partition for (partition,) in await cursor.fetchall()}
