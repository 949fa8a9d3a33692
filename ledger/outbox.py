"""The outbox: events wait here, written by the transaction that made them true, until the relay has published them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.postgres import types as builtins
from psycopg.pq import Format

from ledger.connection import CONFIRM_COMMITS, Connection
from schemas.events import JOB_EVENTS, RANGE_EVENTS, WAITING_EVENTS

_ALWAYS = {
    "job_ids": "job_id",
    "run_ids": "run_id",
    "partitions": "partition",
    "tenants": "tenant",
    "queues": "queue",
    "lanes": "lane",
    "versions": "version",
}


def emit(event: str, source: str, **columns: str) -> str:
    """The SQL that puts one outbox row in for the rows of `source`, a CTE over runs (or jobs), maybe with a WHERE.

    columns: outbox column = SQL expression over a row of `source`, beside those every event has. `source` has the
    overlap of runs that wait. The statement around it must have a parameter `now`, which tests set and the product
    leaves NULL.
    """
    arrays = {**_ALWAYS, **columns}
    if event in JOB_EVENTS | RANGE_EVENTS:
        del arrays["run_ids"]
    if event in WAITING_EVENTS:
        arrays["gated"] = "overlap <> 0"
    aggregates = ", ".join(f"array_agg({expression})" for expression in arrays.values())
    return (
        f"INSERT INTO outbox (event, at, {', '.join(arrays)}) "
        f"SELECT '{event}', coalesce(%(now)s::timestamptz, now()), {aggregates} FROM {source} HAVING count(*) > 0"
    )


Instant = datetime | int  # microseconds since 1970, where they were asked for


class OutboxRow(NamedTuple):
    """Events of one kind and transaction, side by side; an absent field is None instead of a list."""

    id: int
    event: str
    at: Instant
    job_ids: list[str]
    run_ids: list[str] | None
    partitions: list[int]
    tenants: list[str]
    queues: list[str]
    lanes: list[int]
    versions: list[int]
    attempts: list[int] | None
    lease_tokens: list[int] | None
    scheduled_for: Sequence[Instant | None] | None
    due_at: Sequence[Instant | None] | None
    lease_expires_at: Sequence[Instant | None] | None
    worker_ids: list[str | None] | None
    reasons: list[str | None] | None
    results: list[str | None] | None
    definitions: list[str] | None
    counts: list[int] | None
    gated: list[bool] | None


READ_OUTBOX = """
SELECT id, event, at, job_ids::text[], run_ids::text[], partitions, tenants, queues, lanes, versions, attempts,
       lease_tokens, scheduled_for, due_at, lease_expires_at, worker_ids, reasons, results, definitions, counts, gated
FROM outbox ORDER BY id LIMIT %s
"""


async def read_outbox(conn: Connection, limit: int, *, micros: bool = False) -> list[OutboxRow]:
    """The oldest rows by id. Never `id > last`: a lower id may commit later.

    micros: times come as microseconds since 1970, as Avro has them; a datetime each would cost more than all the rest.
    """
    async with conn.cursor(binary=True) as cursor:
        if micros:
            cursor.adapters.register_loader("timestamptz", _MicrosLoader)
            cursor.adapters.register_loader(_TIMESTAMPTZ_ARRAY, _MicrosArrayLoader)
        await cursor.execute(READ_OUTBOX, (limit,))
        return [OutboxRow(*row) for row in await cursor.fetchall()]


_TIMESTAMPTZ_ARRAY = builtins["timestamptz"].array_oid
_MICROS_1970_TO_2000 = 946_684_800_000_000  # Postgres counts from 2000
_ARRAY_HEADER_BYTES = 20  # dimensions, flag of NULLs, type, length, lower bound


class _MicrosLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> int:
        return int.from_bytes(data, "big", signed=True) + _MICROS_1970_TO_2000


class _MicrosArrayLoader(Loader):
    """An array in Postgres's binary form: after the header, the length (-1 for NULL) and value of each element."""

    format = Format.BINARY

    def load(self, data: Buffer) -> list[int | None]:
        dimensions, has_nulls = struct.unpack_from(">ii", data)
        if dimensions == 0:
            return []
        if has_nulls:
            return list(self._with_nulls(bytes(data)))
        elements = struct.iter_unpack(">iq", memoryview(data)[_ARRAY_HEADER_BYTES:])
        return [since_2000 + _MICROS_1970_TO_2000 for _, since_2000 in elements]

    def _with_nulls(self, data: bytes) -> Iterator[int | None]:
        place = _ARRAY_HEADER_BYTES
        while place < len(data):
            if data[place] == 0xFF:
                place += 4
                yield None
            else:
                place += 12
                yield int.from_bytes(data[place - 8 : place], "big", signed=True) + _MICROS_1970_TO_2000


LAST_UNPUBLISHED = "SELECT max(id) FROM outbox"


async def last_unpublished(conn: Connection) -> int | None:
    """The highest id of a row that waits; None when none does."""
    row = await (await conn.execute(LAST_UNPUBLISHED)).fetchone()
    return row[0] if row else None


class Unpublished(NamedTuple):
    """A row that waits for the relay, and for how long it has."""

    id: int
    age_s: float


OLDEST_UNPUBLISHED = "SELECT id, extract(epoch FROM now() - at)::float8 FROM outbox ORDER BY id LIMIT 1"


async def oldest_unpublished(conn: Connection) -> Unpublished | None:
    """The row that the relay takes next; None when none waits. Kafka has the events of all rows that came before it,
    but for those whose transactions were still open."""
    row = await (await conn.execute(OLDEST_UNPUBLISHED)).fetchone()
    return Unpublished(*row) if row else None


DELETE_FROM_OUTBOX = "DELETE FROM outbox WHERE id = ANY(%s)"


async def delete_from_outbox(conn: Connection, ids: Sequence[int]) -> None:
    """Forget rows that Kafka has acknowledged."""
    await conn.execute(DELETE_FROM_OUTBOX, (list(ids),))


LOCK_RELAY = "SELECT pg_try_advisory_lock(fence_class(), -1)"


async def try_lock_relay(conn: Connection) -> bool:
    """Become this shard's one relay, for as long as the session lives. False while another one is."""
    row = await (await conn.execute(LOCK_RELAY)).fetchone()
    return bool(row and row[0])


# See wake_relay in ledger/schema.sql.
OUTBOX_CHANNEL = "fencepost_outbox"
FALL_ASLEEP = "SELECT pg_try_advisory_lock(fence_class(), -2)"
GET_UP = "SELECT pg_advisory_unlock(fence_class(), -2)"


async def try_fall_asleep(conn: Connection) -> bool:
    """From now on whoever writes to the outbox notifies the channel. False while somebody is writing, who does not.

    Look into the outbox once more after that: what was written before tells nobody.
    """
    row = await (await conn.execute(FALL_ASLEEP)).fetchone()
    return bool(row and row[0])


async def get_up(conn: Connection) -> None:
    """Nobody need notify the channel any more."""
    await conn.execute(GET_UP)


OUTBOX_LAG = """
SELECT count(*), coalesce(extract(epoch FROM now() - min(at)), 0)::float8
FROM (SELECT at FROM outbox UNION ALL SELECT at FROM audit_outbox) AS waiting
"""
CONFIRM_OUTBOX_LAG = f"SELECT lag.*, ({CONFIRM_COMMITS}) FROM ({OUTBOX_LAG}) AS lag"


async def outbox_lag(conn: Connection, *, confirm: bool = False) -> tuple[int, float]:
    """How many rows wait for the relay, of events and of audits, and for how many seconds the oldest has.

    confirm: see `confirm_commits`.
    """
    row = await (await conn.execute(CONFIRM_OUTBOX_LAG if confirm else OUTBOX_LAG)).fetchone()
    assert row is not None
    return row[0], row[1]
