"""The fallback of the hints: while somebody waits on a queue, look into the ledger for due runs that no hint told.

One statement a shard for all queues whose turn it is. Losing every hint costs seconds of lateness, never a run. While
hints can be relied on a queue that gave nothing is looked at ever more rarely: owners hint again what nobody has
leased. Lanes of which the index has only a part are refilled in time, whether somebody waits or not.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import NamedTuple

from api.full_scopes import FullScopes
from api.look_times import SOON_S, LookTimes
from api.metrics import ApiMetrics
from api.ready_index import ALL, LOW_WATER, Queue, ReadyIndex, ReadyRun
from ledger.partitions import owners_keep_up
from ledger.runs import DueRun, find_due
from ledger.shards import Shards
from schemas.errors import LedgerUnavailable

log = logging.getLogger(__name__)

# Of each lane, twice what the waiters want: the others who come meanwhile find something too.
FEWEST_A_LANE = 200
MOST_A_LANE = 1_000
JUDGE_EVERY_S = 1.5
OWNERS_LAG_S = 8.0  # an owner speaks every 2 s


class _Look(NamedTuple):
    """wanted: how many runs whoever waits would take. lanes: those to look at."""

    wanted: int
    lanes: Sequence[int]


class ReadyPoll:
    """interval_s: how often a queue is looked at while it is waited on, drawn anew from this range each time.

    are_hints_read: whether this process hears of what owners send now. full: of which nothing could be leased.
    """

    def __init__(
        self,
        shards: Shards,
        index: ReadyIndex,
        metrics: ApiMetrics,
        full: FullScopes,
        *,
        interval_s: tuple[float, float] = (1.0, 2.0),
        are_hints_read: Callable[[], bool] = lambda: False,
    ) -> None:
        self._shards = shards
        self._index = index
        self._metrics = metrics
        self._full = full
        self._interval_s = interval_s
        self._are_hints_read = are_hints_read
        self._times = LookTimes()
        self._trusted = False  # whether hints tell of all that comes due
        self._judge_at = 0.0
        self._arrived = asyncio.Event()

    def may_look(self, queue: Queue) -> bool:
        """Whether a waiter on the queue would have it looked at now; not when that was done just before."""
        return self._times.may_look(queue, time.monotonic())

    def waiter_arrived(self, queue: Queue, *, patient: bool = True) -> None:
        """Somebody waits who did not a moment ago."""
        if self._times.arrive(queue, time.monotonic(), patient=patient):
            self._arrived.set()

    def doubt(self, queue: Queue) -> None:
        """What was told of the queue could not be leased (a hint was early, or of an old epoch), or kept. Look soon."""
        self._times.doubt(queue, time.monotonic())
        self._arrived.set()

    def refill(self, queue: Queue) -> None:
        """Lanes of the queue have more in the ledger than the index has left. Look now."""
        self._times.again(queue, time.monotonic())
        self._arrived.set()

    async def run(self) -> None:
        """Look for as long as the API runs, whatever happens. Ends by cancellation only."""
        while True:
            try:
                await self._look_on()
            except Exception:
                log.exception("looking for due runs failed in a way that nobody foresaw")
                await asyncio.sleep(self._interval_s[0])

    async def _look_on(self) -> None:
        while True:
            self._arrived.clear()
            due = self._due()
            if due:
                await self._look(due)
            if len(self._times) and self._judge_at <= time.monotonic():
                await self._judge()
            elif not due:
                await self._sleep()

    def _due(self) -> dict[Queue, _Look]:
        """The queues to look at."""
        due = {}
        for queue in self._times.due(time.monotonic(), self._interval_s[0] / 2):
            if self._index.wanted(queue) and self._full.is_full(queue):
                self._times.look(queue, time.monotonic(), self._interval_s[0], trusted=False)
                self._index.dismiss_impatient(queue)
            elif wanted := self._index.wanted(queue):
                due[queue] = _Look(wanted, ALL)
            elif low := self._index.low(queue):
                due[queue] = _Look(LOW_WATER, low)
            else:
                self._times.leave(queue)
        return due

    async def _sleep(self) -> None:
        next_at = self._times.next_at()
        if next_at is None:
            self._trusted = False  # nobody waits: whether hints come through is found out anew once somebody does
        longest_s = None if next_at is None else min(next_at, self._judge_at) - time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._arrived.wait()

    async def _judge(self) -> None:
        """Find out whether hints can be relied on: owners live and hear of what happens, and we hear of them."""
        self._judge_at = time.monotonic() + JUDGE_EVERY_S
        try:
            keep_up = await self._shards.ask_all(lambda conn: owners_keep_up(conn, OWNERS_LAG_S))
            trusted = all(keep_up) and self._are_hints_read()
        except LedgerUnavailable:
            trusted = False
        if self._trusted and not trusted:
            log.warning("hints cannot be relied on: queues are looked at every %.0f to %.0f s", *self._interval_s)
            self._times.hurry(time.monotonic())
        self._trusted = trusted

    async def _look(self, queues: dict[Queue, _Look]) -> None:
        """Refill the index. A queue that gave all that was asked for has more, and may be looked at again at once."""
        limit = min(max(FEWEST_A_LANE, 2 * max(look.wanted for look in queues.values())), MOST_A_LANE)
        began, interval_s = time.monotonic(), random.uniform(*self._interval_s)
        for queue in queues:
            self._times.look(queue, began, interval_s, trusted=self._trusted)
        self._metrics.ready_polls.inc()
        with self._index.look():
            found = await self._find({queue: look.lanes for queue, look in queues.items()}, limit)
            due = _by_queue(found or ())
            for queue, look in queues.items():
                counts = Counter(run.lane for run in due[queue])
                more = {lane: counts[lane] >= limit for lane in look.lanes}
                added = self._index.add(queue, due[queue], more=more)
                self._metrics.polled_runs.inc(added)
                if any(more.values()):
                    # With nothing new among them they are all being leased just now.
                    self._times.again(queue, time.monotonic() + (0.0 if added else SOON_S))
                elif added or found is None:
                    self._times.again(queue, began + interval_s)
                self._index.dismiss_impatient(queue)

    async def _find(self, lanes: Mapping[Queue, Sequence[int]], limit: int) -> list[DueRun] | None:
        """What every shard that answers has, in turns: none's runs come behind all of another's. None: none answers."""
        found = []
        full_keys = self._full.full_keys(lanes.keys())
        answers = await self._shards.ask_each(
            lambda conn: find_due(conn, list(lanes), limit, lanes=lanes, full_keys=full_keys)
        )
        for shard, answer in answers.items():
            if isinstance(answer, LedgerUnavailable):
                log.warning("cannot look for due runs on shard %d: %s", shard, answer)
            else:
                found.append(answer)
        return [run for turn in zip_longest(*found) for run in turn if run is not None] if found else None


def _by_queue(found: Collection[DueRun]) -> defaultdict[Queue, list[ReadyRun]]:
    queues: defaultdict[Queue, list[ReadyRun]] = defaultdict(list)
    for run in found:
        queues[run.tenant, run.queue].append(ReadyRun(run.run_id, run.epoch, run.lane))
    return queues
