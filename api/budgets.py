"""What the API takes on, by class of call: what is more is shed, 503 with Retry-After, reads first and leases last.

One number tells how busy the process is: the calls in hand, of all classes. It grows whatever is short, the loop's time
or the ledger's sessions. Each class is shed from another number on, so that a class leaves room for those after it,
whatever comes of it. A call that only waits for others is not in hand meanwhile: a long-poll for a run that is due, a
command for Kafka and its owner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from api.metrics import ApiMetrics
from api.problems import Problem
from ledger.session_shares import SessionShare

RETRY_AFTER_S = 1.0
# To refuse a call is work, too, and who heeds no Retry-After comes again at once: so many are refused without a pause,
# and the others in time for a client that would have waited.
REFUSED_PER_S = 500
REFUSED_AT_ONCE = 100
# Of the twelve with each shard, which group commits alone can use; leases and outcomes take what there is.
SESSIONS_OF_READS = 3
SESSIONS_OF_CREATES = 3
# Their bodies are in memory meanwhile, 64 KiB each at the most.
COMMANDS_WAITING = 2_000


@dataclass(frozen=True, slots=True)
class ShedAt:
    """From how many calls in hand on one more of a class is shed. Raises ValueError for another order."""

    reads: int = 64
    creates: int = 256
    outcomes: int = 512
    leases: int = 1_024

    def __post_init__(self) -> None:
        if not 0 < self.reads <= self.creates <= self.outcomes <= self.leases:
            raise ValueError("reads are shed first, then creates, then outcomes, leases last: none may be shed before")


class RefusalPace:
    """How long who is shed waits to be told. Looks at no clock of its own."""

    def __init__(self) -> None:
        self._busy_until_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """For one more refusal: nothing, unless there were many just before."""
        told_s = max(self._busy_until_s, now_s) + 1 / REFUSED_PER_S
        wait_s = min(max(0.0, told_s - now_s - REFUSED_AT_ONCE / REFUSED_PER_S), RETRY_AFTER_S)
        self._busy_until_s = min(told_s, now_s + REFUSED_AT_ONCE / REFUSED_PER_S + RETRY_AFTER_S)
        return wait_s


class Budget:
    """Of one class of calls. may_wait: how many of it may wait for others. waiting: how many do."""

    def __init__(
        self,
        name: str,
        budgets: Budgets,
        metrics: ApiMetrics,
        *,
        sessions: int | None = None,
        may_wait: float = float("inf"),
    ) -> None:
        self._name, self._budgets = name, budgets
        self._shed_at: int = getattr(budgets.shed_at, name)
        self._share = None if sessions is None else SessionShare(sessions)
        self._may_wait, self.waiting = may_wait, 0
        self._shed = metrics.requests_shed.labels(name)

    def is_full(self) -> bool:
        return self._budgets.in_hand >= self._shed_at or self.waiting >= self._may_wait

    async def shed(self) -> Problem:
        """The answer to a call for which there is no place."""
        self._shed.inc()
        if wait_s := self._budgets.pace.wait_s(time.monotonic()):
            await asyncio.sleep(wait_s)
        return Problem(503, f"too much is under way to take on more {self._name}", retry_after_s=RETRY_AFTER_S)

    @contextmanager
    def place(self) -> Iterator[None]:
        """For a call, as long as it is in hand."""
        self._budgets.in_hand += 1
        try:
            with self._share.used() if self._share else nullcontext():
                yield
        finally:
            self._budgets.in_hand -= 1

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, a call that has a place only waits for others. Afterwards it has it back however full it is: what it
        has waited for is there."""
        self._budgets.in_hand -= 1
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
            self._budgets.in_hand += 1


class Budgets:
    """Belongs to one event loop. in_hand: calls that have a place and do not wait for others."""

    def __init__(self, shed_at: ShedAt, metrics: ApiMetrics) -> None:
        self.shed_at, self.in_hand, self.pace = shed_at, 0, RefusalPace()
        self.reads = Budget("reads", self, metrics, sessions=SESSIONS_OF_READS)
        self.creates = Budget("creates", self, metrics, sessions=SESSIONS_OF_CREATES, may_wait=COMMANDS_WAITING)
        self.outcomes = Budget("outcomes", self, metrics)
        self.leases = Budget("leases", self, metrics)
        metrics.requests_in_hand.set_function(lambda: self.in_hand)
        metrics.commands_waiting.set_function(lambda: self.creates.waiting)
