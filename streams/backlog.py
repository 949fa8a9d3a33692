"""Jobs whose missed occurrences are made up for at their queue's rate: by queue, the oldest occurrence first.

Nothing but a few words a job, however many occurrences it has missed. Who takes a turn works on a copy, which counts
only once what it led to is in the ledger; jobs may be added meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from heapq import heappush
from typing import NamedTuple

from ledger.queue_settings import QueueName


class Missed(NamedTuple):
    """A job's next occurrence to make up for. In the order of these, the oldest is first.

    at_us: its nominal time, or an earlier one. version: the job's, when that was found out. is_pending: it has its run,
    which is due as scheduled; else the run is to be made. pending_is_late: the run before it could not start any more.
    """

    at_us: int
    job_id: bytes
    version: int
    is_pending: bool
    pending_is_late: bool = False


class Backlog:
    """Each job at most once. The queues take turns, one at a time."""

    def __init__(self) -> None:
        self._missed: dict[QueueName, list[Missed]] = {}  # heaps
        self._jobs: set[bytes] = set()
        self._added: list[tuple[QueueName, Missed]] = []  # since the last turn began
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: bytes) -> bool:
        return job_id in self._jobs

    def add(self, queue: QueueName, missed: Missed) -> None:
        if missed.job_id not in self._jobs:
            self._jobs.add(missed.job_id)
            heappush(self._missed.setdefault(queue, []), missed)
            self._added.append((queue, missed))
            self._arrived.set()

    async def arrival(self) -> None:
        """Until there is a job."""
        await self._arrived.wait()

    def turn(self) -> tuple[QueueName, list[Missed]]:
        """The queue whose turn it is, and a copy of its heap. There is one."""
        self._added.clear()
        queue = next(iter(self._missed))
        self._missed[queue] = self._missed.pop(queue)
        return queue, list(self._missed[queue])

    def keep(self, queue: QueueName, left: list[Missed], gone: Iterable[bytes]) -> None:
        """What a turn has made of a queue's heap: left, and the jobs that are not among it any more."""
        self._jobs.difference_update(gone)
        for added_to, missed in self._added:
            if added_to == queue:
                heappush(left, missed)
        self._missed[queue] = left
        if not left:
            del self._missed[queue]
        if not self._missed:
            self._arrived.clear()
