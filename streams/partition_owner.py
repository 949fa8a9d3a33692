"""The owner of one partition: applies its commands, keeps its time, hints its runs, ends its expired leases.

Everything here happens under one epoch. The first write that is refused (EpochLost) ends it: the owner drops all its
memory of the partition and says so, whatever the process was doing while it was frozen, cut off or slow.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from ledger.completions import expire_leases
from ledger.connection import Pool
from ledger.fence import Takeover, owner_transaction, release_partition
from ledger.partitions import advance_decided
from ledger.runs import read_runs
from schemas.codec import Codec
from schemas.errors import EpochLost, KafkaUnavailable, TryAgain
from schemas.events import Event
from streams.command_applier import CommandApplier
from streams.command_inbox import CommandInbox
from streams.decisions import Decided, decide
from streams.ledger_clock import LedgerClock
from streams.metrics import (
    EPOCHS_LOST,
    EVENTS_FOLDED,
    HINT_LATENESS_SECONDS,
    LEASES_EXPIRED,
    OCCURRENCES_DECIDED,
    PARTITION_HALTED,
    RUNS_REHINTED,
)
from streams.partition_memory import PartitionMemory
from streams.ready_hints import ReadyHints
from streams.rebuild import rebuild, reconcile, refresh_runs, take_in
from streams.rejections import CommandReturns, RawCommand
from streams.timing_state import Position, from_us, to_us

log = logging.getLogger(__name__)

COMMAND_BATCH = 500
COMMAND_BATCH_BYTES = 512 << 10  # some 3,000 commands in batch records: well within a transaction's time
EXPIRY_BATCH = 500
EXPIRY_PERIOD_S = 0.5
SWEEP_PERIOD_S = 1.0
RECONCILE_PERIOD_S = 300.0
UNDECIDABLE_AGAIN_US = 60_000_000
APPLY_AGAIN_S = 0.5
# Transactions of commands under way at once in a process: while one waits for its turn its batch grows. After an outage
# 1,300 records were applied in 1.7 s by 118 transactions, and in 5.5 s by 1,038 when every partition went ahead.
APPLYING_AT_ONCE = 2


@dataclass(frozen=True)
class Surroundings:
    """What all owners of a process share."""

    pool: Pool
    codec: Codec
    hints: ReadyHints
    returns: CommandReturns
    clock: LedgerClock
    partitions: int
    state_folder: Path
    wake_timekeeper: Callable[[], None]
    end_offset: Callable[[int], Awaitable[int]]  # of a partition of run-events
    crash: Callable[[Exception], None]
    apply_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(APPLYING_AT_ONCE))


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
        self._folder = around.state_folder / f"p-{self.fence.partition:04d}"
        self._memory = PartitionMemory(self._folder)
        self._applier = CommandApplier(self.fence, around.pool, around.returns, around.codec, around.partitions)
        self._undecided: asyncio.Queue[bytes] = asyncio.Queue()
        self._deciding = False
        self._undecidable: set[bytes] = set()
        self._looked_through_us = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost = False

    async def open(self) -> int:
        """Make the memory that of this epoch; returns the offset of run-events to go on folding from.

        The state on disk is good when the epoch before this one wrote it: then nobody else owned the partition since,
        and what it missed is in the events after its position. Else it is rebuilt from the ledger.
        """
        position = self._memory.state.position()
        if position is not None and position.epoch == self.fence.epoch - 1:
            offset = position.offset
        else:
            offset = await self._rebuild()
        self._memory.fold([], Position(self.fence.epoch, offset))
        return offset

    def start(self) -> None:
        """Begin to work. The memory is open."""
        for work in (self._apply, self._decide, self._expire, self._sweep, self._reconcile):
            self._begin(self._guard(work), work.__name__)

    async def close(self, *, release: bool, forget: bool = False) -> None:
        """Stop working. release: tell the ledger that nobody owns the partition now. forget: delete the state too.

        Raises LedgerUnavailable when it could not be released; all else is done then.
        """
        self.inbox.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        PARTITION_HALTED.labels(self.fence.partition).set(0)
        self._memory.close()
        if self._lost or forget:
            shutil.rmtree(self._folder, ignore_errors=True)
        if release and not self._lost:
            await release_partition(self._around.pool, self.fence)

    def fold(self, events: list[Event], next_offset: int) -> None:
        """Take in events of the feed, up to next_offset (exclusive)."""
        self._memory.fold(events, Position(self.fence.epoch, next_offset))
        EVENTS_FOLDED.inc(len(events))
        self._around.wake_timekeeper()

    def tick(self, now_us: int) -> int | None:
        """Hint what is due and queue what is to be decided; returns when to look again, as far as is known."""
        more = self._memory.load(now_us)
        fired = self._memory.pop_due(now_us)
        if fired.runs:
            self._around.hints.send(self.fence, fired.runs)
            if fired.oldest_due_us is not None:
                HINT_LATENESS_SECONDS.observe((now_us - fired.oldest_due_us) / 1e6)
        for job_id in fired.jobs:
            self._undecided.put_nowait(job_id)
        next_us = now_us if more else self._memory.next_due_us()
        if next_us is None or next_us > now_us:
            self._looked_through_us = now_us  # else a backlog is not all popped yet
        return next_us

    def timers(self) -> int:
        """How many timers are in memory."""
        return self._memory.timers()

    def check(self) -> None:
        """Find out soon whether the epoch still stands."""
        self._begin(self._guard_once(self._prove), "check")

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"p{self.fence.partition} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _prove(self) -> None:
        async with owner_transaction(self._around.pool, self.fence):
            pass

    async def _rebuild(self) -> int:
        self._memory.clear()
        # The end first: whatever happens while the ledger is read is then folded on top, guarded by its versions.
        offset = await self._around.end_offset(self.fence.partition)
        await rebuild(self._memory, self._around.pool, self.fence.partition)
        return offset

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

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            EPOCHS_LOST.inc()
            log.warning("partition %d: epoch %d is over, dropping its memory", *self._name())
            self._on_lost(self)

    async def _apply(self) -> None:
        await self.inbox.arrival()
        records: list[RawCommand] = []
        while True:
            try:
                async with self._around.apply_turns:
                    records = records or await self.inbox.take(COMMAND_BATCH, COMMAND_BATCH_BYTES)
                    self._fold_own(await self._applier.apply(records))
                PARTITION_HALTED.labels(self.fence.partition).set(0)
                return
            except KafkaUnavailable:
                # Rejecting or forwarding failed: stand still, loudly, rather than skip a record.
                PARTITION_HALTED.labels(self.fence.partition).set(1)
                log.exception("partition %d: halted, a record cannot be returned to Kafka", self.fence.partition)
            except TryAgain as error:
                log.warning("partition %d: commands wait: %s", self.fence.partition, error)
            await asyncio.sleep(APPLY_AGAIN_S)

    async def _decide(self) -> None:
        job_ids = [await self._undecided.get()]
        self._deciding = True
        while not self._undecided.empty() and len(job_ids) < COMMAND_BATCH:
            job_ids.append(self._undecided.get_nowait())
        looked_through_us, last = self._looked_through_us, self._undecided.empty()
        try:
            async with owner_transaction(self._around.pool, self.fence) as tx:
                decided = await decide(tx, self._memory.state, job_ids)
                self._note_undecidable(job_ids, decided)
                if last and not self._undecidable:
                    await advance_decided(tx, from_us(looked_through_us))
        except TryAgain:
            for job_id in job_ids:
                self._undecided.put_nowait(job_id)
            raise
        finally:
            self._deciding = False
        for job_id in [*decided.finished, *decided.stale]:
            self._memory.forget_job(job_id)
        for job_id, at_us in decided.early.items():
            self._memory.retry_job(job_id, at_us)
        self._fold_own([*decided.events, *decided.stale.values()])
        OCCURRENCES_DECIDED.inc(len(decided.events))

    def _note_undecidable(self, job_ids: list[bytes], decided: Decided) -> None:
        """While there is one, not every occurrence is decided, and the ledger must not say so."""
        self._undecidable -= set(job_ids)
        self._undecidable |= set(decided.undecidable)
        for job_id in decided.undecidable:
            self._memory.retry_job(job_id, self._around.clock.now_us() + UNDECIDABLE_AGAIN_US)

    async def _expire(self) -> None:
        await asyncio.sleep(EXPIRY_PERIOD_S)
        now_us = self._around.clock.now_us()
        while ids := [run_id for _, run_id in self._memory.state.expiring(now_us, EXPIRY_BATCH)]:
            run_ids = [UUID(bytes=run_id) for run_id in ids]
            async with owner_transaction(self._around.pool, self.fence) as tx:
                ended = await expire_leases(tx.conn, run_ids)
                live = await read_runs(tx.conn, run_ids)
            for end in ended:
                LEASES_EXPIRED.labels(end.outcome).inc()
            # Their events come by the feed too. What is said here heals what the feed may have missed.
            take_in(self._memory, ids, live)
            for run in live:
                if run.state == "leased":  # extended; or not over yet by the ledger's clock, so look a moment later
                    expires_us = to_us(run.lease_expires_at or run.due_at)
                    self._memory.state.rearm_lease(run.run_id.bytes, max(expires_us, now_us + 1))
            self._around.wake_timekeeper()

    async def _sweep(self) -> None:
        await asyncio.sleep(SWEEP_PERIOD_S)
        while unleased := self._memory.pop_unleased(self._around.clock.now_us()):
            now_us = self._around.clock.now_us()
            try:
                await refresh_runs(self._memory, self._around.pool, unleased)
            except TryAgain:
                self._memory.watch(unleased, now_us)
                raise
            again = self._memory.hint_again(unleased, now_us)
            self._around.hints.send(self.fence, again)
            RUNS_REHINTED.inc(sum(map(len, again.values())))

    async def _reconcile(self) -> None:
        # Spread over the period, so that a process's partitions do not read the ledger all at once.
        await asyncio.sleep(RECONCILE_PERIOD_S * (0.5 + self.fence.partition % 16 / 16))
        await reconcile(self._memory, self._around.pool, self.fence.partition)
        self._around.wake_timekeeper()
        looked_through_us = self._looked_through_us
        if self._undecided.empty() and not self._deciding and not self._undecidable:
            async with owner_transaction(self._around.pool, self.fence) as tx:
                await advance_decided(tx, from_us(looked_through_us))

    def _fold_own(self, events: list[Event]) -> None:
        """What we just wrote, at once: its events come by the feed too, a moment later, and change nothing then."""
        if events:
            self._memory.fold(events)
            self._around.wake_timekeeper()

    def _name(self) -> tuple[int, int]:
        return self.fence.partition, self.fence.epoch
