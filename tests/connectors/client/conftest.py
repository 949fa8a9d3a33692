"""Fixtures of the client's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import uvicorn

from tests.connectors.client.lease_server import LeaseServer
from tests.connectors.client.worker_bench import Bench, eventually


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest_asyncio.fixture
async def served() -> AsyncIterator[tuple[LeaseServer, str]]:
    """The in-memory server on a real loopback port, for a worker that is a process of its own."""
    server = LeaseServer()
    http = uvicorn.Server(uvicorn.Config(server.app(), host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    http.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(http._serve())
    await eventually(lambda: http.started)
    port = http.servers[0].sockets[0].getsockname()[1]
    yield server, f"http://127.0.0.1:{port}"
    http.should_exit = http.force_exit = True  # a poll that its client has left would be waited for
    await serving
