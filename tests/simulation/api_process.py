"""An API process: hints, leases and claims, looks into the ledger, outcomes.

What `api/ready_hints.py`, `api/leases.py`, `api/claims.py` and `api/ready_poll.py` do, as tasks under virtual time. The
index, what is held back, the times of looks, the writes and the miss path are the product's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from api.ended_attempts import EndedAttempts
from api.held_hints import HeldHints
from api.history_client import KnownRun
from api.look_times import LookTimes
from api.outcome_kinds import Kind
from api.problems import Problem
from api.ready_index import Queue, ReadyIndex, ReadyRun, Waiter
from ledger.fence import api_transaction
from ledger.lease_requests import recall_leases
from ledger.leases import HeldLease, LeaseAsk, LeasedRun, lease_at_once, release_runs
from ledger.runs import find_due
from ledger.tokens import Identity
from schemas.commands import LANES
from schemas.errors import EpochLost, LedgerUnavailable, TryAgain
from schemas.ids import partition_of_run
from tests.simulation.kafka import Broker, Hint
from tests.simulation.placements import Placements
from tests.simulation.postgres import Pool, Shard
from tests.simulation.rows import Told
from tests.simulation.scheduler import SECOND_US, Process, Scheduler, Signal, Task, park, sleep

TENANT = "acme"
WORKER = Identity("token", TENANT, "worker", None)
FOUND_LIMIT = 200
MOVED_AGAIN = 3

_STATES = {
    "run_scheduled": "scheduled", "run_released": "scheduled", "run_held": "held", "run_leased": "leased",
    "run_cancel_requested": "leased", "run_retried": "retrying", "run_completed": "completed", "run_dead": "dead",
    "run_cancelled": "cancelled", "run_skipped": "skipped",
}  # fmt: skip


class History:
    """The latest event of each run, as the projector has folded it."""

    def __init__(self) -> None:
        self._latest: dict[UUID, KnownRun] = {}

    def fold(self, events: Sequence[Told]) -> None:
        for told in events:
            if told.run_id is None:
                continue
            known = self._latest.get(told.run_id)
            if known is None or known.version < told.version:
                self._latest[told.run_id] = KnownRun(
                    run_id=told.run_id, job_id=told.job_id, tenant=told.tenant, queue=told.queue, lane=LANES[told.lane],
                    state=_STATES[told.event], version=told.version, attempt=told.attempt, due_at=told.due_at,
                    lease_token=told.lease_token, worker_id=told.worker_id, reason=told.reason,
                )  # fmt: skip

    async def run(self, run_id: UUID) -> KnownRun | None:
        return self._latest.get(run_id)

    def deadline(self) -> float:
        return 0.0


class Call:
    """A request on its way: hung_up once nobody waits for its answer any more."""

    def __init__(self) -> None:
        self.hung_up = False


class ApiProcess:
    """polls: whether hints are relied on (looks become rare), doubted (they do not), or all there is (no looks)."""

    def __init__(self, name: str, broker: Broker, shards: list[Shard], history: History, polls: str) -> None:
        self.process = Process(name)
        self.scheduler: Scheduler = broker.scheduler
        self._pools: list[Any] = [Pool(shard, self.process) for shard in shards]
        self._placements = Placements(self._pools)
        self._polls = polls
        self.index = ReadyIndex()
        self._held: HeldHints[Hint] = HeldHints()
        self._times = LookTimes()
        self._look_now = Signal(self.scheduler)
        self._answering: dict[UUID, list[Task]] = {}
        self.clock_error_us = 0
        self._ends = EndedAttempts(self, history)  # type: ignore[arg-type]
        broker.hears_hints.append(self._hear)
        self._broker = broker
        if polls != "none":
            self.scheduler.spawn(self._look_on(), self.process)

    def stopped(self) -> None:
        self._broker.hears_hints.remove(self._hear)

    def of_run(self, run_id: UUID) -> Any:
        """The pool of the run's shard, as far as is known: what `Shards.of_run` is to the miss path."""
        return self._pools[self._placements.known(partition_of_run(run_id)) or 0]

    # Hints.

    def _hear(self, hint: Hint) -> None:
        if self.process.alive:
            self.scheduler.spawn(self._hold(hint), self.process)

    async def _hold(self, hint: Hint) -> None:
        now_us = self._now_us()
        self._held.hold(hint, now_us if hint.due_us is None else hint.due_us, now_us)
        while (wait_us := self._held.wait_us(self._now_us())) is not None:
            if wait_us:
                await sleep(wait_us)
            for due in self._held.pop(self._now_us()):
                lane = LANES.index(due.lane)
                runs = [ReadyRun(UUID(bytes=run_id), due.epoch, lane) for run_id in due.run_ids]
                self.index.add((due.tenant, due.queue), runs)

    def _now_us(self) -> int:
        return self.scheduler.now_us + self.clock_error_us

    # Leases.

    async def lease(
        self, call: Call, queues: Sequence[Queue], most: int, wait_us: int, worker_id: str, visibility_s: float,
        request_id: UUID,
    ) -> list[LeasedRun]:  # fmt: skip
        """A repeated call must see what became of the first. Raises TryAgain."""
        while (earlier := self._answering.get(request_id)) is not None:
            task = self.scheduler.current
            assert task is not None
            earlier.append(task)
            await park()
        self._answering[request_id] = []
        try:
            if recalled := await self._recall(request_id):
                return recalled
            return await self._poll_until(call, queues, most, wait_us, worker_id, visibility_s, request_id)
        finally:
            for task in self._answering.pop(request_id):
                self.scheduler.wake(task)

    async def _recall(self, request_id: UUID) -> list[LeasedRun]:
        """What every shard that answers knows; the others keep leases that nobody knows of until they expire."""
        recalled: list[LeasedRun] = []
        answers = 0
        for pool in self._pools:
            try:
                async with pool.connection() as conn:
                    recalled += await recall_leases(conn, request_id)
                answers += 1
            except LedgerUnavailable:
                continue
        if not answers:
            raise LedgerUnavailable("no shard answers")
        return recalled

    async def _poll_until(
        self, call: Call, queues: Sequence[Queue], most: int, wait_us: int, worker_id: str, visibility_s: float,
        request_id: UUID,
    ) -> list[LeasedRun]:  # fmt: skip
        until_us = self.scheduler.now_us + wait_us
        while True:
            popped = self._pop(queues, most) or await self._wait(queues, most, until_us)
            if not popped:
                return []
            if leased := await self._claim(popped, worker_id, visibility_s, request_id):
                if call.hung_up:
                    await self._give_back(leased)
                return leased

    def _pop(self, queues: Sequence[Queue], most: int) -> dict[Queue, list[ReadyRun]]:
        popped: dict[Queue, list[ReadyRun]] = {}
        for queue in queues:
            if most and (runs := self.index.pop(queue, most)):
                popped[queue] = runs
                most -= len(runs)
        return popped

    async def _wait(self, queues: Sequence[Queue], most: int, until_us: int) -> dict[Queue, list[ReadyRun]]:
        left_us = until_us - self.scheduler.now_us
        if left_us <= 0:
            return {}
        task = self.scheduler.current
        assert task is not None
        waiter = Waiter(queues, most, lambda: self.scheduler.wake(task))
        self.index.wait(waiter)
        for queue in queues:
            if self._times.arrive(queue, self._seconds()):
                self._look_now.set()
        try:
            await sleep(left_us)
            runs = waiter.take()
            return {waiter.queue: runs} if runs else {}
        finally:
            self.index.leave(waiter)

    async def _claim(
        self, popped: dict[Queue, list[ReadyRun]], worker_id: str, visibility_s: float, request_id: UUID
    ) -> list[LeasedRun]:
        """Of each shard by itself. What a shard did not answer for is put back."""
        leased: list[LeasedRun] = []
        for queue, runs in popped.items():
            by_shard: dict[int, list[ReadyRun]] = defaultdict(list)
            for run in runs:
                by_shard[await self._shard_of(run.run_id)].append(run)
            for shard, own in by_shard.items():
                asks = [LeaseAsk(run.run_id, run.epoch, worker_id, visibility_s, request_id) for run in own]
                try:
                    leased += await lease_at_once(self._pools[shard], asks)
                    self.index.settle(own)
                except LedgerUnavailable:
                    self.index.put_back(queue, own)
                    await sleep(SECOND_US // 20)
                except EpochLost:
                    self._moved(own[0].run_id)
                    self.index.settle(own)
        if not leased:
            for queue in popped:
                self._times.doubt(queue, self._seconds())
                self._look_now.set()
        return leased

    async def _give_back(self, leased: Sequence[LeasedRun]) -> None:
        """Nobody hears of these leases."""
        for run in leased:
            try:
                async with api_transaction(self.of_run(run.run_id), [run.run_id]) as conn:
                    await release_runs(conn, [HeldLease(run.run_id, run.lease_token)])
            except (EpochLost, LedgerUnavailable):
                continue  # until it expires

    async def _shard_of(self, run_id: UUID) -> int:
        try:
            return await self._placements.of(partition_of_run(run_id))
        except LedgerUnavailable:
            return 0

    def _moved(self, run_id: UUID) -> None:
        self._placements.forget(partition_of_run(run_id))

    # Looks into the ledger.

    def _seconds(self) -> float:
        return self.scheduler.now_us / SECOND_US

    async def _look_on(self) -> None:
        while True:
            now = self._seconds()
            due = {}
            for queue in self._times.due(now, 0.5):
                if wanted := self.index.wanted(queue):
                    due[queue] = wanted
                else:
                    self._times.leave(queue)
            if due:
                await self._look(list(due))
            else:
                next_at = self._times.next_at()
                wait_us = 60 * SECOND_US if next_at is None else int((next_at - now) * SECOND_US)
                await self._look_now.wait(max(1_000, wait_us))

    async def _look(self, queues: list[Queue]) -> None:
        interval_s = self.scheduler.random.uniform(1.0, 2.0)
        for queue in queues:
            self._times.look(queue, self._seconds(), interval_s, trusted=self._polls == "trusting")
        found: dict[Queue, list[ReadyRun]] = defaultdict(list)
        for pool in self._pools:
            try:
                async with pool.connection() as conn:
                    for run in await find_due(conn, queues, FOUND_LIMIT):
                        found[run.tenant, run.queue].append(ReadyRun(run.run_id, run.epoch, run.lane))
            except LedgerUnavailable:
                continue
        for queue, due in found.items():
            if self.index.add(queue, due):
                self._times.again(queue, self._seconds() + interval_s)
        for queue in queues:
            self.index.dismiss_impatient(queue)

    # Outcomes.

    async def tell(self, kind: Kind[Any, Any, Any], ask: Any) -> tuple[int, Any]:
        """Status and what came of it. A partition that has moved is looked for where it is now."""
        for _ in range(MOVED_AGAIN):
            try:
                await self._shard_of(ask.run_id)
                async with api_transaction(self.of_run(ask.run_id), [ask.run_id]) as conn:
                    came = await kind.write(conn, [ask])
                if ask.run_id in came:
                    return 200, came[ask.run_id]
                return 200, await kind.explain_miss(self._ends, WORKER, ask, 0.0)
            except EpochLost:
                self._moved(ask.run_id)
                await sleep(SECOND_US // 10)
            except TryAgain:
                return 503, None
            except Problem as problem:
                return problem.status, None
        return 503, None
