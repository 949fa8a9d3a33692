"""The lease endpoints: a long-poll of one queue, or of several, that is answered as soon as one run is leased.

One path: ids from the ready index, leased by primary key in a group-committed transaction. A client that hangs up
leaves no lease behind, and a repeated request id gets the same runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count as counting
from typing import Any, NamedTuple
from uuid import UUID

from api.auth import require_queue
from api.endpoints import Call
from api.group_commit import GroupCommit, Pending
from api.metrics import ApiMetrics
from api.problems import Problem
from api.ready_index import Queue, ReadyIndex, ReadyRun, Waiter
from api.ready_poll import ReadyPoll
from ledger.connection import Pool, session
from ledger.fence import api_transaction
from ledger.lease_requests import recall_leases, remember_leases
from ledger.leases import HeldLease, LeaseAsk, LeasedRun, lease_runs, release_runs
from schemas import http
from schemas.commands import LANES
from schemas.errors import FencepostError, TryAgain
from schemas.ids import idempotent_id

log = logging.getLogger(__name__)

# A call that will not wait is answered by a look into the ledger, or at once when that was done just before: a queue
# without hints would seem empty for ever. This bounds how long such a look may hold it up.
LOOK_S = 1.0


@dataclass(slots=True, eq=False)
class Claim:
    """Runs that one lease call popped and wants leased. remember_as: None without a request id."""

    asks: Sequence[LeaseAsk]
    remember_as: UUID | None

    def run_ids(self) -> Sequence[UUID]:
        return [ask.run_id for ask in self.asks]


Watch = asyncio.Future[Any]  # done when the client has hung up


Popped = Mapping[Queue, Sequence[ReadyRun]]  # none is empty


class HungUp(Exception):
    """The client is gone: nobody waits for an answer."""


class Asked(NamedTuple):
    """A lease call. until: on the monotonic clock."""

    queues: Sequence[Queue]
    body: http.LeaseRequest
    until: float
    remember_as: UUID | None


class Leases:
    """Belongs to one event loop. close() answers everybody who waits with nothing, so that the process may stop."""

    def __init__(self, pool: Pool, index: ReadyIndex, poll: ReadyPoll, metrics: ApiMetrics) -> None:
        self._pool = pool
        self._index = index
        self._poll = poll
        self._metrics = metrics
        self._claims: GroupCommit[Claim, LeasedRun] = GroupCommit(
            self._lease, observe=metrics.commit_batch_runs.labels("lease").observe
        )
        self._answering: dict[UUID, asyncio.Future[None]] = {}
        self._waiting: set[Callable[[], None]] | None = set()  # None once closed
        self._turn = counting()
        self._lease_counts = [metrics.leases.labels(lane) for lane in LANES]

    async def lease(self, call: Call[http.LeaseRequest]) -> http.Leased:
        """POST /v1/queues/{queue}/lease."""
        return await self._answer(call, [call.queue()])

    async def lease_of_any(self, call: Call[http.QueuesLease]) -> http.Leased:
        """POST /v1/lease."""
        names = [*dict.fromkeys(call.body.queues)]
        for name in names:
            require_queue(call.identity, name)
        return await self._answer(call, names)

    async def _answer(self, call: Call[Any], names: Sequence[str]) -> http.Leased:
        tenant, body = call.identity.tenant, call.body
        until = time.monotonic() + body.wait_seconds
        remember_as = body.request_id and idempotent_id(tenant, f"lease {' '.join(names)} {body.request_id}")
        asked = Asked([(tenant, name) for name in names], body, until, remember_as)
        hung_up = asyncio.ensure_future(call.receive())
        try:
            runs = await self._once_at_a_time(asked, hung_up)
        except HungUp:
            raise Problem(400, "the client has hung up") from None
        finally:
            hung_up.cancel()
        self._metrics.lease_batch_runs.observe(len(runs))
        return http.Leased([_told(run) for run in runs])

    def close(self) -> None:
        waiting, self._waiting = self._waiting or set(), None
        for wake in waiting:
            wake()

    async def drain(self) -> None:
        await self._claims.drain()

    async def _once_at_a_time(self, asked: Asked, hung_up: Watch) -> Sequence[LeasedRun]:
        """A repeated call must see what became of the first, which may not know yet that its client is gone."""
        if asked.remember_as is None:
            return await self._poll_until(asked, hung_up)
        while earlier := self._answering.get(asked.remember_as):
            await asyncio.wait({earlier, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if hung_up.done():
                raise HungUp
        mine = self._answering[asked.remember_as] = asyncio.get_running_loop().create_future()
        try:
            async with session(self._pool) as conn:
                recalled = await recall_leases(conn, asked.remember_as)
            return recalled or await self._poll_until(asked, hung_up)
        finally:
            del self._answering[asked.remember_as]
            mine.set_result(None)

    async def _poll_until(self, asked: Asked, hung_up: Watch) -> Sequence[LeasedRun]:
        """Leases of at least one run, or nothing once the wait is over. Raises HungUp with no lease left behind."""
        while True:
            popped = self._pop(asked) or await self._wait(asked, hung_up)
            if not popped:
                return []
            if leased := await self._claim(asked, popped, hung_up):
                return leased

    def _pop(self, asked: Asked) -> Popped:
        """Due runs, of one queue after the other. Calls begin with another one each: none starves behind a busy one."""
        popped, room = {}, asked.body.max
        first = next(self._turn) % len(asked.queues)
        for queue in (*asked.queues[first:], *asked.queues[:first]):
            if runs := self._index.pop(queue, room):
                popped[queue] = runs
                room -= len(runs)
            if not room:
                break
        return popped

    async def _wait(self, asked: Asked, hung_up: Watch) -> Popped:
        """The next due runs of a queue; none when the time is up or the process stops. Raises HungUp."""
        loop = asyncio.get_running_loop()
        left_s = asked.until - time.monotonic()
        patient = left_s > 0
        if self._waiting is None or not (patient or any(map(self._poll.may_look, asked.queues))):
            return {}
        woken: asyncio.Future[None] = loop.create_future()

        def wake(_: object = None) -> None:
            if not woken.done():
                woken.set_result(None)

        waiter = Waiter(asked.queues, asked.body.max, wake, patient=patient)
        timer = loop.call_later(left_s if patient else LOOK_S, wake)
        hung_up.add_done_callback(wake)
        self._enter(waiter)
        try:
            await woken
            if hung_up.done():
                raise HungUp
            runs = waiter.take()
            return {waiter.queue: runs} if runs else {}
        finally:
            timer.cancel()
            hung_up.remove_done_callback(wake)
            self._leave(waiter)

    def _enter(self, waiter: Waiter) -> None:
        assert self._waiting is not None
        self._waiting.add(waiter.wake)
        self._index.wait(waiter)
        for queue in waiter.queues:
            self._poll.waiter_arrived(queue, patient=waiter.patient)
        self._metrics.long_polls_waiting.inc()

    def _leave(self, waiter: Waiter) -> None:
        if self._waiting is not None:
            self._waiting.discard(waiter.wake)
        self._index.leave(waiter)
        self._metrics.long_polls_waiting.dec()

    async def _claim(self, asked: Asked, popped: Popped, hung_up: Watch) -> Sequence[LeasedRun]:
        """Lease what was popped. When the client hangs up meanwhile, nothing of it stays leased or gets lost."""
        worker_id, visibility_s = asked.body.worker_id, asked.body.visibility_seconds
        asks = [LeaseAsk(run.run_id, run.epoch, worker_id, visibility_s) for run in _runs(popped)]
        pending = self._claims.submit(Claim(asks, asked.remember_as))
        try:
            await asyncio.wait({pending.done, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await asyncio.shield(self._undo(popped, pending))
            raise
        if hung_up.done():
            await self._undo(popped, pending)
            raise HungUp
        leased = await self._settle(popped, pending)
        self._count(_runs(popped), leased)
        if not leased:
            for queue in popped:
                self._poll.doubt(queue)
        return leased

    async def _settle(self, popped: Popped, pending: Pending[Claim, LeasedRun]) -> list[LeasedRun]:
        """The call's own leases, in the order the runs were due. Raises what the transaction raised."""
        runs = _runs(popped)
        try:
            leased = await pending.done
        except TryAgain:
            self._put_back(popped)
            raise
        except Exception:
            self._index.settle(runs)
            raise
        self._index.settle(runs)
        return [leased[run.run_id] for run in runs if run.run_id in leased]

    async def _undo(self, popped: Popped, pending: Pending[Claim, LeasedRun]) -> None:
        """As if the call had never been: what it leased is released, what it popped is in the index again."""
        if self._claims.withdraw(pending):
            self._put_back(popped)
            return
        try:
            leased = await self._settle(popped, pending)
            if leased:
                await self._give_back(leased)
        except FencepostError as error:
            log.warning("leases of a client that hung up stay until they expire: %s", error)
            return
        returned = {run.run_id for run in leased}
        self._put_back({queue: [run for run in runs if run.run_id in returned] for queue, runs in popped.items()})

    def _put_back(self, popped: Popped) -> None:
        for queue, runs in popped.items():
            self._index.put_back(queue, runs)

    async def _give_back(self, leased: Sequence[LeasedRun]) -> None:
        async with api_transaction(self._pool, [run.run_id for run in leased]) as conn:
            await release_runs(conn, [HeldLease(run.run_id, run.lease_token) for run in leased])
        self._metrics.leases_given_back.inc(len(leased))

    async def _lease(self, claims: Sequence[Claim]) -> Mapping[UUID, LeasedRun]:
        """One transaction: the leases, and for each request id what it got."""
        asks = [ask for claim in claims for ask in claim.asks]
        async with api_transaction(self._pool, [ask.run_id for ask in asks]) as conn:
            leased = {run.run_id: run for run in await lease_runs(conn, asks)}
            for claim in claims:
                own = [leased[ask.run_id] for ask in claim.asks if ask.run_id in leased]
                if claim.remember_as is not None and own:
                    await remember_leases(conn, claim.remember_as, own)
        return leased

    def _count(self, popped: Sequence[ReadyRun], leased: Sequence[LeasedRun]) -> None:
        self._metrics.wasted_claims.inc(len(popped) - len(leased))
        if not leased:
            return
        leased_at = leased[0].lease_expires_at - timedelta(seconds=leased[0].lease_s)
        for run in leased:
            self._metrics.lateness_ms.observe((leased_at - run.due_at).total_seconds() * 1000)
        run_ids = {run.run_id for run in leased}
        lanes = Counter(run.lane for run in popped if run.run_id in run_ids)
        for lane, count in lanes.items():
            self._lease_counts[lane].inc(count)


def _runs(popped: Popped) -> list[ReadyRun]:
    return [run for runs in popped.values() for run in runs]


def _told(run: LeasedRun) -> http.LeasedRun:
    return http.LeasedRun(
        run.run_id,
        run.job_id,
        run.attempt,
        run.lease_token,
        run.lease_expires_at,
        run.lease_s,
        run.scheduled_for,
        run.due_at,
        run.queue,
        http.json_raw(run.payload),
    )
