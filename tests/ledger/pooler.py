"""A pooler before a Postgres that trusts everybody, as others have them: sessions lent by the transaction, or given.

It speaks as much of the protocol as it needs: a client's messages go to a server session, answers come back, and what
ends in "idle" may go to another client. What clients begin a session with (`options`) it takes or leaves.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from psycopg.conninfo import conninfo_to_dict, make_conninfo

SSL, GSS = 80877103, 80877104
VERSION = 196608
IDLE = b"I"
ANSWERED_BY_READY = b"QS"  # a simple query, and what ends an extended one

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Pooler:
    """lends: by the transaction. passes_options: to the server session that is begun for a client."""

    def __init__(self, dsn: str, *, lends: bool, passes_options: bool) -> None:
        self._server, self._lends, self._passes_options = conninfo_to_dict(dsn), lends, passes_options
        self._free: list[Stream] = []
        self._ends: list[asyncio.StreamWriter] = []  # of all clients and sessions
        self._clients: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until it goes."""
        self._clients.add(asyncio.current_task())  # type: ignore[arg-type]
        self._ends.append(writer)
        session: Stream | None = None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            options = await self._greet(reader, writer)
            while (message := await _read_message(reader))[:1] != b"X":
                session = session or await self._take(options)
                session[1].write(message)
                if message[:1] in ANSWERED_BY_READY and await _answer(session, writer) == IDLE and self._lends:
                    self._free.append(session)
                    session = None
        writer.close()
        if session is not None:
            session[1].close()

    async def close(self) -> None:
        for writer in self._ends:
            writer.close()
        await asyncio.gather(*self._clients)
        await asyncio.gather(*(writer.wait_closed() for writer in self._ends), return_exceptions=True)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Take the client in, under a number that no server process has; returns its options."""
        while (body := await reader.readexactly(struct.unpack("!I", await reader.readexactly(4))[0] - 4))[:4] in (
            struct.pack("!I", SSL),
            struct.pack("!I", GSS),
        ):
            writer.write(b"N")
        told = body[4:].split(b"\0")
        given = dict(zip(told[::2], told[1::2], strict=False))
        parameters = {b"server_version": b"18.0", b"client_encoding": b"UTF8", b"TimeZone": b"UTC"}
        writer.write(_message(b"R", struct.pack("!I", 0)))
        for name, value in {**parameters, b"standard_conforming_strings": b"on"}.items():
            writer.write(_message(b"S", name + b"\0" + value + b"\0"))
        writer.write(_message(b"K", struct.pack("!I", 7) + os.urandom(4)))
        writer.write(_message(b"Z", IDLE))
        return given.get(b"options", b"").decode()

    async def _take(self, options: str) -> Stream:
        """What was given back last, as a pooler that keeps few sessions busy does; else a new one."""
        if self._free:
            return self._free.pop()
        session = await asyncio.open_connection(str(self._server["host"]), int(str(self._server["port"])))
        told = {"user": self._server["user"], "database": self._server["dbname"]}
        if self._passes_options:
            told["options"] = options
        body = struct.pack("!I", VERSION) + b"".join(f"{name}\0{value}\0".encode() for name, value in told.items())
        session[1].write(struct.pack("!I", len(body) + 5) + body + b"\0")
        while (await _read_message(session[0]))[:1] != b"Z":
            pass
        self._ends.append(session[1])
        return session


async def _answer(session: Stream, writer: asyncio.StreamWriter) -> bytes:
    """Pass on all up to "ready"; returns what the session is then."""
    while True:
        message = await _read_message(session[0])
        writer.write(message)
        if message[:1] == b"Z":
            await writer.drain()
            return message[5:6]


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


@asynccontextmanager
async def pooled(dsn: str, *, lends: bool, passes_options: bool = True) -> AsyncIterator[str]:
    """The DSN of a database behind a pooler."""
    pooler = Pooler(dsn, lends=lends, passes_options=passes_options)
    server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    try:
        yield make_conninfo(dsn, port=server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await pooler.close()
