"""What roles without HTTP of their own answer to machines."""

from __future__ import annotations

import asyncio

import httpx

from connectors.stack.ports import free_port
from streams.embedded_server import serve_health


async def test_a_role_is_alive_before_it_is_ready() -> None:
    port, stop, ready = free_port(), asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve_health("127.0.0.1", port, lambda: {"partitions": [1]}, ready.is_set, stop))
    transport = httpx.AsyncHTTPTransport(retries=5)  # until it listens
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", transport=transport) as client:
        alive = await client.get("/healthz")
        assert (alive.status_code, alive.json()) == (200, {"status": "ok", "partitions": [1]})
        assert (await client.get("/readyz")).status_code == 503
        ready.set()
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()) == (200, {"partitions": [1]})
    stop.set()
    await serving
