"""A partition's rows, copied from one shard to another while both work.

First the bulk, while triggers on the source note which rows change; then those, again and again, until few are left.
What is small, or is only added to, is copied at the end, when nobody writes any more. Rows travel as Postgres's own
binary form, unread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.errors import LockNotAvailable

from ledger.confirmed_connection import ConfirmedConnection, patience
from ledger.connection import Connection, Pool, ledger_errors, session
from schemas.errors import InvariantBroken, LedgerUnavailable, MoveRefused

KEY_OF = {"jobs": "job_id", "runs": "run_id", "dead_runs": "run_id"}  # what triggers note
CHUNK_ROWS = 5_000
CHUNK_BYTES = 8 << 20
FEW_CHANGES = 500
# What is noted under a transaction's own time may be committed so much later: `transaction_timeout`, and some more.
COMMITTED_WITHIN = timedelta(seconds=15)
DUTY = 0.5  # of the time, while the source has everything: traffic goes first

_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL = b"\xff\xff"
Rows = list[bytes]
Guard = Callable[[], AbstractAsyncContextManager[ConfirmedConnection]]


@asynccontextmanager
async def transaction(pool: Pool) -> AsyncIterator[ConfirmedConnection]:
    """Raises our errors for psycopg's."""
    with ledger_errors():
        async with pool.connection() as conn, conn.transaction():
            yield conn


COLUMNS = """
SELECT attname::text FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""

NOTE_CHANGES = """
CREATE OR REPLACE TRIGGER moving_{partition}_kept AFTER INSERT OR UPDATE ON {relation}
FOR EACH ROW WHEN (NEW.partition = {partition}) EXECUTE FUNCTION note_moving_row();
CREATE OR REPLACE TRIGGER moving_{partition}_gone AFTER DELETE ON {relation}
FOR EACH ROW WHEN (OLD.partition = {partition}) EXECUTE FUNCTION note_moving_row();
"""
STOP_NOTING = """
DROP TRIGGER IF EXISTS moving_{partition}_kept ON {relation};
DROP TRIGGER IF EXISTS moving_{partition}_gone ON {relation};
"""
_BRIEFLY = "SET LOCAL lock_timeout = '100ms'"
LOCKED_WITHIN_S = 60.0
LOCK_AGAIN_S = 0.3

READ_CHANGES = "SELECT id, relation, row_id FROM moving_rows WHERE partition = %s ORDER BY id LIMIT %s"
FORGET_CHANGES = "DELETE FROM moving_rows WHERE id = ANY(%s)"
FORGET_ALL_CHANGES = "DELETE FROM moving_rows WHERE partition = %s"

# What is copied once nobody writes any more: from which rows, and what becomes of one that is there.
LAST = {
    "job_slots": ("SELECT {columns} FROM job_slots WHERE partition_of_run(run_id) = {partition}", "NOTHING"),
    "slotless_runs": ("SELECT {columns} FROM slotless_runs WHERE partition_of_run(run_id) = {partition}", "NOTHING"),
    "takeovers": ("SELECT {columns} FROM takeovers WHERE partition = {partition}", "NOTHING"),
    "commands_ahead": ("SELECT {columns} FROM commands_ahead WHERE partition = {partition}", "NOTHING"),
    # A call may have leased runs of several partitions, and those of others may be on the target already.
    "lease_requests": (
        """
        SELECT q.request_id, array_agg(l.run_id ORDER BY l.place), array_agg(l.lease_token ORDER BY l.place), q.at
        FROM lease_requests q, unnest(q.run_ids, q.lease_tokens) WITH ORDINALITY AS l (run_id, lease_token, place)
        WHERE partition_of_run(l.run_id) = {partition} GROUP BY q.request_id
        """,
        """
        UPDATE SET run_ids = lease_requests.run_ids || ARRAY(
                SELECT n.run_id FROM unnest(excluded.run_ids, excluded.lease_tokens)
                       WITH ORDINALITY AS n (run_id, lease_token, place)
                WHERE n.run_id <> ALL (lease_requests.run_ids) ORDER BY n.place),
            lease_tokens = lease_requests.lease_tokens || ARRAY(
                SELECT n.lease_token FROM unnest(excluded.run_ids, excluded.lease_tokens)
                       WITH ORDINALITY AS n (run_id, lease_token, place)
                WHERE n.run_id <> ALL (lease_requests.run_ids) ORDER BY n.place)
        """,
    ),
}
# Only added to, and found by age. NULL: of a time when nobody noted the partition; it goes along with any.
ADDED_TO = {"applied_commands": "applied_at", "keyed_commands": "at"}

REMOVE = {
    "jobs": "DELETE FROM jobs WHERE job_id IN (SELECT job_id FROM jobs WHERE partition = {partition} LIMIT {limit})",
    "runs": "DELETE FROM runs WHERE run_id IN (SELECT run_id FROM runs WHERE partition = {partition} LIMIT {limit})",
    "dead_runs": """
        DELETE FROM dead_runs WHERE run_id IN (
            SELECT run_id FROM dead_runs WHERE partition = {partition} ORDER BY run_id LIMIT {limit})
    """,
    "job_slots": "DELETE FROM job_slots WHERE partition_of_run(run_id) = {partition}",
    "slotless_runs": "DELETE FROM slotless_runs WHERE partition_of_run(run_id) = {partition}",
    "takeovers": "DELETE FROM takeovers WHERE partition = {partition}",
    "commands_ahead": "DELETE FROM commands_ahead WHERE partition = {partition}",
}


@dataclass(slots=True)
class PartitionCopy:
    """Copies one partition. on_source, on_target: open a transaction there, which fails once somebody else moves it.

    told: is given the number of rows that have been copied, chunk by chunk.
    """

    partition: int
    source: Pool
    on_source: Guard
    on_target: Guard
    told: Callable[[int], None]
    rows: int = 0
    outcomes_since: datetime | None = None
    timeline: int = 0  # the source's since copying began; see note_changes
    columns: dict[str, str] = field(default_factory=dict)

    async def note_changes(self) -> None:
        """From now on every change of the partition's jobs and runs is noted.

        What was seen under one timeline of the source, and is not on its standby, a promotion takes back unnoted.
        """
        async with self.on_source() as conn:
            self.timeline = conn.timeline
        for relation in KEY_OF:
            await _alter(self.on_source, NOTE_CHANGES.format(partition=self.partition, relation=relation))

    async def stop_noting(self) -> None:
        """Remove all of that. Safe to repeat."""
        for relation in KEY_OF:
            await _alter(self.on_source, STOP_NOTING.format(partition=self.partition, relation=relation))
        async with self.on_source() as conn:
            await conn.execute(FORGET_ALL_CHANGES, (self.partition,))

    async def copy_all(self) -> None:
        """The bulk. Changes are noted, and the target has nothing of it."""
        for relation in KEY_OF:
            columns = await self._columns(relation)
            select = f"SELECT {columns} FROM {relation} WHERE partition = {self.partition}"
            await self._pour(select, relation, columns, sparing=True)
        columns = await self._columns("zone_rules")  # of the tzdata that the jobs were scheduled with
        await self._pour(f"SELECT {columns} FROM zone_rules", "zone_rules", columns, conflict="NOTHING")
        await self.copy_outcomes(sparing=True)
        async with self.on_target() as conn:  # else its planner would think that there is next to nothing
            await conn.execute("SET LOCAL transaction_timeout = 0")
            with patience(conn, None):
                await conn.execute("ANALYZE jobs, runs, dead_runs")

    async def copy_changes(self, *, few: int = 0) -> None:
        """What has changed meanwhile, until no more than that is left."""
        while True:
            async with session(self.source) as conn:
                changes = await (await conn.execute(READ_CHANGES, (self.partition, CHUNK_ROWS))).fetchall()
            for relation in KEY_OF:
                # Read after the notes, so it holds what they tell of, or later, which is noted again.
                await self._copy_rows(relation, [row_id for _, noted, row_id in changes if noted == relation])
            if changes:
                async with transaction(self.source) as conn:
                    await conn.execute(FORGET_CHANGES, ([change[0] for change in changes],))
            if len(changes) <= few:
                return

    async def copy_outcomes(self, *, sparing: bool = False) -> None:
        """What became of commands, since the last time this was done."""
        async with session(self.source) as conn:
            row = await (await conn.execute("SELECT now()")).fetchone()
            assert row is not None
        for relation, at in ADDED_TO.items():
            columns = await self._columns(relation)
            select = f"SELECT {columns} FROM {relation} WHERE coalesce(partition, {self.partition}) = {self.partition}"
            if self.outcomes_since is not None:
                select += f" AND {at} >= '{self.outcomes_since.isoformat()}'"
            await self._pour(select, relation, columns, conflict="NOTHING", sparing=sparing)
        self.outcomes_since = row[0] - COMMITTED_WITHIN

    async def copy_last(self) -> None:
        """What is small. Nobody writes on the source."""
        for relation, (select, conflict) in LAST.items():
            columns = await self._columns(relation)
            asked = select.format(columns=columns, partition=self.partition)
            await self._pour(asked, relation, columns, conflict=conflict)

    async def _columns(self, relation: str) -> str:
        if relation not in self.columns:
            async with session(self.source) as conn:
                names = await (await conn.execute(COLUMNS, (relation,))).fetchall()
            self.columns[relation] = ", ".join(name for (name,) in names)
        return self.columns[relation]

    async def _copy_rows(self, relation: str, row_ids: Sequence[UUID]) -> None:
        if not row_ids:
            return
        columns, key = await self._columns(relation), KEY_OF[relation]
        found = f"SELECT {columns} FROM {relation} WHERE {key} = ANY(%s) AND partition = {self.partition}"
        async with aclosing(_read(self.source, found, (list(row_ids),))) as chunks:
            rows = [row async for chunk in chunks for row in chunk]
        async with self.on_target() as conn:
            await conn.execute(f"DELETE FROM {relation} WHERE {key} = ANY(%s)".encode(), (list(row_ids),))
            await _write(conn, relation, columns, rows)

    async def _pour(
        self, select: str, relation: str, columns: str, *, conflict: str | None = None, sparing: bool = False
    ) -> None:
        """Rows that the target has not; or some that it has, with what to do then."""
        async with aclosing(_read(self.source, select)) as chunks:
            async for rows in chunks:
                began = time.monotonic()
                async with self.on_target() as conn:
                    if conflict is None:
                        await _write(conn, relation, columns, rows)
                    else:
                        await _merge(conn, relation, columns, rows, conflict)
                self.rows += len(rows)
                self.told(self.rows)
                if sparing:
                    await asyncio.sleep((time.monotonic() - began) * (1 / DUTY - 1))


async def remove_rows(partition: int, guard: Guard) -> None:
    """Remove what a shard has of a partition that is not on it. guard: opens a transaction there, as PartitionCopy's.

    Outcomes of commands stay: they go by age. Raises InvariantBroken when the partition is on the shard.
    """
    for statement in REMOVE.values():
        removed = CHUNK_ROWS
        while removed >= CHUNK_ROWS:
            began = time.monotonic()
            async with guard() as conn:
                await prove_absent(conn, partition)
                asked = statement.format(partition=partition, limit=CHUNK_ROWS).encode()
                removed = (await conn.execute(asked)).rowcount
            await asyncio.sleep((time.monotonic() - began) * (1 / DUTY - 1))


IS_HERE = "SELECT EXISTS (SELECT FROM partitions WHERE partition = %s)"


async def is_here(conn: Connection, partition: int) -> bool:
    """Whether the partition is on this shard."""
    row = await (await conn.execute(IS_HERE, (partition,))).fetchone()
    return bool(row and row[0])


async def prove_absent(conn: Connection, partition: int) -> None:
    """Raises InvariantBroken when the partition is on this shard."""
    if await is_here(conn, partition):
        raise InvariantBroken(f"partition {partition} is on the shard whose rows of it were to be removed")


async def _alter(guard: Guard, statements: str) -> None:
    """Change a table whose writers never rest: who waits for its lock holds up those who come later, so only briefly.

    Raises MoveRefused when it cannot be had.
    """
    until = time.monotonic() + LOCKED_WITHIN_S
    while True:
        try:
            async with guard() as conn:
                await conn.execute(_BRIEFLY)
                for statement in filter(str.strip, statements.split(";")):
                    await conn.execute(statement.encode())
                return
        except LedgerUnavailable as error:
            if not isinstance(error.__cause__, LockNotAvailable):
                raise
            if time.monotonic() >= until:
                raise MoveRefused("a long transaction holds a table of the source: try again later") from None
        await asyncio.sleep(LOCK_AGAIN_S)


async def _read(pool: Pool, select: str, parameters: Sequence[Any] | None = None) -> AsyncGenerator[Rows]:
    """What a query finds, in chunks of rows in binary form, each as Postgres sends it. For as long as it takes."""
    async with transaction(pool) as conn:
        await conn.execute("SET LOCAL transaction_timeout = 0")
        await conn.execute("SET LOCAL enable_seqscan = on")  # some tables have no index by partition
        statement = f"COPY ({select}) TO STDOUT (FORMAT BINARY)"
        # Without an index the first row may come late.
        with patience(conn, None):
            async with conn.cursor().copy(statement.encode(), parameters) as copy:
                rows, size, is_first = Rows(), 0, True
                async for data in copy:  # a row each; the first has the header before it
                    row = bytes(data[len(_HEAD) :] if is_first else data)
                    is_first = False
                    if row == _TAIL:
                        continue
                    rows.append(row)
                    size += len(row)
                    if len(rows) >= CHUNK_ROWS or size >= CHUNK_BYTES:
                        yield rows
                        rows, size = Rows(), 0
                if rows:
                    yield rows


async def _write(conn: Connection, relation: str, columns: str, rows: Rows) -> None:
    if rows:
        async with conn.cursor().copy(f"COPY {relation} ({columns}) FROM STDIN (FORMAT BINARY)".encode()) as copy:
            await copy.write(b"".join((_HEAD, *rows, _TAIL)))


async def _merge(conn: Connection, relation: str, columns: str, rows: Rows, conflict: str) -> None:
    incoming = f"CREATE TEMP TABLE incoming ON COMMIT DROP AS SELECT {columns} FROM {relation} WITH NO DATA"
    await conn.execute(incoming.encode(), prepare=False)
    await _write(conn, "incoming", columns, rows)
    key = {"job_slots": "(job_id)", "lease_requests": "(request_id)"}.get(relation, "")
    insert = f"INSERT INTO {relation} ({columns}) SELECT {columns} FROM incoming ON CONFLICT {key} DO {conflict}"
    await conn.execute(insert.encode(), prepare=False)
