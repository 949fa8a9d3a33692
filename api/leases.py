"""The lease endpoints: a long-poll of one queue, or of several, that is answered as soon as one run is leased.

One path: ids from the ready index, as many as the tenant's quota allows (api/lease_quotas.py), leased by primary key in
group-committed transactions (api/claims.py). A client that hangs up leaves no lease behind, and a repeated request id
gets the same runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from itertools import count as counting
from typing import Any, NamedTuple
from uuid import UUID

from api.auth import require_queue
from api.budgets import Budget
from api.claims import Asked, Claims, HungUp, Popped, Watch
from api.endpoints import Call
from api.lease_quotas import InLine, LeaseQuotas, Quota
from api.metrics import ApiMetrics
from api.permits import Permits
from api.problems import Problem
from api.ready_index import ReadyIndex, Waiter
from api.ready_poll import ReadyPoll
from api.tenant_lines import TenantLines, Turn
from ledger.lease_requests import recall_leases
from ledger.leases import LeasedRun
from ledger.shard_map import HOME
from ledger.shards import Shards, told
from schemas import http
from schemas.errors import LedgerUnavailable
from schemas.ids import idempotent_id

# A call that will not wait is answered by a look into the ledger, or at once when that was done just before: a queue
# without hints would seem empty for ever. This bounds how long such a look may hold it up.
LOOK_S = 1.0
# Long waits end together, up to so much early: thousands of polls, each with a wake-up of its own to end it and another
# for the client's next, cost twice as much.
END_TOGETHER_S = 0.2
LONG_WAIT_S = 4.0
RECALL_S = 1.0  # a shard that is slower keeps leases that nobody knows of until they expire


class Granted(NamedTuple):
    """What a call gets. after: on the monotonic clock, just before the ledger was asked: leases last from then on."""

    runs: Sequence[LeasedRun]
    after: float


class Leases:
    """Belongs to one event loop. close() answers everybody who waits with nothing, so that the process may stop.

    budget: of lease calls; those that wait for a run take nothing of it.
    """

    def __init__(
        self,
        shards: Shards,
        index: ReadyIndex,
        poll: ReadyPoll,
        metrics: ApiMetrics,
        budget: Budget,
        quotas: LeaseQuotas,
        permits: Permits,
        lines: TenantLines,
    ) -> None:
        self._shards = shards
        self._index = index
        self._poll = poll
        self._metrics = metrics
        self._budget = budget
        self._quotas = quotas
        self._lines = lines
        self._claims = Claims(shards, index, poll, metrics, permits)
        self._answering: dict[UUID, asyncio.Future[None]] = {}
        self._waiting: set[Callable[[], None]] | None = set()  # None once closed
        metrics.long_polls_waiting.set_function(lambda: len(self._waiting or ()))
        self._turn = counting()

    async def lease(self, call: Call[http.LeaseRequest]) -> http.Leased:
        """Lease due runs of a queue, and wait for one if there is none."""
        return await self._answer(call, [call.queue()])

    async def lease_of_any(self, call: Call[http.QueuesLease]) -> http.Leased:
        """Lease due runs of any of several queues, and wait for one if there is none."""
        names = [*dict.fromkeys(call.body.queues)]
        for name in names:
            require_queue(call.identity, name)
        return await self._answer(call, names)

    async def _answer(self, call: Call[Any], names: Sequence[str]) -> http.Leased:
        tenant, body = call.identity.tenant, call.body
        came_at = time.monotonic()
        remember_as = body.request_id and idempotent_id(tenant, f"lease {' '.join(names)} {body.request_id}")
        asked = Asked([(tenant, name) for name in names], body, came_at + body.wait_seconds, remember_as)
        hung_up = call.hang_up()
        try:
            granted = await self._once_at_a_time(asked, hung_up)
        except HungUp:
            raise Problem(400, "the client has hung up") from None
        finally:
            hung_up.cancel()
        self._metrics.lease_batch_runs.observe(len(granted.runs))
        return http.Leased([_told(run) for run in granted.runs], granted.after - came_at)

    def close(self) -> None:
        waiting, self._waiting = self._waiting or set(), None
        for wake in waiting:
            wake()

    async def drain(self) -> None:
        await self._claims.drain()

    async def _once_at_a_time(self, asked: Asked, hung_up: Watch) -> Granted:
        """A repeated call must see what became of the first, which may not know yet that its client is gone."""
        if asked.remember_as is None:
            return await self._poll_until(asked, hung_up)
        while earlier := self._answering.get(asked.remember_as):
            with self._budget.aside():
                await asyncio.wait({earlier, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if hung_up.done():
                raise HungUp
        mine = self._answering[asked.remember_as] = asyncio.get_running_loop().create_future()
        try:
            before = time.monotonic()
            recalled = await self._recall(asked.remember_as)
            return Granted(recalled, before) if recalled else await self._poll_until(asked, hung_up)
        finally:
            del self._answering[asked.remember_as]
            mine.set_result(None)

    async def _recall(self, request_id: UUID) -> list[LeasedRun]:
        """What an earlier call with this id leased and still holds, on every shard that tells within a moment."""
        within_s = RECALL_S if len(self._shards.pools) > 1 else None
        answers = await self._shards.ask_each(lambda conn: recall_leases(conn, request_id), within_s=within_s)
        recalled = [answer for answer in answers.values() if not isinstance(answer, LedgerUnavailable)]
        if not recalled:
            told(HOME, answers[HOME])
        return list(chain.from_iterable(recalled))

    async def _poll_until(self, asked: Asked, hung_up: Watch) -> Granted:
        """Leases of at least one run, or nothing once the wait is over. Raises HungUp with no lease left behind."""
        turn = self._lines.turn(asked.tenant, self._budget)
        while True:
            try:
                quota, popped = await self._pop_within_quota(asked, hung_up, turn)
                before = time.monotonic()
                if not popped:
                    return Granted([], before)
                unused = _count(popped)
                try:
                    leased = await self._claims.lease(asked, popped, hung_up, at_once=turn.is_within)
                    unused -= len(leased)
                finally:
                    quota.give_back(unused)
                if leased:
                    turn.end(len(leased), time.monotonic())
                    return Granted(leased, before)
            finally:
                turn.give_up()

    async def _pop_within_quota(self, asked: Asked, hung_up: Watch, turn: Turn) -> tuple[Quota, Popped]:
        """Due runs in the call's turn, a token of the tenant's for each; none when the time is up. Raises HungUp.

        Tokens are not kept while runs are waited for, or those who wait on an idle queue would have all of them.
        """
        while True:
            turn.give_up()
            quota = self._quotas.of(asked.tenant)
            tokens = quota.take(asked.body.max) or await self._stand_in_line(quota, asked, hung_up)
            if not tokens:
                return quota, {}
            popped: Popped = {}
            try:
                await turn.take(tokens, time.monotonic())
                if hung_up.done():
                    raise HungUp
                popped = self._pop(asked, tokens)
            finally:
                quota.give_back(tokens - _count(popped))
            if popped:
                return quota, popped
            turn.give_up()
            handed = await self._wait(asked, hung_up, turn)
            quota = self._quotas.of(asked.tenant)
            popped = self._keep(handed, quota.take(_count(handed)))
            if popped or not handed:
                return quota, popped

    async def _stand_in_line(self, quota: Quota, asked: Asked, hung_up: Watch) -> int:
        """Tokens, once it is the call's turn; 0 when the time is up. Raises HungUp."""
        if self._waiting is None or asked.until <= time.monotonic():
            return 0
        self._metrics.lease_quota_waits.inc()
        with self._alarm(asked.until - time.monotonic(), hung_up) as (woken, wake):
            call = InLine(asked.body.max, wake)
            quota.wait(call)
            try:
                with self._budget.aside():
                    await woken
                if hung_up.done():
                    raise HungUp
                return call.take()
            finally:
                quota.leave(call)

    def _keep(self, handed: Popped, tokens: int) -> Popped:
        """What there are tokens for; the rest goes back, and comes first again."""
        kept = {}
        for queue, runs in handed.items():
            self._index.put_back(queue, runs[tokens:])
            if tokens:
                kept[queue] = runs[:tokens]
            tokens -= len(runs[:tokens])
        return kept

    def _pop(self, asked: Asked, room: int) -> Popped:
        """Due runs, of one queue after the other. Calls begin with another one each: none starves behind a busy one."""
        popped = {}
        first = next(self._turn) % len(asked.queues)
        for queue in (*asked.queues[first:], *asked.queues[:first]):
            if runs := self._index.pop(queue, room):
                popped[queue] = runs
                room -= len(runs)
            if not room:
                break
        return popped

    async def _wait(self, asked: Asked, hung_up: Watch, turn: Turn) -> Popped:
        """The next due runs of a queue, in turn; none when the time is up or the process stops. Raises HungUp."""
        left_s = asked.until - time.monotonic()
        patient = left_s > 0
        if self._waiting is None or not (patient or any(map(self._poll.may_look, asked.queues))):
            return {}
        with self._alarm(left_s if patient else LOOK_S, hung_up) as (woken, wake):
            waiter = Waiter(asked.queues, asked.body.max, wake, patient=patient)
            self._index.wait(waiter)
            for queue in waiter.queues:
                self._poll.waiter_arrived(queue, patient=patient)
            try:
                with self._budget.aside():
                    woken_at = await woken
                if waiter.runs:
                    await turn.take(len(waiter.runs), woken_at)
                if hung_up.done():
                    raise HungUp
                runs = waiter.take()
                return {waiter.queue: runs} if runs else {}
            finally:
                self._index.leave(waiter)

    @contextmanager
    def _alarm(self, within_s: float, hung_up: Watch) -> Iterator[tuple[asyncio.Future[float], Callable[[], None]]]:
        """Something to wait for, which tells when it was over, and what ends it.

        So do the time, the client's leaving, and the end of the process.
        """
        loop, waiting = asyncio.get_running_loop(), self._waiting
        assert waiting is not None
        woken: asyncio.Future[float] = loop.create_future()

        def wake(_: object = None) -> None:
            if not woken.done():
                woken.set_result(time.monotonic())

        timer = loop.call_at(_end(loop.time() + within_s, within_s), wake)
        hung_up.add_done_callback(wake)
        waiting.add(wake)
        try:
            yield woken, wake
        finally:
            timer.cancel()
            hung_up.remove_done_callback(wake)
            waiting.discard(wake)


def _end(until: float, left_s: float) -> float:
    """When to end a wait that may last until then, by the loop's clock."""
    return until - until % END_TOGETHER_S if left_s >= LONG_WAIT_S else until


def _count(popped: Popped) -> int:
    return sum(map(len, popped.values()))


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
