"""Workers: they lease, beat, and tell how it ended; they freeze, die, lose answers and call too late.

What a worker saw is noted in its log, and no more than that: the observer reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import Struct

from api.outcome_kinds import Complete, Fail, Heartbeat, Release
from ledger.completions import Completion, Failure
from ledger.leases import Beat, HeldLease, LeasedRun
from tests.simulation.api_process import TENANT, ApiProcess, Call
from tests.simulation.scheduler import SECOND_US, Process, Scheduler, Task, sleep

MOST = 2
REPEATS = 8


class Entry(Struct):
    """leased, started, finished: of an attempt. beat: what a heartbeat got. answered: what an outcome got.

    asked: a lease call began; told: the runs that its answer, or its repetition's, has named.
    """

    kind: str
    at: datetime
    worker: str
    run_id: UUID | None = None
    token: int = 0
    status: int = 0
    what: str = ""
    due_at: datetime | None = None
    until: datetime | None = None
    request: UUID | None = None
    told: tuple[tuple[UUID, int], ...] = ()
    repeated: bool = False


class Network:
    """Between workers and APIs. lost: how many requests or answers of a hundred are lost just now."""

    def __init__(self, scheduler: Scheduler, apis: list[ApiProcess]) -> None:
        self.scheduler, self.apis = scheduler, apis
        self.lost = 0.0

    def any_api(self) -> ApiProcess:
        return self.scheduler.random.choice(self.apis)

    async def call(self, make: Callable[[ApiProcess, Call], Coroutine[Any, Any, Any]], timeout_us: int) -> Any:
        """The answer of one of the APIs; None when none came in time."""
        random, scheduler = self.scheduler.random, self.scheduler
        api, call, client = self.any_api(), Call(), scheduler.current
        assert client is not None
        await sleep(int(300 + random.random() * 2_000))
        if not api.process.alive:
            await sleep(SECOND_US // 10)
            return None
        if random.random() < self.lost / 2:
            await sleep(timeout_us)
            return None
        answer: list[Any] = []
        loses_answer = random.random() < self.lost
        serving = self._serve(lambda: make(api, call), answer, client, client.ticket, loses_answer)
        scheduler.spawn(serving, api.process)
        try:
            await sleep(timeout_us)
        finally:
            call.hung_up = not answer
        return answer[0] if answer else None

    async def _serve(
        self, work: Callable[[], Coroutine[Any, Any, Any]], answer: list[Any], client: Task, ticket: int, loses: bool
    ) -> None:
        try:
            came = await work()
        except Exception as error:
            came = error
        if loses and self.scheduler.random.random() < 0.5:
            return
        if loses:
            came = None  # the connection breaks
        await sleep(int(300 + self.scheduler.random.random() * 2_000))
        if client.ticket == ticket and not client.done:
            answer.append(came)
            self.scheduler.wake(client)


class Worker:
    """visibility_s: how long its leases last. careless: it tells outcomes though its lease should be over."""

    def __init__(
        self, name: str, network: Network, queues: list[str], log: list[Entry], visibility_s: float, careless: bool
    ) -> None:
        self.process = Process(name)
        self.name, self.visibility_s = name, visibility_s
        self._network, self._scheduler = network, network.scheduler
        self._queues = [(TENANT, queue) for queue in queues]
        self._log, self._careless = log, careless
        self._slots = MOST
        self._scheduler.spawn(self._lease_on(), self.process)

    def _note(self, kind: str, **more: Any) -> None:
        self._log.append(Entry(kind, self._scheduler.now, self.name, **more))

    async def _lease_on(self) -> None:
        random = self._scheduler.random
        while True:
            if not self._slots:
                await sleep(SECOND_US // 20)
                continue
            request_id = UUID(int=random.getrandbits(128))
            wait_us = random.randrange(1, 6) * SECOND_US
            for run in await self._lease(request_id, wait_us):
                self._slots -= 1
                self._scheduler.spawn(self._execute(run), self.process)

    async def _lease(self, request_id: UUID, wait_us: int) -> list[LeasedRun]:
        """With the same request id until there is an answer."""
        most = self._slots
        self._note("asked", request=request_id)
        for attempt in range(REPEATS):
            if attempt:
                self._note("repeats", request=request_id)
            came = await self._network.call(
                lambda api, call: api.lease(
                    call, self._queues, most, wait_us, self.name, self.visibility_s, request_id
                ),
                wait_us + SECOND_US,
            )
            if isinstance(came, list):
                told = tuple((run.run_id, run.lease_token) for run in came)
                self._note("told", request=request_id, told=told, repeated=attempt > 0)
                return came
            await sleep(SECOND_US // 10)
        return []

    async def _execute(self, run: LeasedRun) -> None:
        random = self._scheduler.random
        self._note("leased", run_id=run.run_id, token=run.lease_token, due_at=run.due_at, until=run.lease_expires_at)
        self._note("started", run_id=run.run_id, token=run.lease_token, due_at=run.due_at)
        until_us = self._scheduler.now_us + int(run.lease_s * SECOND_US)
        takes_us = int(random.random() ** 3 * 3 * SECOND_US * self.visibility_s / 2)
        ends_us = self._scheduler.now_us + takes_us
        is_cancelled = False
        while (left_us := ends_us - self._scheduler.now_us) > 0 and not is_cancelled:
            await sleep(min(left_us, int(self.visibility_s * SECOND_US / 3)))
            if self._scheduler.now_us < ends_us:
                until_us, is_cancelled = await self._beat(run, until_us)
                if self._scheduler.now_us > until_us and not self._careless:
                    break
        if self._scheduler.now_us <= until_us or self._careless:
            self._note("finished", run_id=run.run_id, token=run.lease_token)
            await self._tell_end(run)
        self._slots += 1

    async def _beat(self, run: LeasedRun, until_us: int) -> tuple[int, bool]:
        """Until when the lease lasts now, and whether the attempt is to end."""
        beat = Beat(run.run_id, run.lease_token, self.visibility_s, TENANT)
        came = await self._network.call(lambda api, _: api.tell(Heartbeat(), beat), SECOND_US // 2)
        if not isinstance(came, tuple):
            return until_us, False
        status, extended = came
        if status == 200:
            self._note("beat", run_id=run.run_id, token=run.lease_token, until=extended.lease_expires_at)
            return self._scheduler.now_us + int(extended.lease_s * SECOND_US), extended.cancel
        return until_us, status in (404, 409)

    async def _tell_end(self, run: LeasedRun) -> None:
        random = self._scheduler.random.random()
        kind: Any
        ask: Any
        if random < 0.8:
            kind, ask = Complete(), Completion(run.run_id, run.lease_token, None, TENANT)
        elif random < 0.93:
            permanent = random < 0.82
            kind, ask = Fail(), Failure(run.run_id, run.lease_token, f"broke {self.name}", permanent, None, TENANT)
        else:
            kind, ask = Release(), HeldLease(run.run_id, run.lease_token, TENANT)
        for _ in range(REPEATS):
            came = await self._network.call(lambda api, _: api.tell(kind, ask), SECOND_US)
            status = came[0] if isinstance(came, tuple) else 0
            if status:
                self._note("answered", run_id=run.run_id, token=run.lease_token, status=status, what=kind.name)
            if status in (200, 404, 409):
                return
            await sleep(SECOND_US // 5)
