"""A partition's owner under a clock of the test's: the owner itself, its tasks driven one after the other.

The ledger is real; `now` is what the owner's transactions say, and what the workers here give to theirs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from uuid import UUID

import pytest

from ledger.clock import LedgerClock
from ledger.completions import Completion, Failure, complete_runs, expire_leases, fail_runs
from ledger.connection import Pool, session
from ledger.fence import Fence, OwnerTransaction, api_transaction, owner_transaction, take_over
from ledger.leases import Beat, LeaseAsk, LeasedRun, extend_leases, lease_runs
from ledger.news import read_news
from ledger.outbox import read_outbox
from ledger.queue_settings import set_rate
from ledger.runs import find_due
from schemas.codec import Codec
from schemas.commands import Command
from schemas.events import Event as RunEvent
from streams import decider, partition_owner
from streams.command_batch import apply_commands
from streams.decision_rounds import DecisionRounds
from streams.effects import Effects
from streams.event_feed import OwnerEvents
from streams.missed_events import Fold
from streams.outbox_events import EventRecord, encode_events
from streams.partition_owner import PartitionOwner
from streams.queue_rates import QueueRates
from streams.surroundings import Surroundings
from streams.timers import from_us, to_us
from tests.ledger_fixtures import PARTITIONS
from tests.streams.commands import inbox_at
from tests.streams.event_samples import decoded
from tests.streams.hint_log import HintLog
from tests.streams.ledger_dump import fetch

PARTITION = 9


class SimulatedClock:
    """The ledger's clock, which only the test moves."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def now_us(self) -> int:
        return to_us(self.now)


@dataclass(frozen=True)
class Event:
    """An event of the outbox, as far as these tests look at it."""

    kind: str
    job_id: UUID
    scheduled_for: datetime
    due_at: datetime | None
    reason: str | None
    count: int | None


class Simulation:
    """One partition, its owner and whoever leases its runs."""

    def __init__(self, pool: Pool, folder: Path, clock: SimulatedClock) -> None:
        self.pool, self.folder, self.clock = pool, folder, clock
        self.hints, self.rates = HintLog(), QueueRates()
        self.rate_share = 1.0
        self.missed_events: Callable[[int, int, int, int, Fold], Awaitable[int | None]] | None = None
        self.end_offset: Callable[[int], Awaitable[int]] = _no_events
        self.hinted: dict[UUID, datetime] = {}  # when each run was first hinted
        self.owner: PartitionOwner

    @property
    def now(self) -> datetime:
        return self.clock.now

    @property
    def fence(self) -> Fence:
        return self.owner.fence

    async def start(self) -> None:
        """Become the owner, with a new epoch."""
        takeover = await take_over(self.pool, PARTITION, "owner")
        inbox = inbox_at(takeover.consumed_offset)
        self.owner = PartitionOwner(takeover, self._surroundings(), inbox, lambda _: None)
        await self.owner.open()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[OwnerTransaction]:
        async with owner_transaction(self.pool, self.fence) as tx:
            yield replace(tx, now=self.now)

    async def stop(self) -> None:
        await self.owner.close(release=False)

    async def apply(self, *commands: Command) -> Effects:
        async with self.transaction() as tx:
            effects = await apply_commands(tx, commands)
        self.owner._fold_own(effects.events)
        return effects

    async def set_rate(self, rate_per_s: float | None, queue: str = "mail") -> None:
        """As an operator sets it; the owner has followed when this returns."""
        async with session(self.pool) as conn:
            await set_rate(conn, "acme", queue, rate_per_s, "operator", now=self.now)
        await self.hear_news()
        await self.owner.decider.follow_rates()
        await self.work()

    async def hear_news(self) -> None:
        """Of the rates, as a process does now and then."""
        async with session(self.pool) as conn:
            self.rates.hear((await read_news(conn, LedgerClock())).rates)

    async def work(self) -> None:
        """Whatever is to be done at this instant."""
        owner = self.owner
        while True:
            next_us = owner.tick(self.clock.now_us())
            if len(owner.decider._on_time):
                await owner.decider.decide()
            elif len(owner.decider._unsorted):
                await owner.decider.sort_late()
            elif len(owner.decider._behind):
                await owner.decider.catch_up()
            elif len(owner.decider._backlog):
                await owner.decider.spread()
            elif owner._admissions._asked:
                await owner._admit()
            elif next_us is None or next_us > self.clock.now_us():
                break
            self._note_hints()
        self._note_hints()

    async def run_until(self, instant: datetime) -> None:
        """Let time pass, waking the owner whenever it wants to be."""
        await self.work()
        while True:
            due_us = self.owner._memory.next_due_us()
            at = min(instant, from_us(due_us)) if due_us is not None else instant
            # A slot's beginning is not later than the timers in it; a load looks 30 s ahead.
            self.clock.now = max(self.now, min(at, from_us(self.clock.now_us() + 20_000_000)))
            if due_us is not None and due_us <= self.clock.now_us():
                self.clock.now = min(instant, from_us(self.clock.now_us() + 10_000))
            await self.work()
            if self.now >= instant:
                return

    async def sweep(self) -> None:
        await self.owner._sweep()
        await self.work()

    async def lease(self, *run_ids: UUID, visibility_s: float = 30, worker_id: str = "worker") -> list[LeasedRun]:
        asks = [LeaseAsk(run_id, self.fence.epoch, worker_id, visibility_s) for run_id in run_ids]
        async with api_transaction(self.pool, run_ids) as conn:
            return await lease_runs(conn, asks, now=self.now)

    async def poll(self, limit: int = 100) -> list[UUID]:
        """What the API finds by itself."""
        async with session(self.pool) as conn:
            return [run.run_id for run in await find_due(conn, [("acme", "mail")], limit, now=self.now)]

    async def complete(self, lease: LeasedRun) -> bool:
        async with api_transaction(self.pool, [lease.run_id]) as conn:
            return bool(await complete_runs(conn, [Completion(lease.run_id, lease.lease_token)], now=self.now))

    async def fail(self, *leases: LeasedRun, retry_after_s: float | None = None) -> None:
        failures = [Failure(each.run_id, each.lease_token, "failed", retry_after_s=retry_after_s) for each in leases]
        async with api_transaction(self.pool, [lease.run_id for lease in leases]) as conn:
            await fail_runs(conn, failures, now=self.now)

    async def beat(self, *leases: LeasedRun) -> None:
        async with api_transaction(self.pool, [lease.run_id for lease in leases]) as conn:
            await extend_leases(conn, [Beat(lease.run_id, lease.lease_token, 30) for lease in leases], now=self.now)

    async def expire(self, *run_ids: UUID) -> None:
        async with self.transaction() as tx:
            await expire_leases(tx.conn, run_ids, now=self.now)

    async def told(self) -> list[RunEvent]:
        """Everything in the outbox, as owners read it."""
        wire = Codec().header("RunEvents") + EventRecord(PARTITION, await self._outbox()).body()
        return OwnerEvents(Codec()).of(wire)

    async def feed(self) -> None:
        """Everything in the outbox comes back to the owner, as it does by Kafka."""
        self.owner.fold(await self.told(), 1)
        await self.work()

    async def events(self, job_id: UUID, *kinds: str) -> list[Event]:
        told = []
        for event in decoded(await self._outbox()):
            if UUID(event["jobId"]) == job_id and event["type"] in kinds:
                fields = (event["scheduledFor"], event["dueAt"], event["reason"], event["count"])
                told.append(Event(event["type"], job_id, *fields))
        return told

    async def runs(self, job_id: UUID) -> list[datetime]:
        """The occurrences whose runs wait or are leased."""
        return await fetch(self.pool, "SELECT scheduled_for FROM runs WHERE job_id = %s ORDER BY 1", job_id)

    async def run_ids(self, job_id: UUID, state: str = "pending") -> list[UUID]:
        query = "SELECT run_id FROM runs WHERE job_id = %s AND state = %s ORDER BY due_at, scheduled_for"
        return await fetch(self.pool, query, job_id, state)

    async def due(self, job_id: UUID) -> list[datetime]:
        """The occurrences that make a run by now."""
        return [at for at in await self.runs(job_id) if at <= self.now]

    async def skipped(self, job_id: UUID) -> dict[str, int]:
        """How many occurrences were skipped, by reason."""
        counts: dict[str, int] = {}
        for event in await self.events(job_id, "run_skipped", "occurrences_skipped"):
            assert event.reason is not None
            counts[event.reason] = counts.get(event.reason, 0) + (event.count or 1)
        return counts

    async def cursor(self, job_id: UUID) -> datetime | None:
        [cursor] = await fetch(self.pool, "SELECT next_fire_at FROM jobs WHERE job_id = %s", job_id)
        return cursor  # type: ignore[no-any-return]

    async def _outbox(self) -> list[bytes]:
        """The events that wait in it, as the relay encodes them."""
        async with session(self.pool) as conn:
            rows = await read_outbox(conn, 1_000_000)
        return [event for row in rows for event in encode_events(row, "shard")]

    def _note_hints(self) -> None:
        for run_id in self.hints.runs():
            self.hinted.setdefault(run_id, self.now)

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            self.pool,
            Codec(),
            self.hints,
            None,  # type: ignore[arg-type]  # no records are rejected here
            self.clock,  # type: ignore[arg-type]
            PARTITIONS,
            self.folder,
            DecisionRounds(lambda _: self.transaction()),
            lambda _: None,
            self.end_offset,
            _raise,
            missed_events=self.missed_events,
            rates=self.rates,
            rate_share=lambda: self.rate_share,
        )


async def _no_events(_: int) -> int:
    return 0


def _raise(error: Exception) -> None:
    raise error


@asynccontextmanager
async def simulating(
    pool: Pool, folder: Path, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Simulation]:
    """A simulation that begins at `now`, with a running owner."""
    simulation = Simulation(pool, folder, SimulatedClock(now))
    monkeypatch.setattr(partition_owner, "owner_transaction", lambda *_: simulation.transaction())
    monkeypatch.setattr(decider, "LATE_DUTY", 1.0)
    async with session(pool) as conn:
        await conn.execute("UPDATE partitions SET decided_through = %s", (now,))
    await simulation.start()
    try:
        yield simulation
    finally:
        await simulation.stop()
