"""Which HTTP server carries the API: uvicorn or granian, one worker inside our own event loop.

    python -m bench.http_server [uvicorn granian]

For each server that is installed: CPU time a request for a single completion (150 bytes) and for a batch of 100
(15 kB), over 32 kept-alive connections; how long after a client hangs up the handler of its long-poll learns of it;
and how long a stop takes while a long-poll waits. CPU time, not throughput: the clients share the machine.

Measured on two shared cores (uvicorn 0.54 with httptools, granian 2.8): 26-29 and about 100 us against 29-34 and
94-121 us, so the same within noise; but granian's `receive` tells a client that waits as gone at once, and nothing can
be built on that. Hence uvicorn.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import multiprocessing
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import uvloop

from schemas.ids import new_id

CONNECTIONS = 32
SECONDS = 3.0
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class EchoApp:
    """POST /echo parses and answers JSON; /wait is a long-poll that ends by hang-up or by `stopping`."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.hung_up_at: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = (await receive())["body"]
        if scope["path"] == "/wait":
            await self._wait(receive)
            body = b"{}"
        answer = msgspec.json.encode(msgspec.json.decode(body))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _wait(self, receive: Receive) -> None:
        gone, stopped = asyncio.ensure_future(receive()), asyncio.ensure_future(self.stopping.wait())
        await asyncio.wait({gone, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.hung_up_at = time.monotonic()
        gone.cancel()
        stopped.cancel()


async def serve_uvicorn(app: EchoApp, port: int) -> Callable[[], Awaitable[None]]:
    import uvicorn

    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, http="httptools", lifespan="off", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())

    async def stop() -> None:
        app.stopping.set()
        server.should_exit = True
        await task

    return stop


async def serve_granian(app: EchoApp, port: int) -> Callable[[], Awaitable[None]]:
    constants = importlib.import_module("granian.constants")  # not a dependency of ours
    server = importlib.import_module("granian.server.embed").Server(
        app,
        port=port,
        interface=constants.Interfaces.ASGINL,
        http=constants.HTTPModes.http1,
        websockets=False,
        log_enabled=False,
    )
    task = asyncio.create_task(server.serve())

    async def stop() -> None:
        app.stopping.set()
        server.stop()
        await task

    return stop


SERVERS = {"uvicorn": serve_uvicorn, "granian": serve_granian}


def serve(name: str, port: int, pipe: Connection) -> None:
    """The server's process: answers questions over the pipe until told to stop."""

    async def run() -> None:
        app = EchoApp()
        stop = await SERVERS[name](app, port)
        while (question := await asyncio.to_thread(pipe.recv)) != "stop":
            pipe.send(time.process_time() if question == "cpu" else app.hung_up_at)
        began = time.monotonic()
        await stop()
        pipe.send(time.monotonic() - began)

    uvloop.run(run())


def request(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: bytes) -> None:
    writer.write(wire)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"chunked" in head:
        while (size := int(await reader.readline(), 16)) or await reader.readline() != b"\r\n":
            await reader.readexactly(size + 2)
    else:
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))


async def load(port: int, wire: bytes) -> int:
    """How many exchanges the connections finished in SECONDS."""
    until = time.monotonic() + SECONDS
    done = 0

    async def one() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < until:
            await exchange(reader, writer, wire)
            done += 1
        writer.close()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    return done


async def measure(name: str, port: int, pipe: Connection) -> None:
    run = {"runId": str(new_id()), "leaseToken": 1, "result": {"rows": 17, "ok": True, "note": "x" * 40}}
    await asyncio.sleep(1.0)
    for label, body in (("single", run), ("batch of 100", {"runs": [run] * 100})):
        pipe.send("cpu")
        before = pipe.recv()
        done = await load(port, request("/echo", msgspec.json.encode(body)))
        pipe.send("cpu")
        cpu_us = (pipe.recv() - before) / done * 1e6
        print(f"{name:8} {label:13} {cpu_us:6.0f} us CPU a request, {done / SECONDS:6.0f} requests/s")
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("/wait", b"{}"))
    await asyncio.sleep(0.2)
    hung_up_at = time.monotonic()
    writer.close()
    await asyncio.sleep(0.5)
    pipe.send("hung up")
    seen_at = pipe.recv()
    print(f"{name:8} hang-up seen {seen_after(hung_up_at, seen_at)}")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.create_task(exchange(reader, writer, request("/wait", b"{}")))
    await asyncio.sleep(0.2)
    pipe.send("stop")
    with contextlib.suppress(asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(5):
            await answer
    async with asyncio.timeout(10):
        took = await asyncio.to_thread(pipe.recv)
    print(f"{name:8} stopped in {took * 1000:.0f} ms, waiting client {'answered' if not answer.exception() else 'cut'}")


def seen_after(hung_up_at: float, seen_at: float | None) -> str:
    if seen_at is None:
        return "never"
    after_ms = (seen_at - hung_up_at) * 1000
    return f"after {after_ms:.1f} ms" if after_ms >= 0 else "before it happened: a waiting client is taken for gone"


def main(names: list[str]) -> None:
    for port, name in enumerate(names or list(SERVERS), start=18_650):
        if importlib.util.find_spec(name) is None:
            print(f"{name:8} is not installed: pip install it beside ours to compare")
            continue
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(target=serve, args=(name, port, theirs))
        process.start()
        try:
            uvloop.run(measure(name, port, ours))
        finally:
            process.kill()
            process.join()


if __name__ == "__main__":
    main(sys.argv[1:])
