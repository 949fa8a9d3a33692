"""The ready index: which runs are due, by tenant, queue and lane, as hints and polls told it. Bounded, no I/O.

It is a hint box, not the truth: an id in it may be leased already, an id that is due may be missing. What it promises
is order (first told, first out within a lane), no id twice in a lane, lanes popped 70/20/10, and fairness between
waiters. While somebody waits on a queue nothing is kept of it: what arrives goes to the waiters. When it is full it
forgets the queue that nobody has asked about for longest, so that a backlog without workers keeps no other runs out.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from schemas.commands import LANES

Queue = tuple[str, str]  # tenant, queue
HIGH, NORMAL, LOW = range(len(LANES))

# Ten pops of a queue whose lanes all have runs: 7 high, 2 normal, 1 low, spread out.
LANE_ORDER = (HIGH, HIGH, NORMAL, HIGH, HIGH, LOW, HIGH, NORMAL, HIGH, HIGH)


class ReadyRun(NamedTuple):
    """epoch: of the owner who said so; a lease under another epoch is refused by the ledger."""

    run_id: UUID
    epoch: int
    lane: int


class Waiter:
    """A lease call that found nothing. `wake` is called once: `runs` has something, or the index dismissed it.

    queues: whichever has something first, which `queue` tells. patient: waits for what may come; otherwise only for the
    look into the ledger that it caused.
    """

    __slots__ = ("patient", "queue", "queues", "runs", "wake", "wanted")

    def __init__(self, queues: Sequence[Queue], wanted: int, wake: Callable[[], None], *, patient: bool = True) -> None:
        self.queues = queues
        self.wanted = wanted
        self.wake = wake
        self.patient = patient
        self.queue = queues[0]
        self.runs: list[ReadyRun] = []

    def take(self) -> list[ReadyRun]:
        """The runs that were handed over, which are the caller's from now on."""
        runs, self.runs = self.runs, []
        return runs


class _Lanes:
    """The ids of one queue."""

    __slots__ = ("lanes", "turn")

    def __init__(self) -> None:
        self.lanes: tuple[OrderedDict[UUID, int], ...] = tuple(OrderedDict() for _ in LANES)
        self.turn = 0

    def __len__(self) -> int:
        return sum(map(len, self.lanes))

    def pop(self, count: int) -> list[ReadyRun]:
        popped: list[ReadyRun] = []
        while len(popped) < count and (filled := [lane for lane in (HIGH, NORMAL, LOW) if self.lanes[lane]]):
            if len(filled) == 1:
                popped += self._pop_lane(filled[0], count - len(popped))
            else:
                popped += self._pop_lane(self._turn_of(filled), 1)
        return popped

    def _turn_of(self, filled: list[int]) -> int:
        """Whose turn it is; an empty lane's goes to the next lower one that has runs, or else to the lowest above."""
        lane = LANE_ORDER[self.turn]
        self.turn = (self.turn + 1) % len(LANE_ORDER)
        return next((lower for lower in filled if lower >= lane), filled[-1])

    def _pop_lane(self, lane: int, count: int) -> list[ReadyRun]:
        runs = self.lanes[lane]
        return [ReadyRun(*runs.popitem(last=False), lane) for _ in range(min(count, len(runs)))]


class ReadyIndex:
    """most_a_lane, most: bounds in ids; what does not fit is dropped, told to on_drop, and found again by a poll.

    on_drop: gets a queue, and how many of its ids were dropped.
    """

    def __init__(
        self,
        *,
        most_a_lane: int = 50_000,
        most: int = 200_000,
        on_drop: Callable[[Queue, int], object] = lambda _queue, _count: None,
    ) -> None:
        self._queues: dict[Queue, _Lanes] = {}  # first those that were not popped from for longest
        self._waiters: dict[Queue, deque[Waiter]] = {}
        self._most_a_lane = most_a_lane
        self._most = most
        self._size = 0
        self._claimed: set[UUID] = set()
        self._on_drop = on_drop

    def __len__(self) -> int:
        return self._size

    def add(self, queue: Queue, due: Iterable[ReadyRun]) -> int:
        """Take in due runs, each lane's in due order, and wake waiters; returns how many were new."""
        lanes = self._queues.get(queue)
        if lanes is None:
            lanes = self._queues[queue] = _Lanes()
        carried_off = self.wanted(queue)
        added = dropped = 0
        for run in due:
            runs = lanes.lanes[run.lane]
            known = runs.get(run.run_id)
            if known is not None:
                runs[run.run_id] = max(known, run.epoch)
            elif run.run_id in self._claimed:
                continue
            elif added < carried_off or self._has_room(queue, runs):
                runs[run.run_id] = run.epoch
                self._size += 1
                added += 1
            else:
                dropped += 1
        if dropped:
            self._on_drop(queue, dropped)
        self._hand_out(queue, lanes)
        return added

    def pop(self, queue: Queue, count: int) -> list[ReadyRun]:
        """Claim up to `count` due runs; none while others wait for the queue's next.

        The index takes no news of them until they are settled or put back: a poll sees a run as due until its lease
        is committed, and would have it claimed twice.
        """
        lanes = self._queues.pop(queue, None)
        if lanes is None:
            return []
        popped = self._pop(lanes, count)
        if len(lanes):
            self._queues[queue] = lanes
        return popped

    def settle(self, runs: Iterable[ReadyRun]) -> None:
        """The ledger has answered the claims: from now on news of these runs is news."""
        self._claimed.difference_update([run.run_id for run in runs])

    def put_back(self, queue: Queue, runs: Sequence[ReadyRun]) -> None:
        """Runs that were popped but not leased: they come first again, and fit whatever the bounds say."""
        if not runs:
            return
        self.settle(runs)
        lanes = self._queues.setdefault(queue, _Lanes())
        for run in reversed(runs):
            if run.run_id not in lanes.lanes[run.lane]:
                self._size += 1
            lanes.lanes[run.lane][run.run_id] = run.epoch
            lanes.lanes[run.lane].move_to_end(run.run_id, last=False)
        self._hand_out(queue, lanes)

    def wait(self, waiter: Waiter) -> None:
        """Queue up for the next runs, after those who wait already. Pop first: only an empty queue is waited on."""
        for queue in waiter.queues:
            self._waiters.setdefault(queue, deque()).append(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting; runs that were handed over and not taken go to the next."""
        for queue in waiter.queues:
            waiters = self._waiters.get(queue)
            if waiters and waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self._waiters[queue]
        self.put_back(waiter.queue, waiter.take())

    def dismiss_impatient(self, queue: Queue) -> None:
        """The ledger was looked into: who did not want to wait longer than that goes away with nothing."""
        for waiter in [waiter for waiter in self._waiters.get(queue, ()) if not waiter.patient]:
            self.leave(waiter)
            waiter.wake()

    def wanted(self, queue: Queue) -> int:
        """How many runs those who wait on the queue would take; 0 when nobody does."""
        return sum(waiter.wanted for waiter in self._waiters.get(queue, ()))

    def _has_room(self, queue: Queue, runs: OrderedDict[UUID, int]) -> bool:
        return len(runs) < self._most_a_lane and (self._size < self._most or self._forget_another(queue))

    def _forget_another(self, queue: Queue) -> bool:
        """Nobody waits on what is kept; whoever comes to a queue of which nothing is has it looked at."""
        longest = next((other for other in self._queues if other != queue), None)
        if longest is None:
            return False
        dropped = len(self._queues.pop(longest))
        self._size -= dropped
        self._on_drop(longest, dropped)
        return True

    def _hand_out(self, queue: Queue, lanes: _Lanes) -> None:
        """Share what is there among the waiters, longest waiting first, so that none sits idle beside a glutton."""
        while (waiters := self._waiters.get(queue)) and (there := len(lanes)):
            share = -(-there // len(waiters))
            waiter = waiters[0]
            self.leave(waiter)
            waiter.queue, waiter.runs = queue, self._pop(lanes, min(share, waiter.wanted))
            waiter.wake()
        self._forget_if_empty(queue, lanes)

    def _pop(self, lanes: _Lanes, count: int) -> list[ReadyRun]:
        popped = lanes.pop(count)
        self._size -= len(popped)
        self._claimed.update([run.run_id for run in popped])
        return popped

    def _forget_if_empty(self, queue: Queue, lanes: _Lanes) -> None:
        if not len(lanes):
            self._queues.pop(queue, None)
