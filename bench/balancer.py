"""A balancer before several APIs, as plain as most are: each new connection goes to the next one that is ready.

It asks every one of them for /readyz, a few times a second, and knows nothing else. Who stops without a word gets
connections until it is asked again; and a connection that is there stays where it is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import httpx

LOOK_S = 0.2
NOTICE_S = 3.0  # what an API behind it has to give before it stops: some looks, on a machine that is busy, too
LOOK_WITHIN_S = 2.0
CHUNK_BYTES = 1 << 16


class Balancer:
    """Serves in a thread of its own, from its beginning until it is closed. ports: of the APIs, on loopback."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports, self._ready, self._turn = ports, set[int](), count()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._looking = [self._loop.create_task(self._look_on(port)) for port in ports]
        self._thread = threading.Thread(target=self._loop.run_forever, name="balancer", daemon=True)
        self._thread.start()

    def sends_to(self, port: int) -> bool:
        """Whether new connections may go there. So they may wherever it does not stand before."""
        return port in self._ready or port not in self._ports

    def close(self) -> None:
        """End every connection, and the thread."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _look_on(self, port: int) -> None:
        async with httpx.AsyncClient(timeout=LOOK_WITHIN_S, trust_env=False) as client:
            while True:
                ready = False
                with suppress(httpx.HTTPError):
                    ready = (await client.get(f"http://127.0.0.1:{port}/readyz")).is_success
                (self._ready.add if ready else self._ready.discard)(port)
                await asyncio.sleep(LOOK_S)

    def _next(self) -> int | None:
        ready = [port for port in self._ports if port in self._ready]
        return ready[next(self._turn) % len(ready)] if ready else None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, for as long as both sides keep it."""
        try:
            with suppress(OSError):
                if port := self._next():
                    await _join(reader, writer, port)
        finally:
            writer.close()

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Raises OSError when nobody is there."""
    theirs, ours = await asyncio.open_connection("127.0.0.1", port)
    pumps = [asyncio.create_task(_pump(reader, ours)), asyncio.create_task(_pump(theirs, writer))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        ours.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(CHUNK_BYTES):
            sink.write(chunk)
            await sink.drain()
