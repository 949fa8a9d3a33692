"""The history role: the projector, and HTTP on loopback for the API role, which is its only caller.

The API has checked who asks; here a tenant is just a name. Bodies are camelCase JSON, errors are problem documents.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schemas.codec import Codec
from schemas.errors import CommandRejected, HistoryBusy, QueryRejected
from streams.embedded_server import EmbeddedServer
from streams.history_explanations import HistoryExplanations
from streams.history_projector import IDLE_S, HistoryProjector
from streams.history_queries import HistoryQueries, json_ready
from streams.history_store import HistoryStore, RunState
from streams.topics import Topics

log = logging.getLogger(__name__)

# Under stress history is shed first: no more than these run, and the next waits no longer than this for its turn.
CONCURRENT_QUERIES = 2
QUEUE_WAIT_S = 2.0
_REOPEN_S = 0.5


class QueryBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The body of POST /query. limit: rows, at most 10,000."""

    tenant: str
    sql: str
    limit: int = 1000


class HistoryService:
    """The HTTP face of a history store."""

    def __init__(self, store: HistoryStore, queries: HistoryQueries, projector: HistoryProjector) -> None:
        self._store = store
        self._queries = queries
        self._projector = projector
        self._explanations = HistoryExplanations(store)
        self._turns = asyncio.Semaphore(CONCURRENT_QUERIES)
        self._threads = ThreadPoolExecutor(CONCURRENT_QUERIES, thread_name_prefix="history-query")

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/query", _problems(self.query), methods=["POST"]),
                Route("/runs/{run_id}", _problems(self.run), methods=["GET"]),
                *self._explanations.routes(),
                Route("/healthz", self.healthz, methods=["GET"]),
                Route("/readyz", self.readyz, methods=["GET"]),
                Route("/metrics", self.metrics, methods=["GET"]),
            ]
        )

    async def query(self, request: Request) -> Response:
        """{columns: [{name, type}], rows: [[…]], truncated}"""
        body = _parse_body(await request.body())
        async with self._turn():
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._threads, self._queries.query, body.tenant, body.sql, body.limit)
        columns = [column._asdict() for column in answer.columns]
        return _json({"columns": columns, "rows": answer.rows, "truncated": answer.truncated})

    async def run(self, request: Request) -> Response:
        """The latest known state of a run, whoever's it is; 404 for one the history has not heard of."""
        try:
            run_id = UUID(request.path_params["run_id"])
        except ValueError:
            return _problem(404, "no such run")
        state = await asyncio.to_thread(self._store.latest_run, str(run_id))
        return _problem(404, "no such run") if state is None else _json(run_body(state))

    async def healthz(self, _request: Request) -> Response:
        """How many records each partition is behind; kafka is false while the topic was never reached."""
        lag = self._projector.lag
        return _json({"status": "ok", "kafka": bool(lag), "lag": {str(key): value for key, value in lag.items()}})

    async def readyz(self, _request: Request) -> Response:
        """503 while the topic was never reached: what is answered then is as old as the store."""
        lag = self._projector.lag
        return _json({"kafka": bool(lag)}, 200 if lag else 503)

    async def metrics(self, _request: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    def close(self) -> None:
        self._threads.shutdown()

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(QUEUE_WAIT_S):
                await self._turns.acquire()
        except TimeoutError:
            raise HistoryBusy("other queries are running", retry_after_s=QUEUE_WAIT_S) from None
        try:
            yield
        finally:
            self._turns.release()


class HistoryRole:
    """Runs the projector and the service over one DuckDB file, which no other process may have open.

    port: 0 for a free one. `url` and `ready` tell where and when it answers. idle_s: what a stop may wait for the
    projector, which is how long that waits for records at a time. keep_days: as the projector's.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: Topics,
        codec: Codec,
        path: Path,
        host: str,
        port: int,
        *,
        query_limit_s: float = 10.0,
        idle_s: float = IDLE_S,
        keep_days: int | None = None,
        kafka_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._keep_days = keep_days
        self._kafka_config = kafka_config
        self._topics = topics
        self._codec = codec
        self._path = path
        self._query_limit_s, self._idle_s = query_limit_s, idle_s
        self._socket = socket.create_server((host, port))
        self._host = host
        self.ready = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._socket.getsockname()[1]}"

    async def run(self, stop: asyncio.Event) -> None:
        """Serve and project until `stop`. Raises what broke the store; a restart reads on where it stood."""
        with self._socket:
            store = await self._open(stop)
            if store is not None:
                try:
                    await self._run_on(store, stop)
                finally:
                    await asyncio.to_thread(store.close)

    async def _open(self, stop: asyncio.Event) -> HistoryStore | None:
        """The store, once whoever has the file (a predecessor that is just dying) lets go of it."""
        while not stop.is_set():
            try:
                return await asyncio.to_thread(HistoryStore, self._path)
            except duckdb.IOException as error:
                log.warning("the history file cannot be opened yet: %s", error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_REOPEN_S):
                        await stop.wait()
        return None

    async def _run_on(self, store: HistoryStore, stop: asyncio.Event) -> None:
        topic = self._topics.run_events
        projector = HistoryProjector(
            store, self._bootstrap, topic, self._codec,
            idle_s=self._idle_s, keep_days=self._keep_days, kafka_config=self._kafka_config,
        )  # fmt: skip
        queries = HistoryQueries(store, time_limit_s=self._query_limit_s)
        service = HistoryService(store, queries, projector)
        server = EmbeddedServer(service.app())
        stop_projector = threading.Event()
        projecting = asyncio.create_task(asyncio.to_thread(projector.run, stop_projector))
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        stopping = asyncio.create_task(stop.wait())
        self.ready.set()
        try:
            await asyncio.wait({projecting, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            stop_projector.set()
            queries.stop()
            server.stop()
            await asyncio.wait({projecting, serving})
            service.close()
        await asyncio.gather(projecting, serving)  # raises what ended either


def run_body(state: RunState) -> dict[str, Any]:
    """A run's state as JSON fields; result is the JSON that the worker gave."""
    fields = {_camel(name): json_ready(value) for name, value in state._asdict().items()}
    return {**fields, "result": None if state.result is None else msgspec.Raw(state.result.encode())}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def _parse_body(raw: bytes) -> QueryBody:
    try:
        return msgspec.json.decode(raw, type=QueryBody)
    except msgspec.ValidationError as error:
        raise QueryRejected(str(error), field=_named_field(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise QueryRejected(f"the body is no JSON: {error}", field="") from error


def _named_field(message: str) -> str:
    """The field that msgspec names last: "… missing required field `tenant`", "Expected … - at `$.limit`"."""
    return message.rpartition("`")[0].rpartition("`")[2].removeprefix("$").removeprefix(".")


Handler = Callable[[Request], Awaitable[Response]]


def _problems(handler: Handler) -> Handler:
    """The handler with our errors as problem documents (RFC 9457)."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except CommandRejected as error:
            return _problem(422, error.message, field=error.field)
        except HistoryBusy as error:
            response = _problem(503, str(error), retryAfterSeconds=error.retry_after_s)
            response.headers["Retry-After"] = str(round(error.retry_after_s))
            return response

    return answer


_TITLES = {404: "Not found", 422: "Invalid query", 503: "History is busy"}


def _problem(status: int, detail: str, **fields: Any) -> Response:
    body = {"type": "about:blank", "title": _TITLES[status], "status": status, "detail": detail}
    body |= {name: value for name, value in fields.items() if value}
    return Response(msgspec.json.encode(body), status, media_type="application/problem+json")


def _json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
