"""From ASGI to a handler and back: token, body, answer, problem, metrics. One way for every route.

Handlers get a `Call` and return a struct (200), or a `Reply` for another status. They raise Problem or errors of ours.
Their return type says which answers they give, and their docstring what they do: api/openapi.py tells both to callers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
from msgspec import Struct
from prometheus_client import Counter
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access_log import AccessLog
from api.auth import Authenticator, require_queue, require_role
from api.budgets import Budget
from api.metrics import ApiMetrics
from api.problems import Headers, Problem, invalid, not_found, problem_of
from api.slow_clients import HANG_UP, TOO_SLOW
from ledger.tokens import Identity, Role
from schemas.http import Request, encode

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Struct)
B = TypeVar("B", bound=Request)

QUEUE_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")  # schemas.commands.Name

IDENTITY = "fencepost.identity"  # of a scope, once it is known

NO_ROUTE = "(none)"  # in the access log: what was asked for might be anything, a secret among it
HangUp = Callable[[], asyncio.Future[Any]]  # from a call: something that is done once its client has hung up

CLOSE = (b"connection", b"close")
PLAIN_TEXT = (b"content-type", b"text/plain; charset=utf-8")

KIB = 1024
SMALL_BODY = 16 * KIB
# Room for what is too long by its own rule, so that it is told by its field (422) instead of by its size (413).
RUN_BODY = 1024 * KIB
BATCH_BODY = 16 * 1024 * KIB


@dataclass(slots=True)
class Call(Generic[B]):
    """A request that is known to be well-formed and allowed by role."""

    identity: Identity
    body: B
    path: MutableMapping[str, str]
    headers: dict[bytes, bytes]
    hang_up: HangUp

    def id(self, what: str) -> UUID:
        """The {id} of the path. Raises Problem 404: what is no id names nothing."""
        text = self.path["id"]
        try:
            parsed = UUID(text)
        except ValueError:
            raise not_found(what) from None
        if str(parsed) != text.lower():
            raise not_found(what)
        return parsed

    def queue(self) -> str:
        """The {queue} of the path. Raises Problem 422, or 403 when the token may not use it."""
        name = self.path["queue"]
        if not QUEUE_NAME.fullmatch(name):
            raise invalid("queue", "a queue's name has 1 to 100 letters, digits and _ . : -")
        require_queue(self.identity, name)
        return name


@dataclass(slots=True)
class Reply(Generic[A]):
    """An answer that is not just 200 and a struct. A: what a body of bytes is the wire form of."""

    body: A | bytes
    status: int = 200
    headers: Headers = field(default_factory=list)


@dataclass(slots=True)
class Created(Reply[A]):
    status: int = 201


@dataclass(slots=True)
class Accepted(Reply[A]):
    status: int = 202


@dataclass(slots=True)
class Unavailable(Reply[A]):
    status: int = 503


@dataclass(slots=True)
class Text(Reply[Struct]):
    """Words for people, or for Prometheus."""

    headers: Headers = field(default_factory=lambda: [PLAIN_TEXT])


Handler = Callable[[Call[B]], Awaitable[Struct | Reply[Any]]]
OpenHandler = Callable[[], Awaitable[Struct | Reply[Any]]]

# How a token that is scoped to queues is held to them. named: others than its own answer 403, whether the path or the
# body names them or what the path names is in them; filtered: the answer tells of its own alone; whole: the call is
# about all of the tenant's, and such a token may not make it; none: it is about no queue.
QueueScope = Literal["named", "filtered", "whole", "none"]


class Endpoint(Generic[B]):
    """An ASGI application for one route and method.

    is_leaving: whether the process is about to stop. from_query: the body's fields come in the query string. keyed: it
    heeds the Idempotency-Key header. told_by: whose docstring and return type tell of it, if not the handler's.
    """

    def __init__(
        self,
        name: str,
        handler: Handler[B],
        body: type[B],
        *,
        roles: Collection[Role],
        authenticator: Authenticator,
        metrics: ApiMetrics,
        budget: Budget,
        is_leaving: Callable[[], bool],
        access_log: AccessLog,
        body_limit: int = RUN_BODY,
        from_query: bool = False,
        keyed: bool = False,
        queue_scope: QueueScope = "named",
        told_by: Callable[..., Any] | None = None,
    ) -> None:
        self.__name__ = name
        self._handler = handler
        self.told_by, self.keyed, self.queue_scope = told_by or handler, keyed, queue_scope
        self.kind = body
        self._decode = msgspec.json.Decoder(body).decode
        self.from_query = from_query
        self.may_be_empty = not any(each.required for each in msgspec.structs.fields(body))
        self.roles = frozenset(roles)
        self._authenticator = authenticator
        self._budget = budget
        self._is_leaving = is_leaving
        self._access_log = access_log
        self.body_limit = body_limit
        self._requests = metrics.requests
        self._by_status: dict[int, Counter] = {}
        self._request_ms = metrics.request_ms.labels(name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        try:
            answer = await self._answer(scope, receive)
        except Exception as error:
            answer = _problem_reply(error)
        reply = answer if isinstance(answer, Reply) else Reply(answer)
        if self._is_leaving():  # or the client's next call might cross with the connection's end
            reply.headers = [*reply.headers, CLOSE]
        await send_reply(send, reply)
        self._request_ms.observe(ms := (time.perf_counter() - began) * 1000)
        self._count(reply.status)
        if reply.status >= self._access_log.least_status:
            self._access_log.tell(self.__name__, reply.status, ms, scope.get(IDENTITY))

    def _count(self, status: int) -> None:
        counter = self._by_status.get(status)
        if counter is None:
            counter = self._by_status[status] = self._requests.labels(self.__name__, status)
        counter.inc()

    async def _answer(self, scope: Scope, receive: Receive) -> Struct | Reply[Any]:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        scope[IDENTITY] = identity = await self._authenticator.identify(headers.get(b"authorization"))
        require_role(identity, self.roles)
        if self.queue_scope == "whole" and identity.queues is not None:
            raise Problem(403, "the token is scoped to queues; this is about all of the tenant's", field="queue")
        wire = await read_body(receive, headers, self.body_limit)
        if TOO_SLOW in scope:
            raise Problem(408, "the body did not come in time", headers=[CLOSE])
        if not wire and self.may_be_empty:
            wire = b"{}"
        if self._budget.is_full():  # only now: a client that sends slowly takes no place
            raise await self._budget.shed()
        with self._budget.place():
            body = read_query(scope["query_string"], self.kind) if self.from_query else self._decode(wire)
            hang_up: HangUp = scope.get(HANG_UP) or partial(_until_hung_up, receive)
            return await self._handler(Call(identity, body, scope["path_params"], headers, hang_up))


class OpenEndpoint:
    """An ASGI application for one route that takes no token and reads nothing."""

    def __init__(self, handler: OpenHandler) -> None:
        self.told_by = self._handler = handler

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        try:
            answer = await self._handler()
        except Exception as error:
            answer = _problem_reply(error)
        await send_reply(send, answer if isinstance(answer, Reply) else Reply(answer))


class EndpointsFirst:
    """Hands a call to its endpoint, which answers whatever happens in it; what no endpoint takes is for the others.

    So no call passes Starlette's two layers for errors that nobody has answered, a tenth of what a waiting poll costs.
    What the others answer is logged here: calls of no route, or with another method, and of those without a token.
    """

    def __init__(self, routes: Iterable[BaseRoute], others: ASGIApp, access_log: AccessLog) -> None:
        known = [route for route in routes if isinstance(route, Route)]
        self._routes = [route for route in known if isinstance(route.app, Endpoint)]
        self._known, self._others, self._access_log = known, others, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                await route.app(scope, receive, send)
                return
        await self._answer_by_others(scope, receive, send)

    async def _answer_by_others(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, statuses = time.perf_counter(), list[int]()

        async def note_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        route = next((route for route in self._known if route.matches(scope)[0] is not Match.NONE), None)
        await self._others(scope, receive, note_and_send)
        is_probe = route is not None and scope["method"] in (route.methods or ())
        for status in statuses:
            if status >= self._access_log.least_status and (self._access_log.probes or not is_probe):
                name = f"{scope['method']} {route.path if route else NO_ROUTE}"
                self._access_log.tell(name, status, (time.perf_counter() - began) * 1000, None)


def read_query(query: bytes, kind: type[B]) -> B:
    """A query string's parameters as a `kind`. Raises Problem 422, or ValidationError as for a body.

    What the decoder would take for something else is refused: null for a condition that was left out, a number for an
    instant.
    """
    fields: dict[str, Any] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="replace"):
        if name in fields:
            raise invalid(name, f"{name} is there twice")
        fields[name] = value
    read = msgspec.convert(fields, kind, strict=False)
    for each in msgspec.structs.fields(kind):
        name, value = each.encode_name, getattr(read, each.name)
        if name in fields and value is None:
            raise invalid(name, f"null is no value; leave {name} out")
        if name in fields and isinstance(value, datetime) and ":" not in fields[name]:
            raise invalid(name, "an instant is like 2026-01-01T00:00:00Z")
    return read


def _until_hung_up(receive: Receive) -> asyncio.Future[Any]:
    """As any ASGI server tells it: what comes after the body."""
    return asyncio.ensure_future(receive())


async def read_body(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes:
    """The whole body. Raises Problem 400 when the client hangs up before its end, 413 or 415."""
    kind = headers.get(b"content-type")
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    body, is_whole = await _read_part(receive)
    if not is_whole:
        body = await _read_on(receive, body, limit)
    if len(body) > limit:
        raise _too_large(limit)
    if body and kind is not None and not _is_json(kind):
        raise Problem(415, f"the body must be application/json, not {kind.decode('latin-1')}")
    return body


async def _read_on(receive: Receive, start: bytes, limit: int) -> bytes:
    parts, size, is_whole = [start], len(start), False
    while not is_whole:
        part, is_whole = await _read_part(receive)
        parts.append(part)
        size += len(part)
        if size > limit:
            raise _too_large(limit)
    return b"".join(parts)


async def _read_part(receive: Receive) -> tuple[bytes, bool]:
    """The next of it, and whether that is all."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Problem(400, "the body was cut off")
    return message.get("body", b""), not message.get("more_body")


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the body is larger than {limit} bytes", headers=[CLOSE])


def _is_json(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind == b"application/json" or kind.endswith(b"+json")


async def send_reply(send: Send, reply: Reply[Any]) -> None:
    body = reply.body if isinstance(reply.body, bytes) else encode(reply.body)
    headers = [(b"content-length", str(len(body)).encode()), *reply.headers]
    if not any(name == b"content-type" for name, _ in headers):
        headers.append((b"content-type", b"application/json"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _problem_reply(error: Exception) -> Reply[Any]:
    problem = problem_of(error)
    if problem is None:
        log.error("a call failed in a way that nobody foresaw", exc_info=error)
        problem = Problem(500, "the server failed; its log tells why")
    return Reply(problem.body(), problem.status, problem.all_headers())
