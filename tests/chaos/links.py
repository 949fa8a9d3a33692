"""Network links that can be hurt: a TCP proxy on loopback between a process and the server that it talks to.

All links are served by one thread. A link that is silent delivers nothing and loses nothing, as a network does for a
while: what was sent arrives once it is open again. One that is cut resets its connections, and every new one.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET
from socket import socket as Socket

CHUNK_BYTES = 1 << 20
_RESET = struct.pack("ii", 1, 0)  # a close that does not linger tells the other side with a reset


class Link:
    """One address, `port`, that leads to another. Any thread may hurt it."""

    def __init__(self, name: str, port: int, target_port: int, run: Callable[[Callable[[], None]], None]) -> None:
        self.name, self.port = name, port
        self._target_port, self._run = target_port, run
        self._is_cut, self._delay_s = False, 0.0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Reset what is connected, and whoever comes."""
        self._run(self._cut)

    def silence(self) -> None:
        """Deliver nothing until it is open again."""
        self._run(self._flowing.clear)

    def delay(self, delay_s: float) -> None:
        """Deliver everything so much later, in both directions."""
        self._run(lambda: setattr(self, "_delay_s", delay_s))

    def open(self) -> None:
        """Be a link that nobody notices."""
        self._run(self._open)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, for as long as both sides keep it. The proxy's server calls this."""
        self._writers.add(writer)
        try:
            await self._flowing.wait()
            if not self._is_cut:
                await self._join(reader, writer)
        finally:
            self._drop(writer)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._target_port, limit=CHUNK_BYTES)
            self._writers.add(ours)
            pumps = [asyncio.create_task(self._pump(reader, ours)), asyncio.create_task(self._pump(theirs, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                self._drop(ours)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await source.read(CHUNK_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flowing.wait()
                sink.write(chunk)
                await sink.drain()

    def _cut(self) -> None:
        self._is_cut = True
        for writer in list(self._writers):
            self._drop(writer)

    def _open(self) -> None:
        self._is_cut, self._delay_s = False, 0.0
        self._flowing.set()

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        if writer not in self._writers:
            return
        self._writers.discard(writer)
        if self._is_cut:
            socket: Socket = writer.get_extra_info("socket")
            with suppress(OSError):  # it was closed by the other side
                socket.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
            writer.transport.abort()
        else:
            writer.close()


class Links:
    """The proxy and its thread, until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def add(self, name: str, port: int, target_port: int) -> Link:
        """Listen on a port, and lead to the other one. Raises OSError when the port is taken."""
        return asyncio.run_coroutine_threadsafe(self._add(name, port, target_port), self._loop).result()

    def close(self) -> None:
        """End every connection, and the thread."""
        self._call(self._close)
        self._thread.join()
        self._loop.close()

    async def _add(self, name: str, port: int, target_port: int) -> Link:
        link = Link(name, port, target_port, self._call)
        self._servers.append(await asyncio.start_server(link.serve, "127.0.0.1", port, limit=CHUNK_BYTES))
        return link

    def _call(self, work: Callable[[], None]) -> None:
        """Have it done by the thread, before this returns."""

        async def do() -> None:
            work()

        asyncio.run_coroutine_threadsafe(do(), self._loop).result()

    def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in asyncio.all_tasks(self._loop) - {asyncio.current_task(self._loop)}:
            task.cancel()
        self._loop.call_later(0.1, self._loop.stop)
