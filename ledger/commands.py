"""What became of each command: a second delivery under the same id is a no-op, and HTTP callers learn the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from ledger.connection import Connection, Pool
from ledger.fence import OwnerTransaction, partitions_transaction

APPLIED = "applied"
UNCHANGED = "unchanged"


class Outcome(NamedTuple):
    """outcome: APPLIED, UNCHANGED (nothing was left to do), or a rejection's code with its detail and field.

    The detail of an applied trigger is the id of its run.
    """

    command_id: UUID
    outcome: str
    detail: str | None = None
    field: str | None = None


RECORD_OUTCOMES = """
INSERT INTO applied_commands (command_id, outcome, detail, field, partition)
SELECT *, %s::int FROM unnest(%b::uuid[], %b::text[], %b::text[], %b::text[])
ON CONFLICT (command_id) DO NOTHING
"""


async def record_outcomes(tx: OwnerTransaction, outcomes: Sequence[Outcome]) -> None:
    """Note outcomes in the transaction of their effects."""
    columns = [list(column) for column in zip(*outcomes, strict=True)]
    await tx.conn.execute(RECORD_OUTCOMES, (tx.fence.partition, *columns))


READ_OUTCOMES = "SELECT command_id, outcome, detail, field FROM applied_commands WHERE command_id = ANY(%b)"


async def read_outcomes(conn: Connection, command_ids: Sequence[UUID]) -> dict[UUID, Outcome]:
    """The outcomes of those commands that were applied or rejected already."""
    rows = await (await conn.execute(READ_OUTCOMES, (list(command_ids),))).fetchall()
    return {row[0]: Outcome(*row) for row in rows}


# One statement: of two that race for a key, the second sees the first's digest.
NOTE_KEYED_COMMAND = """
INSERT INTO keyed_commands AS known (command_id, digest, partition) VALUES (%s, %s, %s)
ON CONFLICT (command_id) DO UPDATE SET digest = known.digest
RETURNING digest
"""


async def note_keyed_command(pool: Pool, partition: int, command_id: UUID, digest: bytes) -> bool:
    """Note what is to be sent under an id that comes from a caller's key; False when that was something else before.

    partition: of the command's job. Fenced: it must be known wherever the partition goes. Raises NotOnThisShard,
    LedgerUnavailable.
    """
    async with partitions_transaction(pool, [partition]) as conn:
        cursor = await conn.execute(NOTE_KEYED_COMMAND, (command_id, digest, partition))
    row = await cursor.fetchone()
    assert row is not None
    return bool(row[0] == digest)


FORGET_OUTCOME = "DELETE FROM applied_commands WHERE command_id = %s AND outcome = %s"


async def forget_outcome(conn: Connection, outcome: Outcome) -> None:
    """A command that was rejected for the moment only: it may come again under the same id, from a caller's key."""
    await conn.execute(FORGET_OUTCOME, (outcome.command_id, outcome.outcome))


FORGOTTEN_AT_ONCE = 10_000

# A few at a time, by age: there may be a hundred million, and a statement that looked at all of them would take longer
# than a transaction may.
FORGET_OUTCOMES = """
WITH keyed AS (
    DELETE FROM keyed_commands WHERE command_id IN (
        SELECT command_id FROM keyed_commands WHERE at < now() - interval '24 hours' ORDER BY at LIMIT %(limit)s)
    RETURNING command_id
), applied AS (
    DELETE FROM applied_commands WHERE command_id IN (
        SELECT command_id FROM applied_commands WHERE applied_at < now() - interval '24 hours'
        ORDER BY applied_at LIMIT %(limit)s)
    RETURNING command_id
)
SELECT greatest((SELECT count(*) FROM keyed), (SELECT count(*) FROM applied))
"""


async def forget_outcomes(conn: Connection) -> bool:
    """Drop outcomes that are too old for any retry; whether there may be more of them."""
    row = await (await conn.execute(FORGET_OUTCOMES, {"limit": FORGOTTEN_AT_ONCE})).fetchone()
    assert row is not None
    return bool(row[0] == FORGOTTEN_AT_ONCE)
