"""Celery on Redis: a worker with threads for its pool, acknowledged late, no results."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

from celery import Celery

from bench.peers.tally import Script, Started, main

CONCURRENCY = 8
QUEUE = "bench"


class CeleryOnRedis(Script):
    def __init__(self, store: str) -> None:
        super().__init__(store)
        self._app: Any = Celery(QUEUE, broker=store)
        self._app.conf.update(
            task_default_queue=QUEUE,
            task_ignore_result=True,
            task_acks_late=True,
            worker_prefetch_multiplier=64,
            broker_connection_retry_on_startup=True,
        )
        self._started: Started = lambda _: None
        self._app.task(name="noop")(self._noop)

    async def setup(self) -> None:
        """Redis needs none."""

    async def add(self, dues: list[float | None]) -> None:
        for due in dues:
            await self.add_one(due)

    async def add_one(self, due: float | None) -> None:
        eta = None if due is None else datetime.fromtimestamp(due, UTC)
        self._app.send_task("noop", (due or 0.0,), eta=eta, queue=QUEUE)

    async def left(self) -> int:
        """Nothing tells: what is acknowledged late is acknowledged when its handler has ended."""
        with self._app.connection_for_read() as connection:
            client = connection.default_channel.client
            return int(client.llen(QUEUE)) + int(client.hlen("unacked"))

    async def work(self, started: Started) -> None:
        self._started = started
        options = ["worker", "--pool", "threads", "--concurrency", str(CONCURRENCY), "--loglevel", "ERROR", "-Q", QUEUE]
        working = threading.Thread(target=self._app.worker_main, args=(options,), daemon=True)
        working.start()
        while working.is_alive():  # noqa: ASYNC110 - it is a thread
            await asyncio.sleep(0.5)

    def _noop(self, due: float) -> None:
        self._started(due)


if __name__ == "__main__":
    main(CeleryOnRedis)
