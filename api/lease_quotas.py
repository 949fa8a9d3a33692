"""Lease quotas: how many runs a second a tenant may lease, shared out in equal parts to the API processes that live.

Each process has a token bucket of its part, and leases by it without asking anybody. Now and then it reads what is set,
and while some tenant has a quota says that it lives and counts the others. One that is killed is missed after LIVE_S,
and its part is the others'. One that begins gives nothing before the others have counted it: together they give no more
than the quota.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol
from uuid import uuid4

from api.token_bucket import TokenBucket
from ledger.api_instances import Peers, announce_instance, forget_instance
from ledger.connection import Pool, session
from ledger.pulse import pulse
from ledger.tenant_limits import TenantLimits, read_limits
from schemas.errors import LedgerUnavailable

log = logging.getLogger(__name__)

PERIOD_S = 1.0
# Who waits gets what comes in such a time, if he wants as much: a call for each single run would be a waste.
TOGETHER_S = 0.05


class InLine:
    """A lease call that waits for its turn. `wake` is called once it has tokens; what it does not take goes back."""

    __slots__ = ("tokens", "wake", "wanted")

    def __init__(self, wanted: int, wake: Callable[[], None]) -> None:
        self.wanted, self.wake, self.tokens = wanted, wake, 0

    def take(self) -> int:
        """The tokens, which are the caller's from now on."""
        tokens, self.tokens = self.tokens, 0
        return tokens


class Quota(Protocol):
    """What a tenant may lease here. Whoever has tokens gives back those that became no lease."""

    def take(self, most: int) -> int:
        """Tokens for at most so many leases; none while others wait for theirs."""

    def give_back(self, count: int) -> None: ...

    def wait(self, call: InLine) -> None:
        """Line up for tokens."""

    def leave(self, call: InLine) -> None:
        """Do not wait any more; idempotent."""


class NoQuota:
    """Of a tenant without a limit."""

    def take(self, most: int) -> int:
        return most

    def give_back(self, count: int) -> None:
        pass

    def wait(self, call: InLine) -> None:
        """Nobody comes to it: `take` gives what is wanted."""

    def leave(self, call: InLine) -> None:
        pass


class SharedQuota:
    """This process's part of a tenant's quota. Belongs to one event loop; first come, first served."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bucket = TokenBucket(0.0, 1.0, clock())
        self._line: deque[InLine] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def resize(self, limits: TenantLimits, share: float) -> None:
        """limits: of the whole tenant, with a rate. share: of it that is ours, up to 1."""
        rate_per_s = limits.leases_per_s or 0.0
        self._bucket.resize(rate_per_s * share, (limits.lease_burst or rate_per_s) * share, self._clock())
        self._serve()

    def lift(self) -> None:
        """There is no quota any more: who waits goes on."""
        for call in self._line:
            call.tokens = call.wanted
            call.wake()
        self._line.clear()
        self._stop_timer()

    def take(self, most: int) -> int:
        return 0 if self._line else self._bucket.take(most, self._clock())

    def give_back(self, count: int) -> None:
        if count:
            self._bucket.give_back(count)
            self._serve()

    def wait(self, call: InLine) -> None:
        self._line.append(call)
        self._serve()

    def leave(self, call: InLine) -> None:
        with suppress(ValueError):
            self._line.remove(call)
        self.give_back(call.take())

    def _serve(self) -> None:
        self._stop_timer()
        while self._line:
            first = self._line[0]
            wait_s = self._bucket.wait_s(self._together(first.wanted), self._clock())
            if wait_s > 0:
                if wait_s < math.inf:
                    self._timer = asyncio.get_running_loop().call_later(wait_s, self._serve)
                return
            self._line.popleft()
            first.tokens = self._bucket.take(first.wanted, self._clock())
            first.wake()

    def _together(self, wanted: int) -> int:
        return max(1, min(wanted, int(self._bucket.rate_per_s * TOGETHER_S)))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LeaseQuotas:
    """The quotas of all tenants in one process. Belongs to one event loop."""

    def __init__(self, home: Pool, clock: Callable[[], float] = time.monotonic) -> None:
        self._home, self._clock, self.instance = home, clock, uuid4()
        self._no_quota = NoQuota()
        self._quotas: dict[str, SharedQuota] = {}
        self._is_announced = self._has_looked = False
        self.part = 0.0  # of each quota, which is ours; 0 while there is none
        self._to_share = asyncio.Event()

    def hear(self, limits: Mapping[str, TenantLimits]) -> None:
        """As they are set: while no tenant has a quota there is nothing to share, and nobody to count."""
        if self._quotas or any(each.leases_per_s for each in limits.values()):
            self._to_share.set()
        else:
            self._to_share.clear()

    def of(self, tenant: str) -> Quota:
        """As it is now: a call that has waited asks again. Before the first look whoever it is might have one."""
        if not self._has_looked:
            return self._quotas.setdefault(tenant, SharedQuota(self._clock))
        return self._quotas.get(tenant, self._no_quota)

    async def follow(self) -> None:
        """Go by what is set, and by how many there are, until cancelled. When home is away all stays as it is."""
        try:
            while True:
                if self._has_looked:
                    await self._to_share.wait()
                try:
                    await self.look()
                except LedgerUnavailable as error:
                    log.warning("what tenants may lease cannot be read: %s", error)
                except Exception:
                    log.exception("reading what tenants may lease failed in a way that nobody foresaw")
                await pulse(PERIOD_S)
        finally:
            await self._leave()

    async def look(self) -> None:
        """Read what is set, and count. Raises LedgerUnavailable."""
        async with session(self._home) as conn:
            limits = {tenant: each for tenant, each in (await read_limits(conn)).items() if each.leases_per_s}
            peers = await announce_instance(conn, self.instance) if limits else Peers(0, knew_us=True)
            self._is_announced = self._is_announced or bool(limits)
        self.adopt(limits, peers)

    def adopt(self, limits: Mapping[str, TenantLimits], peers: Peers) -> None:
        """limits: of tenants with a quota. peers: a process that they did not count has no part yet."""
        self._has_looked = True
        may_give = limits and (peers.knew_us or not peers.others)
        self.part = 1 / (peers.others + 1) if may_give else 0.0
        for tenant in self._quotas.keys() - limits.keys():
            self._quotas.pop(tenant).lift()
        for tenant, each in limits.items():
            self._quotas.setdefault(tenant, SharedQuota(self._clock)).resize(each, self.part)

    async def _leave(self) -> None:
        """Our part is the others' from their next look on."""
        if self._is_announced:
            try:
                async with session(self._home) as conn:
                    await forget_instance(conn, self.instance)
            except LedgerUnavailable as error:
                log.info("the other API processes miss this one in some seconds: %s", error)
