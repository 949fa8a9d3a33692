"""The API role: one process's life from its socket to its last answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from email.utils import formatdate

import uvicorn

from api.app import Api, ApiSettings
from api.slow_clients import BoundedProtocol, SlowClients, WatchedState
from ledger.shards import Shards
from schemas.http_headers import SECURITY_HEADERS

STOP_GRACE_S = 10
KEEP_ALIVE_S = 75
BACKLOG = 2_048
_SECURITY_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS]


class ApiRole:
    """Serves the API on one socket until told to stop.

    port: 0 for a free one; `url` tells which. ready: set once the socket is answered.
    """

    def __init__(self, shards: Shards, host: str, port: int, settings: ApiSettings) -> None:
        """Raises OSError when the port is taken."""
        self._shards = shards
        self._settings = settings
        self._host = host
        self._socket = socket.create_server((host, port), backlog=BACKLOG)
        self.ready = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._socket.getsockname()[1]}"

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` and through the notice after it; then answer who waits, finish what is under way."""
        with self._socket:
            api = Api(self._shards, self._settings)
            async with api.running():
                await self._serve(api, stop)

    async def _serve(self, api: Api, stop: asyncio.Event) -> None:
        config = uvicorn.Config(
            api.app(),
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_GRACE_S,
        )
        server = _EmbeddedServer(config)
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        stopping = asyncio.create_task(stop.wait())
        slow_clients = SlowClients(server.server_state, self._settings.patience)
        watching = asyncio.create_task(slow_clients.run())
        self.ready.set()
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            api.leave()
            await asyncio.wait({serving}, timeout=self._settings.notice_s)
        finally:
            stopping.cancel()
            api.leases.close()
            server.stop()
            await serving
            watching.cancel()


class _DatedState(WatchedState):
    """What every answer's first headers are, also of those that uvicorn itself gives: the date, made when somebody asks
    for it and not each second, and what is the same for all."""

    _second, _headers = 0, list[tuple[bytes, bytes]]()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        if self._second != (second := int(time.time())):
            self._second, self._headers = (
                second,
                [(b"date", formatdate(second, usegmt=True).encode()), *_SECURITY_HEADERS],
            )
        return self._headers

    @default_headers.setter
    def default_headers(self, _: list[tuple[bytes, bytes]]) -> None:
        """uvicorn's own, which would stay the same."""


class _EmbeddedServer(uvicorn.Server):
    """uvicorn inside a loop whose signals belong to the composition root."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state: _DatedState = _DatedState()
        self._stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Until `stop`, which uvicorn itself would look for ten times a second; all else it does is the Date header."""
        await self._stopping.wait()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()
