"""The owner of one partition: applies its commands, keeps its time, hints its runs, ends its expired leases.

Everything here happens under one epoch. The first write that is refused (EpochLost) ends it: the owner drops all its
memory of the partition and says so, whatever the process was doing while it was frozen, cut off or slow. The memory on
disk is kept where that was to be: when the partition is moving to another shard (NotOnThisShard), and after `leave`.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

from ledger.admissions import find_late, skip_late
from ledger.completions import expire_leases
from ledger.connection import session
from ledger.fence import OwnerTransaction, Takeover, owner_transaction, release_partition
from ledger.runs import read_runs
from schemas.errors import EpochLost, KafkaUnavailable, NotOnThisShard, TryAgain
from schemas.events import Event
from schemas.zones import TZDATA_VERSION
from streams.admissions import AdmissionQueue, admit
from streams.catch_up import DEADLINE
from streams.command_applier import CommandApplier
from streams.command_inbox import CommandInbox
from streams.decider import Decider
from streams.fair_backlog import Batch
from streams.kept_states import folder_of
from streams.metrics import (
    EPOCHS_LOST,
    EVENTS_FOLDED,
    HINT_LATENESS_SECONDS,
    LEASES_EXPIRED,
    OCCURRENCES_SKIPPED,
    PARTITION_HALTED,
    RUNS_BLOCKED,
    RUNS_REHINTED,
)
from streams.opening import Opening
from streams.partition_memory import Fired, PartitionMemory
from streams.rebuild import reconcile, take_in
from streams.surroundings import Surroundings
from streams.timers import EVERY_INSTANT, Position, Rhythm, from_us, to_us
from streams.zone_moves import stamp

log = logging.getLogger(__name__)

COMMAND_BATCH = 500
COMMAND_BATCH_BYTES = 512 << 10  # some 3,000 commands in batch records: well within a transaction's time
EXPIRY_BATCH = 500
LATE_BATCH = 500
LATE_EVERY_US = 30_000_000  # while runs wait that are due, those are looked for that are too late to start
RECONCILE_PERIOD_S = 300.0
RECONCILE_DUTY = 0.02  # of a process's time, for comparing its partitions with the ledger
APPLY_AGAIN_S = 0.5
CANCEL_AGAIN_S = 1.0
SUCCESSOR_LOOK_S = 0.2  # an owner that writes sees sooner that it has one


class PartitionOwner:
    """Starts with open(), ends with close(); calls on_lost once when the epoch turns out to be gone."""

    def __init__(
        self,
        takeover: Takeover,
        around: Surroundings,
        inbox: CommandInbox,
        on_lost: Callable[[PartitionOwner], None],
    ) -> None:
        self.fence, self.inbox = takeover.fence, inbox
        self._around, self._on_lost = around, on_lost
        self._folder = folder_of(around.state_folder, self.fence.partition)
        self._memory = PartitionMemory(self._folder)
        self._applier = CommandApplier(
            self.fence, around.pool, around.returns, around.codec, around.partitions, around.caps
        )
        self._admissions = AdmissionQueue()
        self.decider = Decider(
            takeover, around, self._memory,
            transaction=self._transaction, announce=self._announce, fold_own=self._fold_own,
        )  # fmt: skip
        self._gauges = (*self.decider.gauges(), (RUNS_BLOCKED, self._admissions.blocked))
        self._swept_us = 0  # the last instant of sweeps that a round was for
        self._late_from_us = 0  # when to look for runs that are too late to start
        self._unstamped: list[UUID] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: set[str] = set()  # what a round has begun
        self._lost = False
        self._applying: asyncio.Task[None] | None = None
        self._is_leaving = False
        self.has_moved = False  # lost, because the partition is on another shard now

    async def open(self) -> int:
        """Make the memory that of this epoch; returns the offset of run-events to go on folding from."""
        opening = Opening(self._memory, self._folder, self.fence, self._around, self._transaction)
        offset, self._unstamped = await opening.open()
        for gauge, ask in self._gauges:
            gauge.tell(self.fence.partition, ask)
        return offset

    def start(self) -> None:
        """Begin to work. The memory is open."""
        self._applying = self._begin(self._guard(self._apply), "_apply")
        for work in (*self.decider.works(), self._admit, self._reconcile):
            self._begin(self._guard(work), work.__name__)
        self._begin(self._guard_once(self._stamp), "_stamp")

    def leave(self) -> None:
        """Another process is to take over. Commands are for that one; all else goes on until it has: on_lost tells."""
        self._is_leaving = True
        self.inbox.close()
        if self._applying is not None:
            self._applying.cancel()
        self._begin(self._guard(self._look_for_successor), "leave")

    async def _look_for_successor(self) -> None:
        await asyncio.sleep(SUCCESSOR_LOOK_S)
        await self._prove()

    async def close(self, *, release: bool, forget: bool = False) -> None:
        """Stop working. release: tell the ledger that nobody owns the partition now. forget: delete the state too.

        Raises LedgerUnavailable when it could not be released; all else is done then.
        """
        self.inbox.close()
        through = from_us(self.decider.decided_through_us())  # now: what is cancelled leaves the queues
        while tasks := set(self._tasks):
            for task in tasks:
                task.cancel()
            # And again: a cancellation that comes together with what it would end may be swallowed.
            await asyncio.wait(tasks, timeout=CANCEL_AGAIN_S)
        PARTITION_HALTED.labels(self.fence.partition).set(0)
        for gauge, ask in self._gauges:
            gauge.drop(self.fence.partition, ask)
        self._memory.close()
        if forget or (self._lost and not self.has_moved and not self._is_leaving):
            shutil.rmtree(self._folder, ignore_errors=True)
        if release and not self._lost:
            await release_partition(self._around.pool, self.fence, through)

    def fold(self, events: list[Event], next_offset: int) -> None:
        """Take in events of the feed, up to next_offset (exclusive)."""
        self._memory.fold(events, Position(self.fence.epoch, next_offset))
        self._admissions.folded(events, self._memory.waits)
        EVENTS_FOLDED.inc(len(events))
        self._around.wake_timekeeper(self.fence.partition)

    def tick(self, now_us: int, ahead_us: int = 0, rounds: Rhythm = EVERY_INSTANT) -> int | None:
        """Hint what is due and queue what is to be decided; returns when to look again, as far as is known.

        ahead_us: how long before they are due runs are hinted. rounds: when occurrences are looked for.
        """
        more = self._memory.load(now_us)
        came_by_us = rounds.latest_us(now_us)
        fired = self._memory.pop_due(now_us, ahead_us, came_by_us)
        if fired.oldest_due_us is not None:
            HINT_LATENESS_SECONDS.observe(max(0, now_us - fired.oldest_due_us) / 1e6)
        self._announce(fired)
        self.decider.take(fired)
        next_us = now_us if more else self._memory.next_due_us(ahead_us, rounds)
        self.decider.looked(came_by_us, is_popped=next_us is None or next_us > now_us)
        return next_us

    def wake(self) -> None:
        """Have the timekeeper look at it."""
        self._around.wake_timekeeper(self.fence.partition)

    def go_round(self, now_us: int, expiries: Rhythm = EVERY_INSTANT, sweeps: Rhythm = EVERY_INSTANT) -> int | None:
        """Begin what no timer tells of, where there is something to do; returns when to look again, as tick does.

        expiries: when leases are ended that are over. sweeps: when the ledger is asked about runs that nobody leases.
        """
        if self._memory.state.expiring(expiries.latest_us(now_us), 1):
            self._begin_unless_under_way(self._expire)
        if (came_by_us := sweeps.latest_us(now_us)) != self._swept_us:
            self._swept_us = came_by_us
            if (sweep_us := self._next_sweep_us()) is not None and sweep_us <= came_by_us:
                self._begin_unless_under_way(self._sweep)
            if self.decider.has_other_rates():
                self._begin_unless_under_way(self.decider.follow_rates)
        coming = ((expiries, self._memory.state.next_expiry_us()), (sweeps, self._next_sweep_us()))
        rounds = [rhythm.next_us(max(at_us, now_us + 1)) for rhythm, at_us in coming if at_us is not None]
        return min(rounds, default=None)

    def _next_sweep_us(self) -> int | None:
        if self._admissions.blocked():
            return 0
        unleased_us = self._memory.next_unleased_us()
        return None if unleased_us is None else min(unleased_us, self._late_from_us)

    def is_around(self, around: Surroundings | None) -> bool:
        """Whether the owner goes by these."""
        return self._around is around

    def timers(self) -> int:
        """How many timers are in memory."""
        return self._memory.timers()

    def check(self) -> None:
        """Find out soon whether the epoch still stands."""
        self._begin(self._guard_once(self._prove), "check")

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"p{self.fence.partition} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _begin_unless_under_way(self, work: Callable[[], Awaitable[Any]]) -> None:
        name = work.__name__
        if name not in self._under_way:
            self._under_way.add(name)
            self._begin(self._guard_once(work), name).add_done_callback(lambda _: self._under_way.discard(name))

    def _transaction(self) -> AbstractAsyncContextManager[OwnerTransaction]:
        return owner_transaction(self._around.pool, self.fence)

    async def _stamp(self) -> None:
        await stamp(self._unstamped, self._transaction)
        self._unstamped = []
        self._memory.state.set_tzdata_version(TZDATA_VERSION)

    async def _prove(self) -> None:
        async with self._transaction():
            pass

    async def _guard(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Repeat a piece of work until the owner is lost."""
        while not self._lost:
            await self._guard_once(work)

    async def _guard_once(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Do a piece of work; a lost epoch ends the owner, an absent ledger or broker only delays it."""
        delay_s = 0.05
        while not self._lost:
            try:
                await work()
                return
            except NotOnThisShard:
                self._lose(has_moved=True)
            except EpochLost:
                self._lose()
            except TryAgain as error:
                log.warning("partition %d: %s; again in %.2f s", self.fence.partition, error, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, 2.0)
            except Exception as error:
                log.exception("partition %d: %s failed", self.fence.partition, work)
                self._lost = True
                self._around.crash(error)

    def _lose(self, *, has_moved: bool = False) -> None:
        if not self._lost:
            self._lost, self.has_moved = True, has_moved
            if has_moved:
                log.info("partition %d is leaving its shard under epoch %d", *self._name())
            elif self._is_leaving:
                log.info("partition %d: handed over, epoch %d is over", *self._name())
            else:
                EPOCHS_LOST.inc()
                log.warning("partition %d: epoch %d is over, dropping its memory", *self._name())
            self._on_lost(self)

    async def _apply(self) -> None:
        await self.inbox.arrival()
        batch: Batch | None = None
        while True:
            try:
                async with self._around.apply_turns.turn(self.inbox.is_urgent):
                    batch = batch or await self.inbox.take(COMMAND_BATCH, COMMAND_BATCH_BYTES)
                    self._fold_own(await self._applier.apply(batch))
                PARTITION_HALTED.labels(self.fence.partition).set(0)
                return
            except KafkaUnavailable:
                # Rejecting or forwarding failed: stand still, loudly, rather than skip a record.
                PARTITION_HALTED.labels(self.fence.partition).set(1)
                log.exception("partition %d: halted, a record cannot be returned to Kafka", self.fence.partition)
            except TryAgain as error:
                log.warning("partition %d: commands wait: %s", self.fence.partition, error)
            await asyncio.sleep(APPLY_AGAIN_S)

    def _announce(self, fired: Fired) -> None:
        """Hint what may run; what is gated must pass its job's overlap rule first."""
        if fired.runs or fired.soon:
            self._around.hints.send(self.fence, fired.runs, fired.soon)
        self._admissions.add(fired.gated)

    async def _admit(self) -> None:
        run_ids = await self._admissions.take()
        try:
            async with self._transaction() as tx:
                admission, live = await admit(tx, run_ids)
        except TryAgain:
            self._admissions.add(run_ids)
            raise
        over, ready = ([run_id.bytes for run_id in each] for each in (admission.over, admission.ready))
        take_in(self._memory, over, live)
        # Not due yet by the ledger's clock, which a failover may have put back: no timer tells of them any more.
        self._memory.watch((run.run_id.bytes for run in live if run.state == "pending"), self._around.clock.now_us())
        for run_id in admission.waiting:
            if found := self._memory.state.waiting(run_id.bytes):
                self._admissions.block(run_id.bytes, found[1].job_id)
        self._admissions.unblock(ready)
        self._admissions.look_at(self._admissions.unblock(over))
        self._announce(self._memory.admitted(ready, self._around.clock.now_us()))
        self._around.wake_timekeeper(self.fence.partition)  # what is blocked is looked at again and again

    async def _expire(self) -> None:
        now_us = self._around.clock.now_us()
        while ids := [run_id for _, run_id in self._memory.state.expiring(now_us, EXPIRY_BATCH)]:
            run_ids = [UUID(bytes=run_id) for run_id in ids]
            async with self._transaction() as tx:
                ended = await expire_leases(tx.conn, run_ids, now=tx.now)
                live = await read_runs(tx.conn, run_ids)
            for end in ended:
                LEASES_EXPIRED.labels(end.outcome).inc()
            # Their events come by the feed too. What is said here heals what the feed may have missed.
            take_in(self._memory, ids, live)
            for run in live:
                if run.state == "leased":  # extended; or not over yet by the ledger's clock, so look a moment later
                    expires_us = to_us(run.lease_expires_at or run.due_at)
                    self._memory.state.rearm_lease(run.run_id.bytes, max(expires_us, now_us + 1))
            self._around.wake_timekeeper(self.fence.partition)

    async def _sweep(self) -> None:
        """Ask the ledger about runs that nobody has leased since they were hinted, and hint them again."""
        self._admissions.look_again()
        self._memory.look_round(self._around.clock.now_us())
        await self._look_for_late()
        while True:
            async with self._around.sweep_turns:
                if not await self._ask_about_unleased():
                    return

    async def _ask_about_unleased(self) -> bool:
        """Some of them; whether there may be more."""
        now_us = self._around.clock.now_us()
        if not (unleased := self._memory.pop_unleased(now_us)):
            return False
        try:
            await self._skip_late(unleased)
        except TryAgain:
            self._memory.watch(unleased, now_us)
            raise
        again = self._memory.hint_again(unleased, now_us)
        self._announce(again)
        RUNS_REHINTED.inc(sum(map(len, again.runs.values())))
        return True

    async def _look_for_late(self) -> None:
        """Now and then skip whatever is too late to start; what is under watch is asked about besides."""
        while (now_us := self._around.clock.now_us()) >= self._late_from_us:
            async with session(self._around.pool) as conn:
                late = await find_late(conn, self.fence.partition, LATE_BATCH, now=from_us(now_us))
            if not late or await self._skip_late([run_id.bytes for run_id in late]) < LATE_BATCH:
                self._late_from_us = now_us + LATE_EVERY_US

    async def _skip_late(self, ids: list[bytes]) -> int:
        """Skip those of the runs that are too late to start; how many. Takes in what the ledger says of all of them."""
        run_ids = [UUID(bytes=run_id) for run_id in ids]
        async with self._transaction() as tx:
            too_late = await skip_late(tx, run_ids, now=tx.now)
            live = await read_runs(tx.conn, run_ids)
        take_in(self._memory, ids, live)
        self._around.wake_timekeeper(self.fence.partition)
        OCCURRENCES_SKIPPED.labels(DEADLINE).inc(len(too_late))
        return len(too_late)

    async def _reconcile(self) -> None:
        """Partitions take turns, and the more there is to look at, the longer a round takes: it must cost little."""
        await asyncio.sleep(RECONCILE_PERIOD_S)
        async with self._around.reconcile_turns:
            began = time.monotonic()
            await reconcile(self._memory, self._around.pool, self.fence.partition)
            self._around.wake_timekeeper(self.fence.partition)
            await asyncio.sleep((time.monotonic() - began) * (1 / RECONCILE_DUTY - 1))

    def _fold_own(self, events: list[Event]) -> None:
        """What we just wrote, at once: its events come by the feed too, a moment later, and change nothing then."""
        if events:
            self._memory.fold(events)
            self._around.wake_timekeeper(self.fence.partition)

    def _name(self) -> tuple[int, int]:
        return self.fence.partition, self.fence.epoch
