"""Two ledgers to which the same is done, Postgres and the model of it, and which must be the same after it.

Every instant is given, so that neither's clock matters. What Postgres draws, a retry's delay, the model takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any
from uuid import UUID

import tests.simulation.statements  # noqa: F401 - the models of the statements
from ledger.connection import Pool as LedgerPool
from ledger.connection import session
from ledger.fence import Fence, api_transaction, owner_transaction, take_over
from ledger.outbox import OutboxRow, read_outbox
from schemas.errors import EpochLost, LedgerUnavailable
from tests.ledger.owned_partition import until_someone_waits_for_a_lock
from tests.simulation.postgres import Pool, Shard
from tests.simulation.rows import DeadRun, Job, Outcome, Partition, Row, Run, Taken, Told
from tests.simulation.scheduler import SECOND_US, Scheduler, Task, park

PARTITION = 3
SETTLES_US = 4 * SECOND_US  # whoever does not wait for a lock is done by then, and nobody's wait has timed out

Dump = dict[str, list[Any]]
_ROWS: dict[str, type[Row]] = {"jobs": Job, "runs": Run, "dead_runs": DeadRun}
_TOLD = [name for name in Told.__struct_fields__ if name not in ("shard", "row")]
_COLUMNS = {name: next(each for each in (f"{name}s", name) if each in OutboxRow._fields) for name in _TOLD}


@dataclass(frozen=True)
class Act:
    """Something to do in a transaction of its own: of the owner, with `tx`, or of the API, with its connection.

    runs: whom the API's transaction is about. None: it is the owner's.
    """

    name: str
    body: Callable[[Any], Awaitable[Any]]
    runs: tuple[UUID, ...] | None = None

    @asynccontextmanager
    async def opened(self, pool: Any, fence: Fence, now: datetime) -> AsyncIterator[Any]:
        if self.runs is None:
            async with owner_transaction(pool, fence) as tx:
                yield replace(tx, now=now)
        else:
            async with api_transaction(pool, self.runs) as conn:
                yield conn


class Model:
    """The model, and its virtual time."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(Random(1))
        self.shard = Shard(0, self.scheduler, lambda _: None, None)
        self.shard.tables["partitions"][PARTITION] = Partition(PARTITION)
        self.pool = Pool(self.shard, None)

    def spawn(self, work: Awaitable[Any]) -> list[Any]:
        """Where its answer will be."""
        answers: list[Any] = []

        async def noted() -> None:
            answers.append(await answer(work))

        self.scheduler.spawn(noted())
        return answers

    def settle(self) -> None:
        until_us = self.scheduler.now_us + SETTLES_US
        self.scheduler.run(until_us, lambda: False)
        self.scheduler.now_us = until_us


async def answer(work: Awaitable[Any]) -> Any:
    """In an order of ours where it is a list; the name of the error, if it is one."""
    try:
        return in_order(await work)
    except (EpochLost, LedgerUnavailable) as error:
        return type(error).__name__


def in_order(told: Any) -> Any:
    if isinstance(told, list):
        return sorted(map(in_order, told), key=str)
    if type(told) is tuple or hasattr(told, "_fields"):
        return tuple(map(in_order, told))
    return told


class Twins:
    """now: what everything is told that asks for the time."""

    def __init__(self, pool: LedgerPool, now: datetime) -> None:
        self.pool, self.model, self.now = pool, Model(), now
        self.fence = Fence(PARTITION, 0, "")

    async def take_over(self, owner: str) -> None:
        taken = (await take_over(self.pool, PARTITION, owner)).fence
        tables = self.model.shard.tables
        tables["partitions"][PARTITION] = Partition(PARTITION, taken.epoch, owner)
        tables["takeovers"][PARTITION, taken.epoch] = Taken(PARTITION, taken.epoch, owner)
        self.fence = taken

    async def do(self, act: Act) -> Any:
        """On both; returns what both answered. `compare` looks at what it has made."""
        expected = await answer(self._whole(act, self.pool))
        came = self.model.spawn(self._whole(act, self.model.pool))
        self.model.settle()
        assert came == [expected], act.name
        return expected

    async def _whole(self, act: Act, pool: Any) -> Any:
        async with act.opened(pool, self.fence, self.now) as conn:
            return await act.body(conn)

    async def do_amid(self, first: Act, second: Act) -> None:
        """The second one begins while the first one's transaction is open, having done all that it does."""
        expected = await self._amid_in_postgres(first, second)
        assert self._amid_in_model(first, second) == expected, f"{second.name} amid {first.name}"

    async def _amid_in_postgres(self, first: Act, second: Act) -> tuple[Any, Any, bool]:
        """Both answers, and whether the second had to wait for the first."""
        async with session(self.pool) as witness:
            async with first.opened(self.pool, self.fence, self.now) as conn:
                answered = await answer(first.body(conn))
                waits = asyncio.create_task(until_someone_waits_for_a_lock(witness))
                task = asyncio.create_task(answer(self._whole(second, self.pool)))
                await asyncio.wait([waits, task], return_when=asyncio.FIRST_COMPLETED)
                has_waited = not task.done()
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
        return answered, await task, has_waited

    def _amid_in_model(self, first: Act, second: Act) -> tuple[Any, Any, bool]:
        model = self.model
        holder: list[Task] = []
        answered: list[Any] = []

        async def hold() -> None:
            async with first.opened(model.pool, self.fence, self.now) as conn:
                answered.append(await answer(first.body(conn)))
                assert model.scheduler.current is not None
                holder.append(model.scheduler.current)
                await park()

        model.spawn(hold())
        model.settle()
        came = model.spawn(self._whole(second, model.pool))
        model.settle()
        has_waited = not came
        model.scheduler.wake(holder[0])
        model.settle()
        return answered[0], came[0], has_waited

    async def compare(self, what: str) -> None:
        """What is in both, once the model has the delays that Postgres drew."""
        found = await self._of_postgres()
        self._take_delays(found)
        modelled = self._of_model()
        for table, rows in found.items():
            assert modelled[table] == rows, f"{table} after {what}: {_apart(modelled[table], rows)}"

    def _take_delays(self, found: Dump) -> None:
        """Of runs that have had an attempt, also where the run has ended since."""
        told_due = {(told["run_id"], told["version"]): told["due_at"] for told in found["outbox"]}
        for told in self.model.shard.outbox.values():
            due_at = told_due.get((str(told.run_id), told.version))
            if told.attempt and told.due_at and due_at:
                told.due_at = datetime.fromisoformat(due_at)
        runs = self.model.shard.tables["runs"]
        for row in found["runs"]:
            run = runs.get(row["run_id"])
            if run is not None and run.lease_token:
                runs[run.run_id] = run = run.copied()
                run.due_at = row["due_at"]

    async def _of_postgres(self) -> Dump:
        found: Dump = {}
        async with session(self.pool) as conn:
            for table, row_type in _ROWS.items():
                names = row_type.__struct_fields__
                rows = await (await conn.execute(f"SELECT {', '.join(names)} FROM {table}".encode())).fetchall()
                found[table] = _by_id(dict(zip(names, row, strict=True)) for row in rows)
            found["job_slots"] = _by_id(await _rows(conn, "SELECT job_id, run_id FROM job_slots"))
            requests = await _rows(conn, "SELECT request_id, run_ids, lease_tokens FROM lease_requests")
            found["lease_requests"] = _by_id((key, set(zip(*leases, strict=True))) for key, *leases in requests)
            found["outcomes"] = _by_id(
                await _rows(conn, "SELECT command_id, outcome, detail, field FROM applied_commands")
            )
            found["outbox"] = sorted(
                (event for row in await read_outbox(conn, 100_000) for event in _events(row)), key=str
            )
        return found

    def _of_model(self) -> Dump:
        tables = self.model.shard.tables
        found: Dump = {
            table: _by_id(
                {name: getattr(row, name) for name in row_type.__struct_fields__} for row in tables[table].values()
            )
            for table, row_type in _ROWS.items()
        }
        found["job_slots"] = _by_id(tables["job_slots"].items())
        found["lease_requests"] = _by_id(
            (key, set(zip(each.run_ids, each.lease_tokens, strict=True)))
            for key, each in tables["lease_requests"].items()
        )
        outcomes: list[Outcome] = list(tables["applied_commands"].values())
        found["outcomes"] = _by_id((each.command_id, each.outcome, each.detail, each.field) for each in outcomes)
        events = ({name: getattr(told, name) for name in _TOLD} for told in self.model.shard.outbox.values())
        found["outbox"] = sorted(map(_plain, events), key=str)
        return found


def _apart(modelled: list[Any], found: list[Any]) -> str:
    """What only one of them has; of two rows that should be the same one, what is not."""
    only = [row for row in modelled if row not in found], [row for row in found if row not in modelled]
    if len(only[0]) == len(only[1]) == 1 and isinstance(only[0][0], dict):
        [mine], [others] = only
        only = [{name: mine[name] for name in mine if mine[name] != others[name]}], [others]
    return f"only in the model {only[0]}, only in Postgres {only[1]}"


async def _rows(conn: Any, sql: str) -> list[Any]:
    return list(await (await conn.execute(sql)).fetchall())


def _by_id(rows: Any) -> list[Any]:
    return sorted(rows, key=lambda row: str(next(iter(row.values())) if isinstance(row, dict) else row[0]))


def _events(row: OutboxRow) -> Iterator[dict[str, Any]]:
    """The events of an outbox row, each with the fields of `Told`."""
    for place in range(len(row.versions)):
        columns = ((name, getattr(row, column)) for name, column in _COLUMNS.items())
        yield _plain({name: column[place] if isinstance(column, list) else column for name, column in columns})


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    """Of a run that was never leased the attempt may be absent, and of one that does not wait whether it is gated."""
    event |= {"attempt": event["attempt"] or 0, "gated": bool(event["gated"])}
    return {name: str(value) if isinstance(value, datetime | UUID) else value for name, value in event.items()}
