"""pgqueuer: one connection, jobs in batches, as its own benchmark runs it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench.peers.tally import Script, Started, main


class Pgqueuer(Script):
    _queries: Any = None

    async def setup(self) -> None:
        await (await self._opened()).install()

    async def add(self, dues: list[float | None]) -> None:
        queries = await self._opened()
        payloads = [str(due or 0).encode() for due in dues]
        await queries.enqueue(["noop"] * len(dues), payloads, [0] * len(dues), [_after(due) for due in dues])

    async def add_one(self, due: float | None) -> None:
        await (await self._opened()).enqueue("noop", str(due or 0).encode(), 0, _after(due))

    async def left(self) -> int:
        row = await (await self._opened()).driver.fetch("SELECT count(*) FROM pgqueuer")
        return int(row[0]["count"])

    async def work(self, started: Started) -> None:
        worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.store)))

        async def noop(job: Any) -> None:
            started(float(job.payload))

        worker.entrypoint("noop")(noop)
        await worker.run(dequeue_timeout=timedelta(seconds=1), batch_size=500)

    async def _opened(self) -> Any:
        if self._queries is None:
            self._queries = Queries(AsyncpgDriver(await asyncpg.connect(self.store)))
        return self._queries


def _after(due: float | None) -> timedelta | None:
    """It knows no instants: how long from now."""
    return None if due is None else timedelta(seconds=due - time.time())


if __name__ == "__main__":
    main(Pgqueuer)
