"""HTTP inside a role: uvicorn in the role's own loop, whose signals belong to the composition root."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from schemas.http_headers import SECURITY_HEADERS

STOP_GRACE_S = 5
CALL_WITHIN_S = 30.0  # until a call is there, head and body


class _BoundedProtocol(HttpToolsProtocol):
    """Cuts off who does not end a call. A timer for each: calls are few here, unlike the API's."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()

    def on_message_begin(self) -> None:
        self._begin()
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._end()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._end()
        self._limit = self.loop.call_later(CALL_WITHIN_S, self.transport.abort)

    def _end(self) -> None:
        if self._limit is not None:
            self._limit.cancel()


class EmbeddedServer(uvicorn.Server):
    """Serves an app until `stop` is called. Leaves signal handlers alone."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_BoundedProtocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                date_header=False,
                server_header=False,
                headers=list(SECURITY_HEADERS),
                timeout_graceful_shutdown=STOP_GRACE_S,
            )
        )
        self._stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Until `stop`: uvicorn's own would look for it ten times a second, and put the clock into the Date header."""
        await self.on_tick(0)
        await self._stopping.wait()

    def stop(self) -> None:
        """Finish what is under way, then return from serve."""
        self.should_exit = True
        self._stopping.set()


async def serve_health(
    host: str, port: int, health: Callable[[], Mapping[str, Any]], is_ready: Callable[[], bool], stop: asyncio.Event
) -> None:
    """Answer /healthz, /readyz and /metrics until `stop`, for roles with no HTTP of their own.

    health: what the first two say. is_ready: whether the role does its work, so that the next process of it may be
    replaced; until then /readyz answers 503.
    """

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok", **health()})

    async def readyz(_: Request) -> Response:
        return JSONResponse(dict(health()), 200 if is_ready() else 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
    server = EmbeddedServer(Starlette(routes=routes))
    with socket.create_server((host, port)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await stop.wait()
        server.stop()
        await serving
