"""A partition's owner: what `streams/partition_owner.py` and `streams/decider.py` do, as tasks under virtual time.

What is decided is the product's: its memory of the partition and its wheels, its admissions and decisions, its applying
of commands, and the functions of `ledger/` that write. Only what waits, and for what, is told here again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ledger.admissions import skip_late
from ledger.completions import expire_leases
from ledger.fence import Takeover, owner_transaction, release_partition, say_decided
from ledger.jobs import READ_OVERDUE_JOBS, READ_PARTITION_JOBS, TimedJob
from ledger.runs import READ_OVERDUE_RUNS, READ_PARTITION_RUNS, LiveRun, read_runs
from schemas.errors import EpochLost, TryAgain
from schemas.events import Event
from streams.admissions import AdmissionQueue, admit
from streams.command_applier import CommandApplier
from streams.command_inbox import CommandInbox
from streams.decider import ASK_AGAIN_US, LATE_BATCH, SAY_DECIDED_AFTER_US
from streams.decision_queue import DecisionQueue
from streams.decision_rounds import BATCH
from streams.decisions import Asked, Decided, decide
from streams.fair_backlog import Batch
from streams.partition_memory import Fired
from streams.partition_owner import APPLY_AGAIN_S, COMMAND_BATCH, COMMAND_BATCH_BYTES, EXPIRY_BATCH, SUCCESSOR_LOOK_S
from streams.rebuild import OVERDUE_S, _job_event, run_event_of, take_in
from streams.timekeeper import AHEAD_US, DECISION_ROUNDS, LONGEST_SLEEP_US
from streams.timers import Position, Waiting, from_us, to_us
from tests.simulation.kafka import Hint, Returns, event_of
from tests.simulation.opening import SimulatedOpening
from tests.simulation.scheduler import SECOND_US, Signal, Task, sleep
from tests.simulation.timing_memory import MemoryOfPartition, Store

if TYPE_CHECKING:
    from tests.simulation.streams_process import StreamsProcess

RECONCILE_EVERY_US = 20 * SECOND_US  # the product's 300 s, or no simulation would see one
STALLED_US = 4 * SECOND_US
ROUND_US = SECOND_US // 2  # every other one is a sweep


class Owner:
    """Begins with open() and start(), ends with close(); the first epoch that turns out to be lost ends it, too."""

    def __init__(self, takeover: Takeover, home: StreamsProcess, pool: Any, store: Store) -> None:
        self.fence, self.store = takeover.fence, store
        self._home, self._pool, self._scheduler = home, pool, home.scheduler
        self.broker = self._broker = home.broker
        self.without, self._clock_error_us = home.without, home.clock_error_us
        partition = self.fence.partition
        self.inbox = CommandInbox(
            takeover.consumed_offset,
            hold=lambda: None,
            read_from=self._read_from,
            tenant_of=lambda _: "one",
            ahead={},
            later=lambda *_: None,
        )
        self._memory = MemoryOfPartition(store)
        returns, codec = Returns(self._broker), self._broker.wire
        self._applier = CommandApplier(self.fence, pool, returns, codec, home.partitions)  # type: ignore[arg-type]
        self._admissions = AdmissionQueue()
        self._on_time, self._behind = DecisionQueue(BATCH), DecisionQueue(LATE_BATCH)
        self._batch: Batch | None = None
        self._unleased: list[bytes] = []
        self._wake = Signal(home.scheduler)
        self._under_way: dict[str, Task] = {}
        self._again: dict[str, None] = {}
        self._read_at = takeover.consumed_offset
        self._skips = 0
        self._log, self._events = self._broker.commands[partition], self._broker.events[partition]
        self._fold_at = 0
        self._looked_through_us = 0
        self._settled_us = self._said_us = to_us(takeover.decided_through)
        self.lost = False

    async def open(self) -> None:
        """Make the store that of this epoch. May be repeated when it raises TryAgain."""
        opened = await SimulatedOpening(self, self._memory, self._pool, self.fence).open()
        self._fold_at = opened.offset

    def start(self) -> None:
        self._broker.hears_commands.append(self._hear_command)
        self._broker.hears_events.append(self._hear_event)
        self._begin("keep time", self._keep_time)
        self._begin("rounds", self._go_rounds)
        self._begin("reconcile", self._reconcile)
        self._begin("feed", self._feed)
        self._read_from(self.inbox.next_offset)

    def leave(self) -> None:
        """Commands are for the next owner; all else goes on until there is one."""
        self._hear_no_commands()
        for name in ("seek", "read", "apply"):
            if name in self._under_way:
                self._scheduler.cancel(self._under_way[name])
        self._begin("look for a successor", self._look_for_successor)

    async def _look_for_successor(self) -> None:
        while True:
            await sleep(int(SUCCESSOR_LOOK_S * SECOND_US))
            await self._prove()

    def _hear_no_commands(self) -> None:
        self.inbox.close()
        if self._hear_command in self._broker.hears_commands:
            self._broker.hears_commands.remove(self._hear_command)

    async def close(self, *, release: bool) -> None:
        """Raises LedgerUnavailable when it could not be released."""
        through = from_us(self._decided_through_us())  # now: what is cancelled leaves the queues
        self.stop()
        if release and not self.lost:
            await release_partition(self._pool, self.fence, through)

    def stop(self) -> None:
        self._hear_no_commands()
        if self._hear_event in self._broker.hears_events:
            self._broker.hears_events.remove(self._hear_event)
        for task in list(self._under_way.values()):
            self._scheduler.cancel(task)

    def rebalance(self) -> None:
        """Records may be lost on their way until the seek."""
        self.inbox.doubt()
        if self._scheduler.random.random() < 0.5:
            self._skips = 1
        self._begin("check", self._prove)
        self._begin("seek", self._seek)

    async def _seek(self) -> None:
        await sleep(int(self._scheduler.random.random() * SECOND_US))
        self._read_from(self.inbox.next_offset)

    # What begins work, where there is something to do.

    def _begin(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        if self.lost:
            return
        if name in self._under_way:
            self._again[name] = None
            return
        self._under_way[name] = self._scheduler.spawn(self._guard(name, work), self._home.process)

    async def _guard(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """A lost epoch ends the owner, an absent ledger or broker only delays it."""
        delay_us = SECOND_US // 20
        while not self.lost:
            self._again.pop(name, None)
            try:
                await work()
                delay_us = SECOND_US // 20
                if name not in self._again:
                    break
            except EpochLost:
                self._lose()
            except TryAgain:
                await sleep(delay_us)
                delay_us = min(delay_us * 2, 2 * SECOND_US)
        del self._under_way[name]

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self.stop()
            self._home.on_lost(self)

    def _now_us(self) -> int:
        """As this process believes the shard's clock to be."""
        return self._scheduler.now_us + self._clock_error_us

    def _transaction(self) -> Any:
        return owner_transaction(self._pool, self.fence)

    async def _prove(self) -> None:
        async with self._transaction():
            pass

    # Commands.

    def _hear_command(self, partition: int) -> None:
        if partition == self.fence.partition:
            self._begin("read", self._read)

    def _read_from(self, offset: int) -> None:
        self._read_at, self._skips = offset, 0
        self.inbox.sought()
        self._begin("read", self._read)

    async def _read(self) -> None:
        while self._read_at < len(self._log):
            await sleep(self._broker.lag_us())
            if self._broker.down:
                await sleep(SECOND_US // 2)
                continue
            if self._read_at >= len(self._log):
                break
            record = self._log[self._read_at]
            self._read_at += 1
            if self._skips and self._read_at < len(self._log):
                self._skips -= 1
                continue
            self.inbox.offer(record)
            if self._scheduler.random.random() < 0.05 and record.offset < self.inbox.next_offset:
                self.inbox.offer(record)  # once more, after it was taken: what is read again comes in order
            if not self.inbox.is_empty:
                self._begin("apply", self._apply)

    async def _apply(self) -> None:
        while self._batch or not self.inbox.is_empty:
            self._batch = self._batch or await self.inbox.take(COMMAND_BATCH, COMMAND_BATCH_BYTES)
            try:
                events = await self._applier.apply(self._batch)
            except TryAgain:
                await sleep(int(APPLY_AGAIN_S * SECOND_US))
                continue
            self._batch = None
            self._fold_own(events)

    # Time.

    async def _keep_time(self) -> None:
        while True:
            now_us = self._now_us()
            next_us = self._tick(now_us)
            delay_us = LONGEST_SLEEP_US if next_us is None else min(LONGEST_SLEEP_US, next_us - now_us)
            await self._wake.wait(max(1_000, delay_us))

    def _tick(self, now_us: int) -> int | None:
        more = self._memory.load(now_us)
        came_by_us = DECISION_ROUNDS.latest_us(now_us)
        fired = self._memory.pop_due(now_us, AHEAD_US, came_by_us)
        self._announce(fired)
        self._queue(self._on_time, fired.jobs, "decide", self._decide)
        self._queue(self._behind, fired.late_jobs, "catch up", self._catch_up)
        next_us = now_us if more else self._memory.next_due_us(AHEAD_US, DECISION_ROUNDS)
        if next_us is None or next_us > now_us:
            self._looked_through_us = came_by_us
        return next_us

    def _queue(
        self, queue: DecisionQueue, job_ids: list[bytes], name: str, work: Callable[[], Awaitable[None]]
    ) -> None:
        if job_ids:
            queue.add(job_ids)
            self._begin(name, work)

    async def _decide(self) -> None:
        await self._decide_of(self._on_time, first_seen_late=False)

    async def _catch_up(self) -> None:
        await self._decide_of(self._behind, first_seen_late=True)

    async def _decide_of(self, queue: DecisionQueue, *, first_seen_late: bool) -> None:
        while len(queue):
            async with queue.batch() as job_ids:
                asked = Asked.of(self.fence, self._memory.state, job_ids, first_seen_late=first_seen_late)
                async with self._transaction() as tx:
                    [decided] = await decide(tx, [asked])
                self._take_in(job_ids, decided)
                self._queue(self._behind, decided.behind, "catch up", self._catch_up)

    def _take_in(self, job_ids: list[bytes], decided: Decided) -> None:
        """`Decider._take_in` and `_let_go`."""
        for job_id in [*decided.finished, *decided.stale]:
            self._memory.forget_job(job_id)
        for job_id, at_us in decided.early.items():
            self._memory.retry_job(job_id, at_us)
        self._fold_own([*decided.events, *decided.stale.values()])
        now_us = self._now_us()
        superseded = self._memory.decided(sorted(decided.superseded))
        self._memory.watch(superseded, now_us + ASK_AGAIN_US)
        self._announce(self._memory.hint_again(self._memory.decided(job_ids), now_us))

    def _decided_through_us(self) -> int:
        """`Decider.decided_through_us`."""
        if not (len(self._on_time) + len(self._behind)):
            now_us = self._now_us()
            is_clear = self._memory.is_clear_of_jobs(now_us)
            self._settled_us = max(self._settled_us, now_us if is_clear else self._looked_through_us)
        return self._settled_us

    async def _say_decided(self) -> None:
        through_us = self._decided_through_us()
        if through_us - self._said_us >= SAY_DECIDED_AFTER_US:
            if await say_decided(self._pool, {self.fence: from_us(through_us)}):
                self._said_us = through_us
            else:
                await self._prove()

    # Hints.

    def _announce(self, fired: Fired) -> None:
        for where, run_ids in fired.runs.items():
            self._hint(where, run_ids, None)
        for where, timers in fired.soon.items():
            for due_us, run_id in timers:
                self._hint(where, [run_id], due_us)
        self._ask_to_admit(fired.gated)

    def _hint(self, where: Waiting, run_ids: list[bytes], due_us: int | None) -> None:
        fence = self.fence
        hint = Hint(fence.partition, fence.epoch, where.tenant, where.queue, where.lane, list(run_ids), due_us)
        self._broker.hint(hint)

    def _ask_to_admit(self, run_ids: Iterable[bytes]) -> None:
        self._admissions.add(run_ids)
        if self._admissions._asked:
            self._begin("admit", self._admit)

    async def _admit(self) -> None:
        while self._admissions._asked:
            run_ids = await self._admissions.take()
            try:
                async with self._transaction() as tx:
                    admission, live = await admit(tx, run_ids)
            except TryAgain:
                self._admissions.add(run_ids)
                raise
            over, ready = ([run_id.bytes for run_id in each] for each in (admission.over, admission.ready))
            take_in(self._memory, over, live)
            self._memory.watch((run.run_id.bytes for run in live if run.state == "pending"), self._now_us())
            for run_id in admission.waiting:
                if found := self._memory.state.waiting(run_id.bytes):
                    self._admissions.block(run_id.bytes, found[1].job_id)
            self._admissions.unblock(ready)
            self._admissions.look_at(sorted(self._admissions.unblock(over)))
            self._announce(self._memory.admitted(ready, self._now_us()))

    # Events.

    def _hear_event(self, partition: int) -> None:
        if partition == self.fence.partition:
            self._begin("feed", self._feed)

    async def _feed(self) -> None:
        while self._fold_at < len(self._events):
            await sleep(self._broker.lag_us() * 2)
            if self._broker.down:
                await sleep(SECOND_US // 2)
                continue
            told, self._fold_at = self._events[self._fold_at :], len(self._events)
            events = [event_of(each) for each in told]
            self._memory.fold(events, Position(self.fence.epoch, self._fold_at))
            self._admissions.folded(events, self._memory.waits)
            self._ask_to_admit(())
            self._wake.set()

    def _fold_own(self, events: list[Event]) -> None:
        if events:
            self._memory.fold(events)
            self._wake.set()

    # Now and then.

    async def _go_rounds(self) -> None:
        number, stalled_since_us, stalled_at = 0, self._scheduler.now_us, self.inbox.next_offset
        while True:
            await sleep(ROUND_US)
            number += 1
            now_us = self._now_us()
            if self._memory.state.expiring(now_us, 1):
                self._begin("expire", self._expire)
            if number % 2:
                self._begin("say", self._say_decided)
                continue
            self._admissions.look_again()
            self._ask_to_admit(())
            self._unleased += self._memory.pop_unleased(now_us)
            if self._unleased:
                self._begin("sweep", self._sweep)
            if self.inbox.next_offset != stalled_at or stalled_at >= len(self._log):
                stalled_since_us, stalled_at = self._scheduler.now_us, self.inbox.next_offset
            elif self._scheduler.now_us - stalled_since_us > STALLED_US:
                self.inbox.doubt()
                self._read_from(self.inbox.next_offset)

    async def _expire(self) -> None:
        now_us = self._now_us()
        while ids := [run_id for _, run_id in self._memory.state.expiring(now_us, EXPIRY_BATCH)]:
            run_ids = [UUID(bytes=run_id) for run_id in ids]
            async with self._transaction() as tx:
                await expire_leases(tx.conn, run_ids, now=tx.now)
                live = await read_runs(tx.conn, run_ids)
            take_in(self._memory, ids, live)
            for run in live:
                if run.state == "leased":
                    expires_us = to_us(run.lease_expires_at or run.due_at)
                    self._memory.state.rearm_lease(run.run_id.bytes, max(expires_us, now_us + 1))
            self._wake.set()

    async def _sweep(self) -> None:
        """Ask the ledger about runs that nobody has leased since they were hinted, and hint them again."""
        unleased, self._unleased = self._unleased, []
        run_ids = [UUID(bytes=run_id) for run_id in unleased]
        now_us = self._now_us()
        try:
            async with self._transaction() as tx:
                await skip_late(tx, run_ids, now=tx.now)
                live = await read_runs(tx.conn, run_ids)
        except TryAgain:
            self._memory.watch(unleased, now_us)
            raise
        take_in(self._memory, unleased, live)
        if self._home.without != "repeated hints":
            self._announce(self._memory.hint_again(unleased, now_us))

    async def _reconcile(self) -> None:
        while True:
            await sleep(RECONCILE_EVERY_US)
            await self._read_ledger(READ_OVERDUE_JOBS, READ_OVERDUE_RUNS, (self.fence.partition, OVERDUE_S))
            self._wake.set()

    async def rebuild(self) -> None:
        """From the ledger alone."""
        self._memory.clear()
        await self._read_ledger(READ_PARTITION_JOBS, READ_PARTITION_RUNS, (self.fence.partition,))

    async def _read_ledger(self, jobs_sql: str, runs_sql: str, params: tuple[Any, ...]) -> None:
        async with self._pool.connection() as conn:
            jobs = [TimedJob(*row) for row in await (await conn.execute(jobs_sql, params)).fetchall()]
            self._memory.fold([_job_event("job_resumed", job) for job in jobs])
            runs = [LiveRun(*row) for row in await (await conn.execute(runs_sql, params)).fetchall()]
            self._memory.fold([run_event_of(run) for run in runs])
        for run in runs:
            if run.lease_expires_at is not None:
                self._memory.state.rearm_lease(run.run_id.bytes, to_us(run.lease_expires_at))
