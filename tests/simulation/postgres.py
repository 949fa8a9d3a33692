"""A model of one shard's Postgres, as far as the product's statements use it: READ COMMITTED, locks, time-outs.

The product's own functions of `ledger/` run against it. What they send is looked up by its SQL (see `models`), and each
statement is executed after a moment of its own, so that those of other transactions come in between. A statement sees
what was committed when it began; a row that it waited for it sees anew, and only that row, as Postgres does.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Hashable
from datetime import datetime
from typing import Any, NamedTuple

from schemas.errors import EpochLost, LedgerUnavailable
from tests.simulation.locks import Locks
from tests.simulation.rows import Told
from tests.simulation.scheduler import SECOND_US, Process, Scheduler, Task, park

TRANSACTION_TIMEOUT_US = 10 * SECOND_US
TABLES = (
    "partitions", "jobs", "runs", "dead_runs", "job_slots", "lease_requests", "applied_commands", "placements",
    "takeovers",
)  # fmt: skip

Rows = list[Any]
Model = Callable[["Transaction", Any], "Rows | Generator[int, Any, Rows]"]
MODELS: dict[str, Model] = {}

BEGIN, COMMIT = "BEGIN", "COMMIT"


def models(*statements: str) -> Callable[[Model], Model]:
    """This function stands for a statement of the product: parameters in, rows out."""

    def note(model: Model) -> Model:
        MODELS.update(dict.fromkeys(statements, model))
        return model

    return note


class Claim(NamedTuple):
    """What a committed transaction claimed to be: the partition's owner under this epoch."""

    shard: int
    partition: int
    epoch: int


class Commit(NamedTuple):
    """What a transaction made true, for who watches. acts: (what, …) beside the events."""

    at_us: int
    shard: int
    claims: list[Claim]
    told: list[Told]
    acts: list[tuple[Any, ...]]


class Transaction:
    """now: its instant. Rows are read with `get` and `all`, and written with `put` once they are locked."""

    def __init__(self, shard: Shard, process: Process | None, began: datetime) -> None:
        self.shard, self.process, self.now = shard, process, began
        self.began_us = shard.scheduler.now_us
        self.locks: dict[Hashable, None] = {}
        self.writes: dict[str, dict[Any, Any]] = {}
        self.told: list[Told] = []
        self.claims: list[Claim] = []
        self.acts: list[tuple[Any, ...]] = []
        self.is_over = self.is_told_now = False
        shard.open[self] = None

    def keeps(self, rule: str) -> bool:
        """Whether this model is as the product is in that; a mutant is without one of its rules."""
        return self.shard.without != rule

    @property
    def statement_now(self) -> datetime:
        return self.now if self.is_told_now else self.shard.scheduler.now

    def tell_now(self, params: Any) -> None:
        """coalesce(%(now)s, …): tests say what it is, and owners what it was when the transaction began."""
        if type(params) is dict and (now := params.get("now")) is not None:
            self.now, self.is_told_now = now, True

    def get(self, table: str, key: Any) -> Any:
        writes = self.writes.get(table)
        if writes is not None and key in writes:
            return writes[key]
        return self.shard.tables[table].get(key)

    def all(self, table: str) -> list[Any]:
        rows = self.shard.tables[table]
        writes = self.writes.get(table)
        if writes:
            rows = {**rows, **writes}
            return [row for row in rows.values() if row is not None]
        return list(rows.values())

    def put(self, table: str, key: Any, row: Any) -> None:
        """row: None deletes. Whoever writes a row has it locked, here as in Postgres."""
        assert (table, key) in self.locks, f"{table} {key} is written and not locked"
        self.place(table, key, row)

    def place(self, table: str, key: Any, row: Any) -> None:
        """The same for rows that nobody else can reach."""
        self.writes.setdefault(table, {})[key] = row

    def lock(self, table: str, key: Any) -> Generator[int, Any, Any]:
        """Lock a row, or the place for one; returns it as it is then."""
        yield from self.shard.locks.take(self, (table, key), True)
        return self.get(table, key)

    def lock_where(self, table: str, key: Any, is_meant: Callable[[Any], bool]) -> Generator[int, Any, Any]:
        """Lock a row if it is meant, and return it if it still is then; else it is left alone, and None."""
        row = self.get(table, key)
        if row is None or not is_meant(row):
            return None
        row = yield from self.lock(table, key)
        return row if row is not None and is_meant(row) else None

    def find_place(self, table: str, key: Any) -> Generator[int, Any, Any]:
        """For an insertion that does nothing on conflict: the row that is there, which stays unlocked, or the place."""
        locks, name = self.shard.locks, (table, key)
        if self.get(table, key) is not None and not locks.is_others(self, name):
            return self.get(table, key)
        is_mine = name in self.locks
        yield from locks.take(self, name, True)
        row = self.get(table, key)
        if row is not None and not is_mine:
            locks.give_back(self, name)
        return row

    def advisory(self, name: Hashable, *, exclusive: bool = False) -> Generator[int, Any, None]:
        yield from self.shard.locks.take(self, name, exclusive)

    def tell(self, event: str, row: Any, at: datetime, **more: Any) -> None:
        """Put an event in the outbox; row: the run's or the job's, as it is from now on."""
        self.shard.outbox_rows += 1
        run_id = getattr(row, "run_id", None)
        self.told.append(
            Told(
                self.shard.number,
                self.shard.outbox_rows,
                event,
                at,
                row.partition,
                row.job_id,
                run_id,
                more.pop("version", row.version),
                row.tenant,
                row.queue,
                row.lane,
                **more,
            )
        )

    def commit(self) -> None:
        shard = self.shard
        for table, writes in self.writes.items():
            rows = shard.tables[table]
            for key, row in writes.items():
                if row is None:
                    rows.pop(key, None)
                else:
                    rows[key] = row
        for told in self.told:
            shard.outbox[told.row] = told
        if self.told or self.claims or self.acts:
            shard.watch(Commit(shard.scheduler.now_us, shard.number, self.claims, self.told, self.acts))
        if self.told:
            shard.wrote_outbox()
        self._end()

    def roll_back(self) -> None:
        if not self.is_over:
            self._end()

    def _end(self) -> None:
        self.is_over = True
        del self.shard.open[self]
        self.shard.locks.release(self)


class Shard:
    """without: the rule that a mutant lacks. lose_answer: whether a commit's answer is lost just now, and how."""

    def __init__(self, number: int, scheduler: Scheduler, watch: Callable[[Commit], None], without: str | None) -> None:
        self.number, self.scheduler, self.watch, self.without = number, scheduler, watch, without
        self.tables: dict[str, dict[Any, Any]] = {table: {} for table in TABLES}
        self.outbox: dict[int, Told] = {}
        self.outbox_rows = 0
        self.locks = Locks(scheduler)
        self.open: dict[Transaction, None] = {}
        self.down = False
        self.slow = 1
        self.lost_answers = 0.0
        self.wrote_outbox: Callable[[], None] = lambda: None

    def latency_us(self) -> int:
        """Of one statement: mostly a moment, now and then long enough for much to happen in between."""
        random = self.scheduler.random.random()
        if random < 0.9:
            return int(200 + random * 1_500) * self.slow
        return int(2_000 + (random - 0.9) * 800_000) * self.slow

    def crash(self) -> None:
        """End every session, and take none until `down` is over."""
        self.down = True
        for tx in list(self.open):
            tx.roll_back()

    def end_stuck(self, process: Process) -> None:
        """What a frozen process holds open is ended when its time is over."""
        for tx in list(self.open):
            if tx.process is process:
                self.scheduler.call_at(tx.began_us + TRANSACTION_TIMEOUT_US, tx.roll_back)


class Cursor:
    """The answer of a statement; of a pipeline's it comes once somebody asks for it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.rows: Rows = []

    @property
    def rowcount(self) -> int:
        return len(self.rows)

    async def fetchall(self) -> Rows:
        await self._connection.flush()
        return self.rows

    async def fetchone(self) -> Any:
        await self._connection.flush()
        return self.rows[0] if self.rows else None


Request = tuple[str, Any, Cursor]


class Connection:
    """A session. Statements of an open transaction are sent one by one, by a process that is awake.

    A single statement, and what a pipeline holds, is executed whether or not its process still waits for the answer.
    """

    def __init__(self, shard: Shard, process: Process | None) -> None:
        self._shard, self._process = shard, process
        self._tx: Transaction | None = None
        self._is_pipeline = False
        self._queue: list[Request] = []
        self._is_served = self._is_closed = False

    async def execute(self, sql: str, params: Any = None, **_: Any) -> Cursor:
        cursor = Cursor(self)
        if self._is_pipeline:
            self._queue.append((sql, params, cursor))
        elif self._tx is not None:
            cursor.rows = await _drive(self._answer(sql, params))
        else:
            await self._send([(sql, params, cursor)])
        return cursor

    async def flush(self) -> None:
        """Send what a pipeline holds."""
        if self._queue:
            requests, self._queue = self._queue, []
            await self._send(requests)

    def transaction(self) -> _Opened:
        return _Opened(self)

    def pipeline(self) -> _Pipelined:
        return _Pipelined(self)

    def begin(self) -> None:
        self._tx = Transaction(self._shard, self._process, self._shard.scheduler.now)

    def collect(self) -> None:
        """From now on a pipeline holds what is sent."""
        self._is_pipeline = True

    def close(self) -> None:
        """What is open is rolled back, but not before the server has finished what it was sent."""
        self._is_closed = True
        if self._tx is not None and not self._is_served:
            self._tx.roll_back()

    async def _send(self, requests: list[Request]) -> None:
        scheduler = self._shard.scheduler
        client = scheduler.current
        assert client is not None
        self._is_served = True
        scheduler.spawn(self._serve(requests, client))
        if (error := await park()) is not None:
            raise error

    def _serve(self, requests: list[Request], client: Task) -> Generator[int, Any, None]:
        error: Exception | None = None
        try:
            for sql, params, cursor in requests:
                cursor.rows = yield from self._answer(sql, params)
        except (LedgerUnavailable, EpochLost) as failed:
            error = failed
        self._is_served = False
        if self._tx is not None and (error is not None or self._is_closed):
            self._tx.roll_back()
        self._shard.scheduler.wake(client, error)

    def _answer(self, sql: str, params: Any) -> Generator[int, Any, Rows]:
        yield self._shard.latency_us()
        if self._shard.down:
            raise LedgerUnavailable("the shard is down")
        if sql == BEGIN:
            self.begin()
            return []
        tx = self._tx
        if tx is None:
            return (yield from self._answer_alone(sql, params))
        if tx.is_over:
            raise LedgerUnavailable("the transaction was ended")
        if sql == COMMIT:
            self._commit(tx)
            self._tx = None
            return []
        return (yield from _execute(tx, sql, params))

    def _answer_alone(self, sql: str, params: Any) -> Generator[int, Any, Rows]:
        tx = Transaction(self._shard, self._process, self._shard.scheduler.now)
        try:
            rows = yield from _execute(tx, sql, params)
            if tx.locks:
                yield self._shard.latency_us()  # what it has locked is locked until it is committed
            if tx.is_over:
                raise LedgerUnavailable("the transaction was ended")
            self._commit(tx)
        finally:
            tx.roll_back()
        return rows

    def _commit(self, tx: Transaction) -> None:
        shard = self._shard
        lost = shard.scheduler.random.random() if shard.lost_answers else 1.0
        if lost < shard.lost_answers / 2:
            tx.roll_back()
            raise LedgerUnavailable("the session ended before the commit")
        tx.commit()
        if lost < shard.lost_answers:
            raise LedgerUnavailable("the commit's answer was lost")


def _execute(tx: Transaction, sql: str, params: Any) -> Generator[int, Any, Rows]:
    tx.tell_now(params)
    rows = MODELS[sql](tx, params)
    return rows if isinstance(rows, list) else (yield from rows)


@types.coroutine
def _drive(work: Generator[int, Any, Rows]) -> Generator[int, Any, Rows]:
    return (yield from work)


class _Opened:
    """`async with conn.transaction()`. Not asynccontextmanager: it would be a tenth of a simulation's time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def __aenter__(self) -> None:
        self._connection.begin()

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            await self._connection.execute(COMMIT)
        else:
            self._connection.close()


class _Pipelined:
    """`async with conn.pipeline()`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def __aenter__(self) -> None:
        self._connection.collect()

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            await self._connection.flush()


class _Session:
    """`async with pool.connection()`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def __aenter__(self) -> Any:
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()


class Pool:
    """Sessions of one process with one shard: as many as are asked for."""

    is_away = False

    def __init__(self, shard: Shard, process: Process | None) -> None:
        self._shard, self._process = shard, process

    def connection(self) -> _Session:
        return _Session(Connection(self._shard, self._process))
