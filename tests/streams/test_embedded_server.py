"""What roles without HTTP of their own answer to machines."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest

from connectors.stack.ports import free_port
from streams import embedded_server
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


@pytest.mark.parametrize("start", ["", "GET /hea", "POST /healthz HTTP/1.1\r\ncontent-length: 9\r\n\r\nhalf"])
async def test_who_does_not_end_a_call_is_cut_off_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setattr(embedded_server, "CALL_WITHIN_S", 0.3)
    port, stop = free_port(), asyncio.Event()
    serving = asyncio.create_task(serve_health("127.0.0.1", port, dict, lambda: True, stop))
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=5)) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start.encode())
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
        writer.close()
        assert (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
    stop.set()
    await serving
