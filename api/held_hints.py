"""What owners told ahead of time, kept back until it may be given on. Pure: instants are microseconds, handed in."""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, TypeVar

H = TypeVar("H")

# An owner tells of a run some milliseconds ahead. What would have to wait longer than this is of another clock than we
# think, and is given at once: the ledger judges.
LONGEST_US = 1_000_000


class HeldHints(Generic[H]):
    """A heap. Not thread-safe."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, H]] = []
        self._numbers = count()  # what may be given at the same instant comes in the order in which it was told

    def __len__(self) -> int:
        return len(self._heap)

    def hold(self, hint: H, until_us: int, now_us: int) -> None:
        at_us = until_us if until_us <= now_us + LONGEST_US else now_us
        heapq.heappush(self._heap, (at_us, next(self._numbers), hint))

    def pop(self, now_us: int) -> list[H]:
        """What may be given by now, the earliest first."""
        popped: list[H] = []
        while self._heap and self._heap[0][0] <= now_us:
            popped.append(heapq.heappop(self._heap)[2])
        return popped

    def wait_us(self, now_us: int) -> int | None:
        """How long until there is something to pop; None when nothing is held."""
        return max(0, self._heap[0][0] - now_us) if self._heap else None
