"""The ready index: which runs are due, by tenant, queue and lane, as hints and polls told it. Bounded, no I/O.

It is a hint box, not the truth: an id in it may be leased already, an id that is due may be missing. What it promises
is order (first told, first out within a lane), no id twice in a lane, lanes popped 70/20/10, and fairness between
waiters. While somebody waits on a queue nothing is kept of it: what arrives goes to the waiters. When it is full it
forgets the queue that nobody has asked about for longest, so that a backlog without workers keeps no other runs out.

Of a backlog it has only a part, and lanes are not emptied alike: the one that is popped most would soon pass its share
down although the ledger is full of it. So a lane that is known to have more there is refilled before it is empty, and
passes nothing down until a look has found that it is.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

from schemas.commands import LANES

Queue = tuple[str, str]  # tenant, queue
ALL = HIGH, NORMAL, LOW = tuple(range(len(LANES)))

# Ten pops of a queue whose lanes all have runs: 7 high, 2 normal, 1 low, spread out.
LANE_ORDER = (HIGH, HIGH, NORMAL, HIGH, HIGH, LOW, HIGH, NORMAL, HIGH, HIGH)
# A lane with more in the ledger is refilled from here on: at 50,000 leases/s the rest is enough for 10 ms.
LOW_WATER = 500


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
    """The ids of one queue. more: the lanes of which the ledger has runs that are not here."""

    __slots__ = ("lanes", "more", "turn")

    def __init__(self) -> None:
        self.lanes: tuple[OrderedDict[UUID, int], ...] = tuple(OrderedDict() for _ in LANES)
        self.more: set[int] = set()
        self.turn = 0

    def __len__(self) -> int:
        return sum(map(len, self.lanes))

    def low(self) -> list[int]:
        """The lanes to refill."""
        return [lane for lane in self.more if len(self.lanes[lane]) < LOW_WATER]

    def pop(self, count: int) -> list[ReadyRun]:
        """Fewer, maybe none, when it is the turn of a lane that has runs in the ledger alone."""
        popped: list[ReadyRun] = []
        while len(popped) < count and (filled := [lane for lane in ALL if self.lanes[lane] or lane in self.more]):
            lane = filled[0] if len(filled) == 1 else self._turn_of(filled)
            if not self.lanes[lane]:
                break
            if len(filled) == 1:
                popped += self._pop_lane(lane, count - len(popped))
            else:
                popped += self._pop_lane(lane, 1)
                self.turn = (self.turn + 1) % len(LANE_ORDER)
        return popped

    def _turn_of(self, filled: list[int]) -> int:
        """Whose turn it is; an empty lane's goes to the next lower one that has runs, or else to the lowest above."""
        lane = LANE_ORDER[self.turn]
        return next((lower for lower in filled if lower >= lane), filled[-1])

    def _pop_lane(self, lane: int, count: int) -> list[ReadyRun]:
        runs = self.lanes[lane]
        return [ReadyRun(*runs.popitem(last=False), lane) for _ in range(min(count, len(runs)))]


class ReadyIndex:
    """most_a_lane, most: bounds in ids; what does not fit is dropped, told to on_drop, and found again by a poll.

    on_drop: gets a queue, and how many of its ids were dropped. on_low: gets one with lanes to refill, see `low`.
    """

    def __init__(
        self,
        *,
        most_a_lane: int = 50_000,
        most: int = 200_000,
        on_drop: Callable[[Queue, int], object] = lambda _queue, _count: None,
        on_low: Callable[[Queue], object] = lambda _queue: None,
    ) -> None:
        self._queues: dict[Queue, _Lanes] = {}  # first those that were not popped from for longest
        self._waiters: dict[Queue, deque[Waiter]] = {}
        self._most_a_lane = most_a_lane
        self._most = most
        self._size = 0
        self._claimed: set[UUID] = set()
        self._settled: set[UUID] | None = None  # since the look that is under way began
        self._on_drop, self._on_low = on_drop, on_low

    def __len__(self) -> int:
        return self._size

    def add(self, queue: Queue, due: Iterable[ReadyRun], *, more: Mapping[int, bool] | None = None) -> int:
        """Take in due runs, each lane's in due order, and wake waiters; returns how many were new.

        more: of the lanes that a look was for, whether it left some. Not believed of a lane that has none here after
        it: those that there are are being leased just now.
        """
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
            elif run.run_id in self._claimed or (more and self._settled and run.run_id in self._settled):
                continue
            elif added < carried_off or self._has_room(queue, runs):
                runs[run.run_id] = run.epoch
                self._size += 1
                added += 1
            else:
                lanes.more.add(run.lane)
                dropped += 1
        for lane, is_left in (more or {}).items():
            lanes.more.discard(lane)
            if is_left and lanes.lanes[lane]:
                lanes.more.add(lane)
        if dropped:
            self._on_drop(queue, dropped)
        self._hand_out(queue, lanes)
        return added

    def pop(self, queue: Queue, count: int) -> list[ReadyRun]:
        """Claim up to `count` due runs; none while others wait for the queue's next, or for a look at its lanes.

        The index takes no news of them until they are settled or put back: a poll sees a run as due until its lease
        is committed, and would have it claimed twice.
        """
        lanes = self._queues.pop(queue, None)
        if lanes is None:
            return []
        popped = self._pop(lanes, count)
        if len(lanes):
            self._queues[queue] = lanes
            if lanes.more and lanes.low():
                self._on_low(queue)
        return popped

    def settle(self, runs: Iterable[ReadyRun]) -> None:
        """The ledger has answered the claims: from now on news of these runs is news."""
        run_ids = [run.run_id for run in runs]
        self._claimed.difference_update(run_ids)
        if self._settled is not None:
            self._settled.update(run_ids)

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
        """Queue up for the next runs, after those who wait already. Pop first: only what gives none is waited on."""
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

    @contextmanager
    def look(self) -> Iterator[None]:
        """Inside, the ledger is looked into: what is settled meanwhile may have been due when it was read, and is no
        news."""
        self._settled = set()
        try:
            yield
        finally:
            self._settled = None

    def low(self, queue: Queue) -> list[int]:
        """The lanes of which the ledger has more than the little that is here."""
        lanes = self._queues.get(queue)
        return lanes.low() if lanes else []

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
            runs = self._pop(lanes, min(share, waiter.wanted))
            if not runs:
                break
            self.leave(waiter)
            waiter.queue, waiter.runs = queue, runs
            waiter.wake()
        if lanes.more and lanes.low():
            self._on_low(queue)
        self._forget_if_empty(queue, lanes)

    def _pop(self, lanes: _Lanes, count: int) -> list[ReadyRun]:
        popped = lanes.pop(count)
        self._size -= len(popped)
        self._claimed.update([run.run_id for run in popped])
        return popped

    def _forget_if_empty(self, queue: Queue, lanes: _Lanes) -> None:
        if not len(lanes):
            self._queues.pop(queue, None)
