"""The fallback of the hints: while somebody waits on a queue, look into the ledger for due runs that no hint told.

One statement for all queues that are waited on. Losing every hint costs seconds of lateness, never a run.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import Collection
from contextlib import suppress

from api.metrics import ApiMetrics
from api.ready_index import Queue, ReadyIndex, ReadyRun
from ledger.connection import Pool, session
from ledger.runs import DueRun, find_due
from schemas.errors import LedgerUnavailable

log = logging.getLogger(__name__)

# Of each lane, twice what the waiters want: the others who come meanwhile find something too.
FEWEST_A_LANE = 200
MOST_A_LANE = 1_000
DOUBT_S = 0.05


class ReadyPoll:
    """interval_s: how often a queue is looked at while it is waited on, drawn anew from this range each time."""

    def __init__(
        self, pool: Pool, index: ReadyIndex, metrics: ApiMetrics, *, interval_s: tuple[float, float] = (1.0, 2.0)
    ) -> None:
        self._pool = pool
        self._index = index
        self._metrics = metrics
        self._interval_s = interval_s
        self._look_at: dict[Queue, float] = {}  # when a queue may be looked at again; absent: at once
        self._arrived = asyncio.Event()

    def may_look(self, queue: Queue) -> bool:
        """Whether a waiter on the queue would have it looked at now; not when that was done just before."""
        return self._look_at.get(queue, 0.0) <= time.monotonic()

    def waiter_arrived(self) -> None:
        """Somebody waits who did not a moment ago."""
        self._arrived.set()

    def doubt(self, queue: Queue) -> None:
        """What the index told of the queue could not be leased: a hint was early, or of an old epoch. Look soon."""
        soon = time.monotonic() + DOUBT_S
        self._look_at[queue] = min(self._look_at.get(queue, soon), soon)
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
            now, wanted = time.monotonic(), self._index.wanted()
            due = [queue for queue in wanted if self.may_look(queue)]
            if due:
                await self._look(due, max(wanted[queue] for queue in due))
                continue
            self._look_at = {queue: at for queue, at in self._look_at.items() if at > now}
            await self._sleep(min((self._look_at[queue] - now for queue in wanted), default=None))

    async def _sleep(self, longest_s: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), longest_s)

    async def _look(self, queues: Collection[Queue], wanted: int) -> None:
        """Refill the index. A queue that gave all that was asked for has more, and may be looked at again at once."""
        limit = min(max(FEWEST_A_LANE, 2 * wanted), MOST_A_LANE)
        again_at = time.monotonic() + random.uniform(*self._interval_s)
        self._look_at.update((queue, again_at) for queue in queues)
        self._metrics.ready_polls.inc()
        try:
            async with session(self._pool) as conn:
                found = await find_due(conn, list(queues), limit)
        except LedgerUnavailable as error:
            log.warning("cannot look for due runs: %s", error)
            found = []
        for queue, due in _by_queue(found).items():
            added = self._index.add(queue, due)
            self._metrics.polled_runs.inc(added)
            if max(Counter(run.lane for run in due).values()) >= limit:
                # With nothing new among them they are all being leased just now.
                self._look_at[queue] = time.monotonic() + (0.0 if added else DOUBT_S)
        for queue in queues:
            self._index.dismiss_impatient(queue)


def _by_queue(found: Collection[DueRun]) -> dict[Queue, list[ReadyRun]]:
    queues: dict[Queue, list[ReadyRun]] = defaultdict(list)
    for run in found:
        queues[run.tenant, run.queue].append(ReadyRun(run.run_id, run.epoch, run.lane))
    return queues
