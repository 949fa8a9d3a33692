"""When the ready poll looks at which queue: at once when somebody comes to wait, then ever more rarely while hints do.

Pure: instants are seconds on a clock that only grows. What comes and goes costs the same however many queues there are.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from api.ready_index import Queue

# Intervals between two looks at a queue of which hints tell all. They are for what nobody foresaw: a hint that was lost
# its owner sends again after 5 s, and once it is known that hints get lost every queue is looked at.
RAREST = 32
SOON_S = 0.05
# An owner hints a run of each queue where runs wait once a minute, as long as the one waits that speaks for the others:
# a queue that is paused stays in doubt meanwhile, so that another process's resumption is seen as soon as ever.
DOUBTED_S = 75.0


@dataclass(slots=True)
class _Turn:
    """at: the next look. may_look_at: whoever does not wait may have one from then on. rarity: intervals until `at`."""

    at: float = math.inf
    may_look_at: float = 0.0
    rarity: int = 0
    doubted_until: float = 0.0


class LookTimes:
    """Of queues that are waited on, and of those that were when their next look was set."""

    def __init__(self) -> None:
        self._turns: dict[Queue, _Turn] = {}
        self._order: list[tuple[float, Queue]] = []  # heap; an entry whose instant is not its queue's is dead

    def __len__(self) -> int:
        return len(self._turns)

    def may_look(self, queue: Queue, now: float) -> bool:
        """Whether who does not want to wait may have the queue looked at; not when that was done just before."""
        turn = self._turns.get(queue)
        return turn is None or turn.may_look_at <= now

    def arrive(self, queue: Queue, now: float, *, patient: bool = True) -> bool:
        """Somebody waits on the queue; whether it is to be looked at for that."""
        turn = self._turns.get(queue)
        if turn is None:
            turn = self._turns[queue] = _Turn()
        elif patient or turn.may_look_at > now:
            return False
        self._set(queue, turn, now)
        return True

    def doubt(self, queue: Queue, now: float) -> None:
        """What was told of the queue was not so, or was not kept: look soon, and often for a while."""
        turn = self._turns.setdefault(queue, _Turn())
        turn.rarity, turn.doubted_until = 0, now + DOUBTED_S
        self._set(queue, turn, min(turn.at, now + SOON_S))

    def due(self, now: float, along_s: float) -> list[Queue]:
        """The queues to look at now, with those whose turn comes within along_s. Each is looked at then, or left."""
        if not self._order or self._order[0][0] > now:
            return []
        due: dict[Queue, None] = {}
        while self._order and self._order[0][0] <= now + along_s:
            at, queue = heapq.heappop(self._order)
            if (turn := self._turns.get(queue)) is not None and turn.at == at:
                due[queue] = None
        return [*due]

    def look(self, queue: Queue, now: float, interval_s: float, *, trusted: bool) -> None:
        """The queue is being looked at. trusted: hints tell of whatever comes due from now on."""
        turn = self._turns[queue]
        rarer = trusted and turn.doubted_until <= now
        turn.rarity = min(max(2 * turn.rarity, 1), RAREST) if rarer else 1
        turn.may_look_at = now + interval_s
        self._set(queue, turn, now + interval_s * turn.rarity)

    def again(self, queue: Queue, at: float) -> None:
        """Hints had not told what was there, or there is more: look at the queue then, or before."""
        turn = self._turns.setdefault(queue, _Turn())
        turn.rarity, turn.may_look_at = 0, min(turn.may_look_at, at)
        self._set(queue, turn, min(turn.at, at))

    def leave(self, queue: Queue) -> None:
        """Nobody waits on the queue any more: who comes next has it looked at at once."""
        self._turns.pop(queue, None)

    def hurry(self, now: float) -> None:
        """Hints cannot be relied on any more: look at all of them."""
        for queue, turn in self._turns.items():
            turn.rarity = 0
            self._set(queue, turn, min(turn.at, now))

    def next_at(self) -> float | None:
        """When `due` has something; a little before that at times. None while nobody waits."""
        return self._order[0][0] if self._turns else None

    def _set(self, queue: Queue, turn: _Turn, at: float) -> None:
        if turn.at != at:
            turn.at = at
            heapq.heappush(self._order, (at, queue))
