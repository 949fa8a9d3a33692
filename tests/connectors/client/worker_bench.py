"""What the worker's tests share: a worker on an in-memory server, ended with the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from fencepost import FencepostClient, Worker
from fencepost.worker import Handler
from tests.connectors.client.lease_server import LeaseServer
from tests.connectors.client.wire import Wire


async def eventually(condition: Callable[[], object], timeout_s: float = 20) -> None:
    """When `condition` holds: for what the worker only counts, and tells nobody."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - there is no event to wait on
            await asyncio.sleep(0.005)


class Bench:
    """A server and the wire to it; `working` runs a worker."""

    def __init__(self) -> None:
        self.server = LeaseServer()
        self.wire = Wire(httpx.ASGITransport(self.server.app()))

    @contextlib.asynccontextmanager
    async def working(self, handler: Handler, **options: Any) -> AsyncIterator[Worker]:
        """A running worker of queue `q`, drained at the end; what ended it before that is raised."""
        async with FencepostClient("http://server.test", "fp_test", transport=self.wire) as client:
            worker = Worker(client, "q", handler, **options)
            running = asyncio.create_task(worker.run())
            try:
                yield worker
            finally:
                await worker.drain()
                await running
