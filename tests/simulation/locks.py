"""The locks of one Postgres: advisory ones, shared or exclusive, and those of rows and keys, which are exclusive.

Whoever comes later waits behind those who wait, as in Postgres: a taker-over is not starved by writers. A wait that
could never end is a deadlock and fails at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from schemas.errors import LedgerUnavailable
from tests.simulation.scheduler import SECOND_US, Scheduler, Task

if TYPE_CHECKING:
    from tests.simulation.postgres import Transaction

LOCK_TIMEOUT_US = 8 * SECOND_US


class Waiter(NamedTuple):
    tx: Transaction
    exclusive: bool
    task: Task


class Locks:
    """Of transactions, until they end."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holders: dict[Hashable, dict[Transaction, bool]] = {}
        self._waiters: dict[Hashable, deque[Waiter]] = {}
        self.deadlocks = 0

    def take(self, tx: Transaction, name: Hashable, exclusive: bool) -> Generator[int, Any, None]:
        """Wait for the lock. Raises LedgerUnavailable for a deadlock or after the time-out."""
        if self._grant(tx, name, exclusive, is_first=name not in self._waiters):
            return
        task = self._scheduler.current
        assert task is not None
        waiter = Waiter(tx, exclusive, task)
        self._waiters.setdefault(name, deque()).append(waiter)
        if self._waits_for(tx, tx, set()):
            self.deadlocks += 1
            self._leave(name, waiter)
            raise LedgerUnavailable(f"deadlock at {name}")
        if (yield LOCK_TIMEOUT_US) is None:
            self._leave(name, waiter)
            raise LedgerUnavailable(f"lock timeout at {name}")
        if tx.is_over:
            raise LedgerUnavailable("the transaction was ended while it waited")

    def release(self, tx: Transaction) -> None:
        """Everything that the transaction holds, and its place where it waits."""
        for name in [name for name, waiters in self._waiters.items() if any(each.tx is tx for each in waiters)]:
            for waiter in [each for each in self._waiters[name] if each.tx is tx]:
                self._waiters[name].remove(waiter)
                self._scheduler.wake(waiter.task)  # to find that it is over
            self._pass_on(name)
        for name in list(tx.locks):
            self.give_back(tx, name)

    def give_back(self, tx: Transaction, name: Hashable) -> None:
        holders = self._holders[name]
        del holders[tx], tx.locks[name]
        if not holders:
            del self._holders[name]
        if name in self._waiters:
            self._pass_on(name)

    def is_others(self, tx: Transaction, name: Hashable) -> bool:
        """Whether somebody else holds it."""
        return name in self._holders and tx not in self._holders[name]

    def _grant(self, tx: Transaction, name: Hashable, exclusive: bool, *, is_first: bool) -> bool:
        holders = self._holders.get(name)
        if holders is None:
            if not is_first:
                return False
            holders = self._holders[name] = {}
        elif tx in holders:
            if holders[tx] or not exclusive:
                return True
            if len(holders) > 1:
                return False
        elif exclusive or not is_first or True in holders.values():
            return False
        holders[tx] = exclusive
        tx.locks[name] = None
        return True

    def _pass_on(self, name: Hashable) -> None:
        waiters = self._waiters[name]
        while waiters and self._grant(waiters[0].tx, name, waiters[0].exclusive, is_first=True):
            self._scheduler.wake(waiters.popleft().task)
        if not waiters:
            del self._waiters[name]

    def _leave(self, name: Hashable, waiter: Waiter) -> None:
        if name in self._waiters and waiter in self._waiters[name]:
            self._waiters[name].remove(waiter)
            self._pass_on(name)

    def _waits_for(self, tx: Transaction, target: Transaction, seen: set[Transaction]) -> bool:
        """Whether tx waits, maybe through others, for the target."""
        seen.add(tx)
        for name, waiters in self._waiters.items():
            before: list[Transaction] = []
            for waiter in waiters:
                if waiter.tx is tx:
                    blockers = [*self._holders.get(name, ()), *before]
                    for other in blockers:
                        if other is tx:
                            continue
                        if other is target or (other not in seen and self._waits_for(other, target, seen)):
                            return True
                before.append(waiter.tx)
        return False
