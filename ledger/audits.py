"""Who changed what, noted by the transaction that changed it; the relay publishes it beside the run events.

An outbox of its own: relays of before know nothing of it, and would stand still before a row that they cannot read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ledger.connection import Connection
from ledger.fence import OwnerTransaction

# Whoever has no token is somebody with the ledger's password.
ACTOR = "coalesce(%(by)s::text, 'postgres:' || session_user)"


def note(source: str, *, action: str, subject: str, detail: str = "NULL") -> str:
    """The SQL that notes each row of `source`, a CTE over what was changed that has its tenant, on home alone.

    For what is told to every shard: home's word is the one that counts. action, subject, detail: SQL expressions over
    a row. The statement around it must have a parameter `by`, a token's id or NULL.
    """
    columns = ", ".join(f"array_agg(({each})::text)" for each in (action, "tenant", ACTOR, subject, detail))
    return (
        "INSERT INTO audit_outbox (partition, actions, tenants, actors, subjects, details) "
        f"SELECT 0, {columns} FROM {source} "
        "WHERE '0' = (SELECT value FROM settings WHERE key = 'shard') HAVING count(*) > 0"
    )


class Change(NamedTuple):
    """What a command did. actor: a token's id."""

    action: str
    tenant: str
    actor: str
    subject: str


NOTE_CHANGES = """
INSERT INTO audit_outbox (partition, actions, tenants, actors, subjects, details)
VALUES (%s, %b::text[], %b::text[], %b::text[], %b::text[], array_fill(NULL::text, ARRAY[%s]))
"""


async def note_changes(tx: OwnerTransaction, changes: Sequence[Change]) -> None:
    """Note changes, at least one, in the transaction that makes them."""
    columns = [list(column) for column in zip(*changes, strict=True)]
    await tx.conn.execute(NOTE_CHANGES, (tx.fence.partition, *columns, len(changes)))


class AuditRow(NamedTuple):
    """Changes of one transaction, side by side. partition: of the topic. at_us: microseconds since 1970."""

    id: int
    partition: int
    at_us: int
    actions: list[str]
    tenants: list[str]
    actors: list[str]
    subjects: list[str]
    details: list[str | None]


READ_AUDITS = """
SELECT id, partition, (extract(epoch FROM at) * 1000000)::bigint, actions, tenants, actors, subjects, details
FROM audit_outbox ORDER BY id LIMIT %s
"""


async def read_audits(conn: Connection, limit: int) -> list[AuditRow]:
    """The oldest rows by id. Never `id > last`: a lower id may commit later."""
    return [AuditRow(*row) for row in await (await conn.execute(READ_AUDITS, (limit,))).fetchall()]


DELETE_AUDITS = "DELETE FROM audit_outbox WHERE id = ANY(%s)"


async def delete_audits(conn: Connection, ids: Sequence[int]) -> None:
    """Forget rows that Kafka has acknowledged."""
    await conn.execute(DELETE_AUDITS, (list(ids),))
