"""The worker for programs without an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from fencepost.client import FencepostClient
from fencepost.sync_client import LoopThread
from fencepost.worker import Handler, Worker
from fencepost.worker_stats import WorkerStats


def run_worker(base_url: str, token: str, queue: str | Sequence[str], handler: Handler, **options: Any) -> WorkerStats:
    """Work until SIGTERM or SIGINT, then drain; the options are those of Worker. Returns what was counted."""
    return asyncio.run(_work(base_url, token, queue, handler, options))


async def _work(
    base_url: str, token: str, queue: str | Sequence[str], handler: Handler, options: dict[str, Any]
) -> WorkerStats:
    async with FencepostClient(base_url, token) as client:
        worker = Worker(client, queue, handler, **options)
        await worker.run()
        return worker.stats


class SyncWorker:
    """A worker in a background thread: `with SyncWorker(url, token, queue, handler): …` drains on leaving.

    The options are those of Worker; transport: httpx's, for tests. Installs no signal handlers.
    """

    def __init__(
        self,
        base_url: str,
        token: str,
        queue: str | Sequence[str],
        handler: Handler,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Any,
    ) -> None:
        client = FencepostClient(base_url, token, transport=transport)
        self._thread = LoopThread()
        self._worker = self._thread.run(_made(client, queue, handler, options))
        self._running: concurrent.futures.Future[None] | None = None

    @property
    def stats(self) -> WorkerStats:
        return self._worker.stats

    def start(self) -> None:
        """Begin to poll."""
        self._running = self._thread.submit(self._worker.run())

    def drain(self, deadline_s: float | None = None) -> None:
        """Stop working, see Worker.drain. Raises what ended the worker before, if something did."""
        if self._running is not None:
            self._thread.run(self._worker.drain(deadline_s))
            running, self._running = self._running, None
            running.result()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.drain()
        finally:
            self._thread.run(self._worker.client.close())
            self._thread.close()


async def _made(
    client: FencepostClient, queue: str | Sequence[str], handler: Handler, options: dict[str, Any]
) -> Worker:
    return Worker(client, queue, handler, **options)
