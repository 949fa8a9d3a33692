"""A timing wheel: the near future, in slots of 10 ms, popped in due order.

Adding and removing cost the same however many timers there are; a slot is sorted only when its time comes. Keys are
unique: adding one again moves it, removing one is lazy. Instants are microseconds since 1970 by the ledger's clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SLOT_US = 10_000


class TimingWheel(Generic[K]):
    """Timers by key. Not thread-safe."""

    def __init__(self) -> None:
        self._due_us: dict[K, int] = {}
        self._slots: dict[int, list[tuple[int, K]]] = {}
        self._order: list[int] = []  # heap of the numbers of the slots that exist
        self._current: list[tuple[int, K]] = []  # heap: slots whose time has come, not yet all popped

    def __len__(self) -> int:
        return len(self._due_us)

    def __contains__(self, key: K) -> bool:
        return key in self._due_us

    def add(self, key: K, due_us: int) -> None:
        """Fire `key` at due_us, instead of whenever it was to fire before."""
        if self._due_us.get(key) == due_us:
            return
        self._due_us[key] = due_us
        number = due_us // SLOT_US
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = []
            heapq.heappush(self._order, number)
        slot.append((due_us, key))

    def remove(self, key: K) -> None:
        """Do not fire `key`; a no-op when it is not here."""
        self._due_us.pop(key, None)

    def pop_due(self, now_us: int, limit: int = 1_000_000) -> list[K]:
        """Take out at most `limit` keys that are due at now_us, earliest first; never one before its time."""
        return [key for _, key in self.pop_timers(now_us, limit)]

    def pop_timers(self, now_us: int, limit: int = 1_000_000) -> list[tuple[int, K]]:
        """As pop_due, with the instant of each."""
        self._open_slots(now_us)
        fired: list[tuple[int, K]] = []
        while self._current and self._current[0][0] <= now_us and len(fired) < limit:
            due_us, key = heapq.heappop(self._current)
            if self._due_us.get(key) == due_us:
                del self._due_us[key]
                fired.append((due_us, key))
        return fired

    def next_due_us(self) -> int | None:
        """When to look again: not later than the next timer, at most a slot earlier. None when there is none."""
        instants = [self._order[0] * SLOT_US] if self._order else []
        if self._current:
            instants.append(self._current[0][0])
        return min(instants, default=None)

    def _open_slots(self, now_us: int) -> None:
        while self._order and self._order[0] * SLOT_US <= now_us:
            slot = self._slots.pop(heapq.heappop(self._order))
            if self._current:
                for timer in slot:
                    heapq.heappush(self._current, timer)
            else:
                heapq.heapify(slot)
                self._current = slot
