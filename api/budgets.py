"""What the API takes on, by class of call: what is more is shed, 503 with Retry-After, reads first and leases last.

One number tells how busy the process is: the calls in hand, of all classes. It grows whatever is short, the loop's time
or the ledger's sessions. Each class is shed from another number on, so that a class leaves room for those after it,
whatever comes of it. A call that only waits for others is not in hand meanwhile: a long-poll for a run that is due, a
command for Kafka and its owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from api.metrics import ApiMetrics
from api.problems import Problem
from ledger.session_shares import SessionShare

RETRY_AFTER_S = 1.0
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

    @contextmanager
    def place(self) -> Iterator[None]:
        """For a call, as long as it is in hand. Raises Problem 503 when there is none."""
        if self._budgets.in_hand >= self._shed_at or self.waiting >= self._may_wait:
            self._shed.inc()
            raise Problem(503, f"too much is under way to take on more {self._name}", retry_after_s=RETRY_AFTER_S)
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
        self.shed_at, self.in_hand = shed_at, 0
        self.reads = Budget("reads", self, metrics, sessions=SESSIONS_OF_READS)
        self.creates = Budget("creates", self, metrics, sessions=SESSIONS_OF_CREATES, may_wait=COMMANDS_WAITING)
        self.outcomes = Budget("outcomes", self, metrics)
        self.leases = Budget("leases", self, metrics)
        metrics.requests_in_hand.set_function(lambda: self.in_hand)
        metrics.commands_waiting.set_function(lambda: self.creates.waiting)
