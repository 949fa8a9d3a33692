"""awa-pg: its asynchronous client, jobs by COPY, 200 workers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from awa import AsyncClient

from bench.peers.tally import Script, Started, main

QUEUE = "bench"
WORKERS = 200


@dataclass
class Noop:
    due: float


class Awa(Script):
    _opened: Any = None

    async def setup(self) -> None:
        await self._client.migrate()
        await self._client.install_queue_storage()

    async def add(self, dues: list[float | None]) -> None:
        by_due: dict[float | None, list[Noop]] = {}
        for due in dues:
            by_due.setdefault(due, []).append(Noop(due or 0.0))
        # One call takes one due time: those of a spread go singly, many at once.
        await asyncio.gather(*(self._copy(jobs, due) for due, jobs in by_due.items()))

    async def _copy(self, jobs: list[Noop], due: float | None) -> None:
        await self._client.enqueue_many_copy(jobs, queue=QUEUE, run_at=_instant(due))

    async def add_one(self, due: float | None) -> None:
        await self._client.insert(Noop(due or 0.0), queue=QUEUE, run_at=_instant(due))

    async def left(self) -> int:
        stats = await self._client.queue_stats()
        return sum(each.total_queued for each in stats if each.queue == QUEUE)

    async def work(self, started: Started) -> None:
        async def noop(job: Any) -> None:
            started(job.args.due)

        self._client.task(Noop, queue=QUEUE)(noop)
        await self._client.start([(QUEUE, WORKERS)])
        await asyncio.Event().wait()

    @property
    def _client(self) -> Any:
        if self._opened is None:
            self._opened = AsyncClient(self.store)
        return self._opened


def _instant(due: float | None) -> datetime | None:
    return None if due is None else datetime.fromtimestamp(due, UTC)


if __name__ == "__main__":
    main(Awa)
