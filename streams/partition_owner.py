"""The owner of one partition: applies its commands, keeps its time, hints its runs, ends its expired leases.

Everything here happens under one epoch. The first write that is refused (EpochLost) ends it: the owner drops all its
memory of the partition and says so, whatever the process was doing while it was frozen, cut off or slow.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from ledger.completions import expire_leases, lease_expiries
from ledger.connection import Pool
from ledger.fence import Takeover, owner_transaction, release_partition
from ledger.partitions import advance_decided
from schemas.codec import Codec
from schemas.errors import EpochLost, KafkaUnavailable, TryAgain
from schemas.events import Event
from streams.command_applier import CommandApplier
from streams.command_inbox import CommandInbox
from streams.decisions import decide
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
from streams.rebuild import rebuild, reconcile, refresh_runs
from streams.rejections import CommandReturns
from streams.timing_state import Position, from_us, to_us

log = logging.getLogger(__name__)

COMMAND_BATCH = 500
EXPIRY_BATCH = 500
EXPIRY_PERIOD_S = 0.5
SWEEP_PERIOD_S = 1.0
RECONCILE_PERIOD_S = 300.0
ASK_AGAIN_US = 2_000_000
APPLY_AGAIN_S = 0.5


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


class PartitionOwner:
    """Starts with open(), ends with close(); calls on_lost once when the epoch turns out to be gone."""

    def __init__(self, takeover: Takeover, around: Surroundings, on_lost: Callable[[PartitionOwner], None]) -> None:
        self.fence, self.inbox = takeover.fence, CommandInbox(takeover.consumed_offset)
        self._around, self._on_lost = around, on_lost
        self._folder = around.state_folder / f"p-{self.fence.partition:04d}"
        self._memory = PartitionMemory(self._folder)
        self._applier = CommandApplier(self.fence, around.pool, around.returns, around.codec, around.partitions)
        self._undecided: asyncio.Queue[bytes] = asyncio.Queue()
        self._looked_through_us = 0
        self._tasks: list[asyncio.Task[None]] = []
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
            self._tasks.append(asyncio.create_task(self._guard(work), name=f"p{self.fence.partition} {work.__name__}"))

    async def close(self, *, release: bool) -> None:
        """Stop working. release: tell the ledger that nobody owns the partition now."""
        self.inbox.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._memory.close()
        if self._lost:
            shutil.rmtree(self._folder, ignore_errors=True)
        elif release:
            await release_partition(self._around.pool, self.fence)

    async def rebuild(self) -> int:
        """Start over from the ledger: the events that the memory needs are gone from the topic."""
        offset = await self._rebuild()
        self._memory.fold([], Position(self.fence.epoch, offset))
        return offset

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
        self._looked_through_us = now_us
        return now_us if more else self._memory.next_due_us()

    def timers(self) -> int:
        """How many timers are in memory."""
        return self._memory.timers()

    def check(self) -> None:
        """Find out soon whether the epoch still stands."""
        self._tasks.append(asyncio.create_task(self._guard_once(self._prove), name=f"p{self.fence.partition} check"))

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
        records = await self.inbox.take(COMMAND_BATCH)
        while True:
            try:
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
        while not self._undecided.empty() and len(job_ids) < COMMAND_BATCH:
            job_ids.append(self._undecided.get_nowait())
        looked_through_us, last = self._looked_through_us, self._undecided.empty()
        try:
            async with owner_transaction(self._around.pool, self.fence) as tx:
                decided = await decide(tx, self._memory.state, job_ids)
                if last:
                    await advance_decided(tx, from_us(looked_through_us))
        except TryAgain:
            for job_id in job_ids:
                self._undecided.put_nowait(job_id)
            raise
        for job_id in [*decided.finished, *decided.stale]:
            self._memory.forget_job(job_id)
        self._fold_own([*decided.events, *(event for event in decided.stale.values() if event)])
        OCCURRENCES_DECIDED.inc(len(decided.events))

    async def _expire(self) -> None:
        await asyncio.sleep(EXPIRY_PERIOD_S)
        state, now_us = self._memory.state, self._around.clock.now_us()
        while ids := [run_id for _, run_id in state.expiring(now_us, EXPIRY_BATCH)]:
            run_ids = [UUID(bytes=run_id) for run_id in ids]
            async with owner_transaction(self._around.pool, self.fence) as tx:
                ended = await expire_leases(tx.conn, run_ids)
                expiries = await lease_expiries(tx.conn, run_ids)
            for end in ended:
                LEASES_EXPIRED.labels(end.outcome).inc()
            for run_id in run_ids:
                # What ended, or is leased no more, comes back by its event; look again if it does not.
                extended = expiries.get(run_id)
                again_us = to_us(extended) if extended else now_us + ASK_AGAIN_US
                state.rearm_lease(run_id.bytes, max(again_us, now_us + 1))

    async def _sweep(self) -> None:
        await asyncio.sleep(SWEEP_PERIOD_S)
        unleased = self._memory.pop_unleased(self._around.clock.now_us())
        if not unleased:
            return
        ids = [run_id for run_ids in unleased.values() for run_id in run_ids]
        for start in range(0, len(ids), 1_000):
            await refresh_runs(self._memory, self._around.pool, ids[start : start + 1_000])
        self._around.hints.send(self.fence, unleased)
        RUNS_REHINTED.inc(len(ids))

    async def _reconcile(self) -> None:
        # Spread over the period, so that a process's partitions do not read the ledger all at once.
        await asyncio.sleep(RECONCILE_PERIOD_S * (0.5 + self.fence.partition % 16 / 16))
        await reconcile(self._memory, self._around.pool, self.fence.partition)
        if self._undecided.empty():
            async with owner_transaction(self._around.pool, self.fence) as tx:
                await advance_decided(tx, from_us(self._looked_through_us))

    def _fold_own(self, events: list[Event]) -> None:
        """What we just wrote, at once: its events come by the feed too, a moment later, and change nothing then."""
        if events:
            self._memory.fold(events)
            self._around.wake_timekeeper()

    def _name(self) -> tuple[int, int]:
        return self.fence.partition, self.fence.epoch
