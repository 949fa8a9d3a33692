"""A partition with something in every table, and what stands in for the relays while it is moved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from ledger.commands import APPLIED, Outcome, note_keyed_command, record_outcomes
from ledger.completions import Completion, Failure
from ledger.connection import Connection, Pool, confirm_commits, session
from ledger.fence import owner_transaction
from ledger.outbox import delete_from_outbox, read_outbox, try_lock_relay
from ledger.shards import Shards
from schemas.errors import LedgerUnavailable
from tests.ledger.owned_partition import OwnedPartition

# What is copied, by the columns that name a row. Of the partition's row itself only some columns go along.
TABLES = {
    "jobs": "job_id",
    "runs": "run_id",
    "dead_runs": "run_id",
    "job_slots": "job_id",
    "slotless_runs": "job_id, run_id",
    "takeovers": "partition, epoch",
    "lease_requests": "request_id",
    "applied_commands": "command_id",
    "keyed_commands": "command_id",
}
_BY_RUN = ("job_slots", "slotless_runs")
WORKING = ("departures", "arrivals", "moving_rows")  # what a move leaves empty
LOOK_S, CONFIRM_S = 0.005, 1.0
LONG_S = 3600.0  # of a lease: however slow the machine is, it holds


def now() -> datetime:
    return datetime.now(UTC)


class Killed(BaseException):
    """The mover ends here: no code of it runs any more, as after SIGKILL."""


def killing(at: str) -> Callable[[str], Awaitable[None]]:
    """A move's `step`: the mover is killed there."""

    async def step(done: str) -> None:
        if done == at:
            raise Killed

    return step


def at_step(at: str, work: Callable[[], Awaitable[object]]) -> Callable[[str], Awaitable[None]]:
    """A move's `step`: that is done there."""

    async def step(done: str) -> None:
        if done == at:
            await work()

    return step


def silent(_: str) -> None:
    pass


class Filled:
    """A partition whose jobs, runs and the rest are known by name."""

    def __init__(self, owned: OwnedPartition) -> None:
        self.owned = owned
        self.request_id = uuid4()
        self.command_id, self.keyed_id = uuid4(), uuid4()

    async def fill(self) -> None:
        """Runs that wait, are leased, gated, dead; what became of commands; a repeated lease call."""
        owned = self.owned
        await owned.runs(20, due_at=now())
        leased = await owned.runs(4, due_at=now())
        self.leased = await owned.lease(*leased, now=now(), visibility_s=LONG_S, request_id=self.request_id)
        dying = await owned.runs(3, due_at=now())
        self.dead = await owned.lease(*dying, now=now(), visibility_s=LONG_S)
        failures = [Failure(run.run_id, run.lease_token, "broken", permanent=True) for run in self.dead]
        await owned.fail(*failures, now=now())
        job = owned.new_job(due_at=now())
        await owned.create(job._replace(policies=job.policies._replace(overlap=1)))
        assert job.run_id
        self.gated = await owned.lease(job.run_id, now=now(), visibility_s=LONG_S)
        async with session(owned.pool) as conn:
            await conn.execute(
                "INSERT INTO slotless_runs VALUES (%s, %s)", (self.leased[0].job_id, self.leased[0].run_id)
            )
        async with owner_transaction(owned.pool, owned.fence) as tx:
            await record_outcomes(tx, [Outcome(self.command_id, APPLIED)])
            await tx.conn.execute("UPDATE partitions SET consumed_offset = 42, token_floor = 7 WHERE partition = %s",
                                  (owned.fence.partition,))  # fmt: skip
        assert await note_keyed_command(owned.pool, owned.fence.partition, self.keyed_id, b"digest")

    async def change(self) -> None:
        """Something of every kind that may happen while it is copied."""
        owned = self.owned
        await owned.runs(3, due_at=now())
        first, second, *_ = self.leased
        assert await owned.complete(Completion(first.run_id, first.lease_token), now=now())
        await owned.fail(Failure(second.run_id, second.lease_token, "once more", retry_after_s=3600), now=now())
        [job_id] = [run.job_id for run in self.dead[:1]]
        await owned.pause(job_id, now=now())
        await owned.lease(
            *(await owned.runs(1, due_at=now())), now=now(), visibility_s=LONG_S, request_id=self.request_id
        )
        async with owner_transaction(owned.pool, owned.fence) as tx:
            await record_outcomes(tx, [Outcome(uuid4(), APPLIED)])


async def rows_of(pool: Pool, partition: int) -> dict[str, list[Any]]:
    """Every row of the partition that a shard has, whether the partition is on it or not."""
    found = {}
    async with session(pool) as conn:
        for table, key in TABLES.items():
            if table == "lease_requests":
                continue
            where = "partition_of_run(run_id) = %s" if table in _BY_RUN else "partition = %s"
            query = f"SELECT to_jsonb(t) FROM {table} t WHERE {where} ORDER BY {key}"
            rows = await (await conn.execute(query.encode(), (partition,))).fetchall()
            found[table] = [row for (row,) in rows]
    return found


async def row_of_partition(pool: Pool, partition: int) -> tuple[Any, ...] | None:
    """epoch, owner, consumed offset, decided through, token floor; None when it is not on the shard."""
    query = "SELECT epoch, owner, consumed_offset, decided_through, token_floor FROM partitions WHERE partition = %s"
    async with session(pool) as conn:
        return await (await conn.execute(query, (partition,))).fetchone()


async def holders(shards: Shards, partition: int) -> list[int]:
    """The shards that have the partition: never two."""
    return [number for number, pool in shards.pools.items() if await row_of_partition(pool, partition)]


async def left_over(pool: Pool) -> dict[str, int]:
    """What a move needs beside the rows, and must not leave behind."""
    async with session(pool) as conn:
        found = {}
        for table in WORKING:
            row = await (await conn.execute(f"SELECT count(*) FROM {table}".encode())).fetchone()
            assert row is not None
            found[table] = row[0]
        row = await (await conn.execute("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'moving_%'")).fetchone()
        assert row is not None
        return {name: count for name, count in {**found, "triggers": row[0]}.items() if count}


class StandInRelay:
    """Relays a shard's outbox into `told`, which stands for the topic: (partition, run or job, version) in order."""

    def __init__(self, told: list[tuple[int, UUID, int]]) -> None:
        self.told = told
        self.news = asyncio.Event()
        self.may_relay = asyncio.Event()
        self.may_relay.set()

    async def has_told(self, run_id: UUID, version: int) -> None:
        """Return once the topic has this event."""
        async with asyncio.timeout(30):
            while not any(told[1:] == (run_id, version) for told in self.told):
                self.news.clear()
                await self.news.wait()

    async def run(self, pool: Pool, ready: asyncio.Event) -> None:
        """Until it is cancelled; with another session when one is lost."""
        while True:
            with suppress(LedgerUnavailable):
                async with session(pool) as conn:
                    if await try_lock_relay(conn):
                        ready.set()
                        await self._relay(conn)
            await asyncio.sleep(LOOK_S)

    async def _relay(self, conn: Connection) -> None:
        confirmed = time.monotonic()
        while True:
            await self.may_relay.wait()
            rows = await read_outbox(conn, 100)
            for row in rows:
                ids = row.run_ids or row.job_ids
                self.told += zip(row.partitions, map(UUID, ids), row.versions, strict=True)
                self.news.set()
            await delete_from_outbox(conn, [row.id for row in rows])
            if not rows:
                await asyncio.sleep(LOOK_S)
            if time.monotonic() - confirmed >= CONFIRM_S:
                await confirm_commits(conn)
                confirmed = time.monotonic()


@asynccontextmanager
async def relaying(shards: Shards, *, without: int | None = None) -> AsyncIterator[dict[int, StandInRelay]]:
    """A relay for each shard, all onto one topic."""
    told: list[tuple[int, UUID, int]] = []
    relays = {number: StandInRelay(told) for number in shards.pools if number != without}
    tasks = []
    for number, relay in relays.items():
        ready = asyncio.Event()
        tasks.append(asyncio.create_task(relay.run(shards.pools[number], ready)))
        await ready.wait()
    try:
        yield relays
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
