"""Jobs whose pending occurrence has come, until it is decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import islice

from schemas.errors import TryAgain


class DecisionQueue:
    """Job ids, each once, first in first out. One reader. Its length includes what the reader is at."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._jobs: dict[bytes, None] = {}
        self._taken = 0
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._jobs) + self._taken

    def add(self, job_ids: Iterable[bytes]) -> None:
        for job_id in job_ids:
            self._jobs[job_id] = None
            self._arrived.set()

    async def arrival(self) -> None:
        """Until there is something to take."""
        await self._arrived.wait()

    @asynccontextmanager
    async def batch(self) -> AsyncIterator[list[bytes]]:
        """At least one job. When the ledger was away they are back in the queue afterwards."""
        await self._arrived.wait()
        job_ids = list(islice(self._jobs, self._batch))
        for job_id in job_ids:
            del self._jobs[job_id]
        if not self._jobs:
            self._arrived.clear()
        self._taken = len(job_ids)
        try:
            yield job_ids
        except TryAgain:
            self.add(job_ids)
            raise
        finally:
            self._taken = 0
