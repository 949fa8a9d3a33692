"""How often a call goes to Postgres and back: what the fence proves there travels with what is written anyway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ledger.commands import note_keyed_command
from ledger.connection import Pool, session
from tests.pair_fixtures import pool_of

PARTITION = 3


class Line:
    """The way to a server, on which somebody counts. round_trips: how often the client has spoken after the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server_spoke = True
        self._sessions: list[asyncio.Task[None]] = []
        self.round_trips = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        """Its port, while it is open. Who has sessions by it closes them first."""

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._sessions.append(asyncio.create_task(self._join(reader, writer)))

        async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]
            await asyncio.gather(*self._sessions)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._carry(reader, back, by_server=False), self._carry(there, writer, by_server=True))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, by_server: bool) -> None:
        while data := await reader.read(65536):
            self.round_trips += not by_server and self._server_spoke
            self._server_spoke = by_server
            writer.write(data)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def counted(dsn: str) -> AsyncIterator[tuple[Pool, Line]]:
    line = Line(int(str(conninfo_to_dict(dsn)["port"])))
    async with line.open() as port, pool_of(make_conninfo(dsn, port=port), 1) as pool:
        yield pool, line


async def test_a_key_is_noted_under_the_fence_in_one_round_trip_as_it_was_without(ledger_dsn: str) -> None:
    async with counted(ledger_dsn) as (pool, line):
        await note_keyed_command(pool, PARTITION, uuid4(), b"digest")  # its statements are prepared now, or soon
        async with session(pool) as conn:
            before = line.round_trips
            await conn.execute("SELECT 1")
            assert line.round_trips - before == 1
        before = line.round_trips
        assert await note_keyed_command(pool, PARTITION, uuid4(), b"digest")
        assert line.round_trips - before == 1
