"""Decides a partition's occurrences: what has just come at once, what was missed beside it and slower.

Three ways to a decision. On time: in the next round, with those of the other partitions. Late: a turn at a time, for a
share of the process's time. Late, to be made up for (catchUp `all`), and of a queue that has a rate: spread, see
streams/spreading.py. Each work does one turn; the owner repeats it under its epoch for as long as that stands.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from ledger.connection import session
from ledger.fence import OwnerTransaction, Takeover
from ledger.queue_settings import QueueName
from schemas.events import Event
from streams.backlog import Backlog
from streams.decision_queue import DecisionQueue
from streams.decision_rounds import BATCH
from streams.decisions import Asked, Decided, decide
from streams.metrics import (
    DECIDED_THROUGH_SECONDS,
    JOBS_BEHIND,
    JOBS_UNDECIDABLE,
    OCCURRENCES_DECIDED,
    OCCURRENCES_SKIPPED,
    UNDECIDED_LAG_SECONDS,
    PartitionGauge,
)
from streams.partition_memory import Fired, PartitionMemory
from streams.spreading import find_missed, is_missed, spread_missed
from streams.surroundings import Surroundings
from streams.timers import to_us

LATE_BATCH = 50  # jobs that are behind, each with up to decisions.LINKS_A_JOB occurrences, in one transaction
LATE_DUTY = 0.3  # of a process's time for all that are behind: what is on time must stay so
SORTED_AGAIN_S = 0.05
UNDECIDABLE_AGAIN_US = 60_000_000
SAY_DECIDED_AFTER_US = 1_000_000
ASK_AGAIN_US = 5_000_000


class Decider:
    """Belongs to one owner, over its memory.

    transaction: opens one under the owner's fence. announce: hints runs that may run. fold_own: takes in events that
    were just written. The works raise EpochLost, LedgerUnavailable; then nothing was decided, and all is still queued.
    """

    def __init__(
        self,
        takeover: Takeover,
        around: Surroundings,
        memory: PartitionMemory,
        *,
        transaction: Callable[[], AbstractAsyncContextManager[OwnerTransaction]],
        announce: Callable[[Fired], None],
        fold_own: Callable[[list[Event]], None],
    ) -> None:
        self._fence = takeover.fence
        self._around, self._memory = around, memory
        self._transaction, self._announce, self._fold_own = transaction, announce, fold_own
        self._on_time = DecisionQueue(BATCH)
        self._behind = DecisionQueue(LATE_BATCH)
        self._unsorted = DecisionQueue(BATCH)  # late jobs of which it is not known which of the two takes them
        self._backlog = Backlog()
        self._is_popped = False  # whether all that is due has been found
        self._rates_followed: dict[QueueName, int] = {}
        self._looked_through_us = 0
        self._settled_us = self._said_us = to_us(takeover.decided_through)

    def works(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """What is to be repeated, each beside the others."""
        return (self.decide, self.sort_late, self.catch_up, self.spread)

    def take(self, fired: Fired) -> None:
        """Queue the jobs whose pending occurrence has come."""
        self._on_time.add(fired.jobs)
        late = self._unsorted if self._around.rates.any_set() else self._behind
        late.add(job_id for job_id in fired.late_jobs if job_id not in self._backlog)

    def looked(self, through_us: int, *, is_popped: bool) -> None:
        """All that came up to then is queued; is_popped is False when a backlog is not all found yet."""
        self._is_popped = is_popped
        if is_popped:
            self._looked_through_us = through_us

    def decided_through_us(self) -> int:
        """Up to when every occurrence has its decision, whether the ledger has heard of it or not."""
        if not (self._undecided_jobs() or self._memory.undecidable):
            now_us = self._around.clock.now_us()
            looked_through_us = now_us if self._memory.is_clear_of_jobs(now_us) else self._looked_through_us
            self._settled_us = max(self._settled_us, looked_through_us)
        return self._settled_us

    def unsaid_decided_us(self) -> int | None:
        """The same, if the ledger's word of it is old."""
        through_us = self.decided_through_us()
        return through_us if through_us - self._said_us >= SAY_DECIDED_AFTER_US else None

    def said_decided(self, through_us: int) -> None:
        """The ledger has heard of it."""
        self._said_us = max(self._said_us, through_us)

    def gauges(self) -> tuple[tuple[PartitionGauge, Callable[[], float]], ...]:
        """How far the partition is, for whoever looks."""
        return (
            (DECIDED_THROUGH_SECONDS, lambda: self.decided_through_us() / 1e6),
            (UNDECIDED_LAG_SECONDS, lambda: max(0, self._around.clock.now_us() - self.decided_through_us()) / 1e6),
            (JOBS_BEHIND, lambda: self._undecided_jobs() - len(self._on_time)),
            (JOBS_UNDECIDABLE, lambda: len(self._memory.undecidable)),
        )

    async def decide(self) -> None:
        """Decide occurrences that have just come."""
        async with self._on_time.batch() as job_ids:
            # More may come meanwhile, again and again; what was looked for until now is settled all the same.
            looked_through_us, is_all = self._looked_through_us, self._undecided_jobs() == len(job_ids)
            missed = self._missed(job_ids) if self._around.rates.any_set() else set()
            self._unsorted.add(missed)
            on_time = [job_id for job_id in job_ids if job_id not in missed]
            decided = await self._around.rounds.decide(Asked.of(self._fence, self._memory.state, on_time))
            self._take_in(on_time, decided)
            self._behind.add(decided.behind)
            if is_all and not (missed or decided.behind or self._memory.undecidable):
                self._settled_us = max(self._settled_us, looked_through_us)

    async def sort_late(self) -> None:
        """Find out which late jobs are made up for at their queue's rate."""
        async with self._unsorted.batch() as job_ids:
            now_us = self._around.clock.now_us()
            async with session(self._around.pool) as conn:
                found = await find_missed(conn, self._memory.state, job_ids, self._fence.partition, now_us)
            for queue, missed in found:
                self._backlog.add(queue, missed)
            self._behind.add(job_id for job_id in job_ids if job_id not in self._backlog)

    async def catch_up(self) -> None:
        """Decide occurrences that came a while ago, beside those that are on time and slower than they."""
        await self._behind.arrival()
        async with self._catch_up_turn(), self._behind.batch() as job_ids:
            asked = Asked.of(self._fence, self._memory.state, job_ids, first_seen_late=True)
            async with self._transaction() as tx:
                [decided] = await decide(tx, [asked])
            self._take_in(job_ids, decided)
            self._behind.add(decided.behind)

    async def spread(self) -> None:
        """Decide what was missed of queues that have a rate, a queue at a time."""
        await self._backlog.arrival()
        # Something older may be among what is not sorted yet.
        while len(self._unsorted) or not self._is_popped:  # noqa: ASYNC110 - a tick tells it
            await asyncio.sleep(SORTED_AGAIN_S)
        async with self._catch_up_turn():
            queue, missed = self._backlog.turn()
            async with self._transaction() as tx:
                spread = await spread_missed(tx, self._memory.state, queue, missed, self._around.rate_share())
            self._backlog.keep(queue, spread.left, spread.gone)
            self._take_in(spread.job_ids, spread.decided)
            self._unsorted.add(spread.strays)

    def has_other_rates(self) -> bool:
        """Whether a queue has a rate that was not followed yet."""
        return bool(self._around.rates.changed(self._rates_followed))

    async def follow_rates(self) -> None:
        """Set made-up runs apart by their queue's new rate, and after a takeover what the last owner had left."""
        for queue, version in self._around.rates.changed(self._rates_followed).items():
            more = True
            while more:
                async with self._catch_up_turn():
                    async with self._transaction() as tx:
                        spread = await spread_missed(tx, self._memory.state, queue, [], self._around.rate_share())
                    self._fold_own(spread.decided.events)
                    more = spread.more
            self._rates_followed[queue] = version

    def _missed(self, job_ids: list[bytes]) -> set[bytes]:
        """Jobs that were on time when they were queued: the ledger may have been away since."""
        now_us = self._around.clock.now_us()
        timers = {job_id: self._memory.state.job(job_id) for job_id in job_ids}
        return {job_id for job_id, timer in timers.items() if timer is not None and is_missed(timer, now_us)}

    def _undecided_jobs(self) -> int:
        """How many jobs have a pending occurrence that has come."""
        return len(self._on_time) + len(self._unsorted) + len(self._behind) + len(self._backlog)

    @asynccontextmanager
    async def _catch_up_turn(self) -> AsyncIterator[None]:
        async with self._around.catch_up_turns:
            began = time.monotonic()
            yield
            await asyncio.sleep((time.monotonic() - began) * (1 / LATE_DUTY - 1))

    def _take_in(self, job_ids: list[bytes], decided: Decided) -> None:
        self._note_undecidable(job_ids, decided)
        for job_id in [*decided.finished, *decided.stale]:
            self._memory.forget_job(job_id)
        for job_id, at_us in decided.early.items():
            self._memory.retry_job(job_id, at_us)
        self._fold_own([*decided.events, *decided.stale.values()])
        self._let_go(job_ids, decided)
        OCCURRENCES_DECIDED.inc(sum(event.type == "run_scheduled" for event in decided.events))
        for reason, count in decided.skipped.items():
            OCCURRENCES_SKIPPED.labels(reason).inc(count)

    def _note_undecidable(self, job_ids: list[bytes], decided: Decided) -> None:
        """While there is one, not every occurrence is decided, and the ledger must not be told so."""
        self._memory.undecidable -= set(job_ids)
        self._memory.undecidable |= set(decided.undecidable)
        for job_id in decided.undecidable:
            self._memory.retry_job(job_id, self._around.clock.now_us() + UNDECIDABLE_AGAIN_US)

    def _let_go(self, job_ids: list[bytes], decided: Decided) -> None:
        """Runs that were withheld until now are hinted, but for those that are not to run."""
        now_us = self._around.clock.now_us()
        superseded = self._memory.decided(decided.superseded)
        self._memory.watch(superseded, now_us + ASK_AGAIN_US)
        self._announce(self._memory.hint_again(self._memory.decided(job_ids), now_us))
