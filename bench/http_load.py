"""HTTP/1.1 as cheaply as a benchmark's client can have it: prepared requests over kept-alive connections."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from multiprocessing import get_context
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec

from bench.http_server import serve
from connectors.stack.ports import free_port

START_DEADLINE_S = 60.0


class Load(NamedTuple):
    """What came of it. done: requests that were answered with success."""

    done: int
    seconds: float


def call(url: str, token: str, path: str, body: Any) -> Any:
    """The answer to one request. Raises httpx.HTTPError."""
    answer = httpx.post(url + path, json=body, headers={"Authorization": f"Bearer {token}"}, timeout=60)
    return answer.raise_for_status().json()


def wire(token: str, path: str, body: Any = None, headers: str = "", method: str = "POST") -> bytes:
    """A request as it goes over the wire. headers: lines, each ended by CR and LF."""
    content = b"" if body is None else msgspec.json.encode(body)
    kind = "content-type: application/json\r\n"
    head = f"{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n{kind}"
    return f"{head}{headers}content-length: {len(content)}\r\n\r\n".encode() + content


async def send_all(url: str, requests: Sequence[bytes], connections: int) -> Load:
    """Send each request once. Raises AssertionError when one is refused."""
    waiting = iter(requests)
    return await _drive(url, connections, lambda: next(waiting, None))


async def send_for(url: str, requests: Sequence[bytes], connections: int, seconds: float) -> Load:
    """Send the requests round and round for so long, from when the first connection is made."""
    until: float | None = None
    at = iter(range(1 << 62))

    def after() -> bytes | None:
        nonlocal until
        until = until or time.monotonic() + seconds
        return requests[next(at) % len(requests)] if time.monotonic() < until else None

    return await _drive(url, connections, after)


async def _drive(url: str, connections: int, after: Callable[[], bytes | None]) -> Load:
    done = 0

    async def one() -> None:
        nonlocal done
        async with connection(url) as (reader, writer):
            while (request := after()) is not None:
                await exchange(reader, writer, request)
                done += 1

    began = time.monotonic()
    await asyncio.gather(*(one() for _ in range(connections)))
    return Load(done, time.monotonic() - began)


@asynccontextmanager
async def connection(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """The answer's body, which has a length. Raises AssertionError unless it is a success."""
    status, body = await answer(reader, writer, request)
    assert 200 <= status < 300, (status, body)
    return body


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, bytes]:
    """The answer's status and body, whatever it says."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    body = await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
    return int(head.split(b" ", 2)[1]), body


class Echo:
    """A bare server, which parses JSON and answers the same: what HTTP alone costs here."""

    def __init__(self, url: str, pipe: Any) -> None:
        self.url, self._pipe = url, pipe

    def cpu_s(self) -> float:
        """The CPU time it has used so far."""
        self._pipe.send("cpu")
        return float(self._pipe.recv())


@contextmanager
def echo_server() -> Iterator[Echo]:
    """A process of its own, with the same HTTP server as the API's."""
    port = free_port()
    context = get_context("spawn")  # a fork would take along the threads of Kafka's client
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=("uvicorn", port, theirs), daemon=True)
    process.start()
    try:
        echo = Echo(f"http://127.0.0.1:{port}", ours)
        _await_server(port)
        yield echo
    finally:
        process.kill()
        process.join()


def _await_server(port: int) -> None:
    until = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
