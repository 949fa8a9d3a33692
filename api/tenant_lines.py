"""Lines: tenants whose workers compete for one process take turns in it, by their weights and by what their calls cost.

Each tenant has a line of its own, of lease calls: outcomes and heartbeats follow from what was leased, and to keep them
waiting would let leases expire. Who has used less than its share passes at once; those beyond it are served in turn, at
a pace that keeps the others in time (api/flood_pace.py), by weighted fair queueing: a tenant's clock tells what it has
used, runs over weight, and the one that is furthest behind is next. A tenant alone is held back by nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import NamedTuple

from api.budgets import Budget
from api.flood_pace import ROUND_S, FloodPace
from api.metrics import ApiMetrics

ACTIVE_S = 10.0  # since its last call a tenant counts as one that competes
SLACK = 100.0  # runs that a tenant may use at once beyond its share, or later
AT_ONCE = 32  # calls of all that are worked on while tenants compete: more would only wait, and in no order
MOST_IN_LINE = 512  # calls of one tenant; more are shed, or they would take the others' room in memory


class _InLine(NamedTuple):
    admitted: asyncio.Future[None]
    runs: int


class _Tenant:
    """used: where its clock stands. calls: that are worked on. seen_at: when the last one came.

    left: what it has not used of its share, of late, in runs; below 0 it has used more. told: of `shared` in it.
    """

    __slots__ = ("calls", "is_waiting", "left", "line", "seen_at", "told", "used", "weight")

    def __init__(self, used: float, weight: float, shared: float) -> None:
        self.used, self.weight, self.seen_at, self.calls = used, weight, 0.0, 0
        self.left, self.told = SLACK, shared
        self.line: deque[_InLine] = deque()
        self.is_waiting = False  # in the heap

    def share(self, shared: float, used: int = 0) -> float:
        """What is left. shared: what a tenant of weight 1 has had a share in since ever. used: of it, just now."""
        self.left = max(-SLACK, min(SLACK, self.left + (shared - self.told) * self.weight) - used)
        self.told = shared
        return self.left

    def next(self) -> _InLine | None:
        """Whose turn it is."""
        while self.line:
            mine = self.line.popleft()
            if not mine.admitted.done():  # or it was cancelled just now
                return mine
        return None


class TenantLines:
    """Belongs to one event loop."""

    def __init__(self, metrics: ApiMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self.pace = clock, FloodPace()
        self._weights: Mapping[str, float] = {}
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()  # that compete; first who was not seen for longest
        self._waiting: list[tuple[float, int, _Tenant]] = []  # a heap, of those with somebody in line
        self._numbers = count()
        self._calls = 0  # that are worked on
        self._shared = self._weight = 0.0  # see _Tenant.share; of all tenants that compete
        self._credit = 0.0  # of this round, calls
        self._next_round: asyncio.TimerHandle | None = None
        self._now = 0.0  # on the tenants' clocks: where the one stood whose turn came last
        self._waits = metrics.tenant_line_waits
        metrics.tenant_calls_in_line.set_function(lambda: sum(len(each.line) for each in self._tenants.values()))
        metrics.flood_pace_calls.set_function(lambda: self.pace.calls(self._clock()))

    def weigh(self, weights: Mapping[str, float]) -> None:
        """From now on; a tenant that is not named weighs 1."""
        self._weights = weights
        for name, tenant in self._tenants.items():
            tenant.weight = weights.get(name, 1.0)
        self._weight = sum(tenant.weight for tenant in self._tenants.values())

    def turn(self, tenant: str, budget: Budget) -> Turn:
        """For one call."""
        return Turn(self, tenant, budget)

    async def enter(self, name: str, budget: Budget, runs: int) -> tuple[_Tenant, bool]:
        """The tenant, once it is the call's turn, and whether it was within its share. Raises Problem 503."""
        tenant = self._seen(name)
        left = tenant.share(self._shared)
        if left >= 0 or self._has_room():
            self._admit(tenant, runs)
            return tenant, left >= SLACK / 2 and len(self._tenants) > 1
        if len(tenant.line) >= MOST_IN_LINE:
            raise await budget.shed()
        self._waits.inc()
        await self._stand_in_line(tenant, budget, runs)
        return tenant, False

    def leave(self, tenant: _Tenant, used: int, unused: int) -> None:
        """used, unused: of the runs that it entered for. A call that found nothing to do was none."""
        if used:
            self._shared += used / self._weight
            tenant.share(self._shared, used)
            self.pace.done(self._clock())
        elif self._next_round is not None:
            self._credit += 1
        tenant.used -= unused / tenant.weight
        tenant.calls -= 1
        self._calls -= 1
        self._serve()

    def told(self, tenant: _Tenant, took_s: float, runs: int, now: float) -> None:
        """How long a lease of a tenant within its share took. Nobody is paced for it unless others use more."""
        if self._waiting or self._calls > tenant.calls:
            self.pace.tell(took_s, runs, now, share=1 - tenant.weight / self._weight)

    def _seen(self, name: str) -> _Tenant:
        now = self._clock()
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(self._now, self._weights.get(name, 1.0), self._shared)
            self._weight += tenant.weight
        tenant.seen_at = now
        self._tenants.move_to_end(name)
        while (oldest := next(iter(self._tenants.values()))).seen_at < now - ACTIVE_S:
            if oldest.calls or oldest.line:
                break
            self._tenants.popitem(last=False)
            self._weight -= oldest.weight
        return tenant

    def _has_room(self) -> bool:
        """Whether a call may be taken on at once that is not within its tenant's share."""
        if len(self._tenants) == 1:
            return True
        return not self._waiting and self._calls < AT_ONCE and self.pace.calls(self._clock()) == math.inf

    def _admit(self, tenant: _Tenant, runs: int) -> None:
        self._now = max(self._now, tenant.used)
        tenant.used = max(tenant.used, self._now) + (runs or 1) / tenant.weight
        tenant.calls += 1
        self._calls += 1

    async def _stand_in_line(self, tenant: _Tenant, budget: Budget, runs: int) -> None:
        mine = _InLine(asyncio.get_running_loop().create_future(), runs)
        tenant.line.append(mine)
        self._wait(tenant)
        self._serve()
        try:
            with budget.aside():
                await mine.admitted
        except asyncio.CancelledError:
            if mine in tenant.line:
                tenant.line.remove(mine)
            elif not mine.admitted.cancelled():  # it was taken on just now
                self.leave(tenant, 0, runs)
            raise

    def _wait(self, tenant: _Tenant) -> None:
        if tenant.line and not tenant.is_waiting:
            tenant.is_waiting = True
            heapq.heappush(self._waiting, (tenant.used, next(self._numbers), tenant))

    def _serve(self) -> None:
        """Take on who is next, as many as there may be."""
        is_paced = len(self._tenants) > 1 and self.pace.calls(self._clock()) < math.inf
        while self._waiting and self._calls < AT_ONCE and (not is_paced or self._credit >= 1):
            self._credit -= is_paced
            _, _, first = heapq.heappop(self._waiting)
            first.is_waiting = False
            mine = first.next()
            if mine is not None:
                self._admit(first, mine.runs)
                mine.admitted.set_result(None)
                self._wait(first)
        if self._waiting and self._next_round is None:
            self._next_round = asyncio.get_running_loop().call_later(ROUND_S, self._begin_round)

    def _begin_round(self) -> None:
        self._next_round, calls = None, self.pace.calls(self._clock())
        self._credit = 0.0 if calls == math.inf else min(self._credit + calls, calls + 1)
        self._serve()


class Turn:
    """A call's turn among its tenant's and the others': taken for what is work, given up for what is waiting."""

    __slots__ = ("_began", "_budget", "_lines", "_name", "_runs", "_tenant", "is_within")

    def __init__(self, lines: TenantLines, name: str, budget: Budget) -> None:
        self._lines, self._name, self._budget = lines, name, budget
        self._tenant: _Tenant | None = None
        self.is_within, self._runs, self._began = False, 0, 0.0

    async def take(self, runs: int, since: float) -> None:
        """Return when the call may be worked on; at once when it may already.

        runs: that it may be about, at most. since: on the lines' clock, from when on it could have been worked on.
        Raises Problem 503 when too many of the tenant's are in line.
        """
        if self._tenant is None:
            self._tenant, self.is_within = await self._lines.enter(self._name, self._budget, runs)
            self._runs, self._began = runs, since

    def give_up(self) -> None:
        """Idempotent; nothing was done."""
        self.end(0)

    def end(self, runs: int, now: float | None = None) -> None:
        """It was about so many runs. now: to be told how long it took."""
        if self._tenant is None:
            return
        if now is not None and runs and self.is_within:
            self._lines.told(self._tenant, now - self._began, runs, now)
        tenant, self._tenant = self._tenant, None
        self._lines.leave(tenant, runs, self._runs - runs)
