"""Clients that are slow on a real socket: with a head, a body, their answer, or between two calls."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from api import api_role
from api.app import ApiSettings
from api.slow_clients import HEAD_MAX, Patience
from ledger.connection import Pool
from ledger.shards import Shards
from tests.api.served import Served, serving

HEAD = "POST /v1/queues/mail/lease HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n"
IMPATIENT = Patience(head_s=0.3, body_s=0.3, unread_s=0.3, look_every_s=0.05)
ENDED_S = 20


@pytest_asyncio.fixture
async def served(shards: Shards, ledger_pool: Pool, settings: ApiSettings) -> AsyncIterator[Served]:
    async with serving(shards, ledger_pool, dataclasses.replace(settings, patience=IMPATIENT)) as served:
        yield served


async def told_until_the_end(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server ends the connection."""
    async with asyncio.timeout(ENDED_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def send_on(client: socket.socket) -> None:
    """Until that fails: nothing else tells this side, which does not read, that the connection has ended."""
    async with asyncio.timeout(ENDED_S):
        while True:
            client.send(b"G")
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("start", ["", "POST /v1/lea", HEAD], ids=["nothing", "half a line", "half a head"])
async def test_a_client_that_does_not_end_its_head_is_cut_off(served: Served, start: str) -> None:
    async with served.connection() as (reader, writer):
        writer.write(start.format(served.token).encode())
        assert await told_until_the_end(reader) == b""
    assert await served.lease() == []  # who sends whole calls is served as ever


async def test_a_client_that_drips_its_head_is_cut_off_like_one_that_stops(served: Served) -> None:
    async with served.connection() as (reader, writer):

        async def drip() -> None:
            while not writer.is_closing():
                writer.write(b"P")
                await asyncio.sleep(0.01)  # faster than anybody looks

        writer.write(b"GET /healthz HTTP/1.1\r\nx: ")
        dripping = asyncio.create_task(drip())
        assert await told_until_the_end(reader) == b""
    await dripping


async def test_a_client_that_sends_line_ends_and_no_head_after_a_call_is_cut_off(served: Served) -> None:
    async with served.connection() as (reader, writer):
        writer.write(served.lease_call(waitSeconds=0))
        await reader.readuntil(b"}")
        writer.write(b"\r\n")
        assert await told_until_the_end(reader) == b""


@pytest.mark.parametrize("start", ["", '{"workerId"', '{"workerId":"w","max":1}'], ids=["none", "half", "all but one"])
async def test_a_client_that_does_not_end_its_body_is_told_so_and_nothing_is_done(served: Served, start: str) -> None:
    async with served.connection() as (reader, writer):
        writer.write(f"{HEAD.format(served.token)}content-length: {len(start) + 1}\r\n\r\n{start}".encode())
        head, _, body = (await told_until_the_end(reader)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in head
    assert json.loads(body) == {"title": "Request Timeout", "status": 408, "detail": "the body did not come in time"}
    assert await served.sample('fencepost_api_requests_total{route="POST /v1/queues/{queue}/lease",status="408"}') == 1
    assert await served.sample('fencepost_api_requests_total{route="POST /v1/queues/{queue}/lease",status="200"}') == 0


async def test_a_client_that_does_not_read_its_answers_is_cut_off(served: Served) -> None:
    """They would stay in memory for as long as it likes."""
    address = urlsplit(served.role.url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.connect((address.hostname, address.port))
    with client:
        client.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 200)
        client.setblocking(False)
        with pytest.raises(ConnectionError):
            await send_on(client)


async def test_a_call_that_waits_for_a_run_is_not_slow(served: Served) -> None:
    assert await served.lease(waitSeconds=1) == []


async def test_a_connection_is_kept_between_two_calls_for_a_while_only(
    shards: Shards, ledger_pool: Pool, settings: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_role, "KEEP_ALIVE_S", 1)
    call = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    impatient = dataclasses.replace(settings, patience=IMPATIENT)
    async with serving(shards, ledger_pool, impatient) as served, served.connection() as (reader, writer):
        for _ in range(2):
            writer.write(call)
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        assert await told_until_the_end(reader) == b""


async def test_a_head_without_end_is_refused_however_fast_it_comes(
    shards: Shards, ledger_pool: Pool, settings: ApiSettings
) -> None:
    patient = dataclasses.replace(settings, patience=Patience(head_s=3_600))
    async with serving(shards, ledger_pool, patient) as served:
        async with served.connection() as (reader, writer):
            writer.write(b"GET /healthz HTTP/1.1\r\n" + b"x: " + b"y" * 2 * HEAD_MAX)
            said = await told_until_the_end(reader)
        assert said == b"" or said.startswith(b"HTTP/1.1 400")  # who is still sending may not hear why
        assert await served.lease() == []


async def test_many_calls_and_large_bodies_on_one_connection_are_no_long_head(served: Served) -> None:
    for _ in range(3):
        runs = [{"runId": "00000000-0000-8000-8000-000000000000", "leaseToken": 1, "result": "x" * 60_000}]
        response = await served.post("/v1/runs/complete", {"runs": runs})
        assert response.status_code == 200, response.text
    assert await served.lease() == []
