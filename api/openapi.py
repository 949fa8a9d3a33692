"""GET /openapi.json: the API described by what answers it, as OpenAPI 3.1.

Nothing of it is kept by hand. Paths, roles and limits are those of the routes (api/app.py); bodies and parameters are
the structs that parse them; answers are the return types of handlers, and summaries their docstrings' first lines.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
from msgspec import Struct
from starlette.routing import Route

from api.endpoints import Endpoint, OpenEndpoint, Reply, Text
from schemas.commands import Name
from schemas.http import NoBody, ProblemDocument
from schemas.http_tokens import TokenId

Json = dict[str, Any]
AnyEndpoint = Endpoint[Any] | OpenEndpoint
T = TypeVar("T")

_REFERENCE = "#/components/schemas/{name}"
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A call that is repeated with the same key has its effect once.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
}
_RETRY_AFTER = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "description": "In seconds."}}
_SHED = 503
_DESCRIPTION = """\
x-roles: the token's role has to be one of them. x-queue-scope: how a token that is scoped to queues is held to them \
(named: others than its own answer 403; filtered: the same if it names one, else it is told of its own alone; whole: \
it may not; none: no queue is concerned). Of another tenant's jobs and runs every call says 404, as of those that \
never were. x-body-limit: in bytes."""


class Document:
    """routes: all that the application has. The document is made when it is first asked for."""

    def __init__(self, routes: Callable[[], Iterable[Route]]) -> None:
        self._routes = routes
        self._encoded: bytes | None = None

    async def show(self) -> Reply[Struct]:
        """Describe the API."""
        if self._encoded is None:  # it takes long enough to hold up the leases of others
            self._encoded = await asyncio.to_thread(lambda: msgspec.json.encode(describe(self._routes())))
        return Reply(self._encoded)


def describe(routes: Iterable[Route]) -> Json:
    """The document. Raises TypeError for a handler whose return type tells of no answer."""
    routes = list(routes)
    schemas = Schemas(routes)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[_method(route).lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fencepost",
            "version": version("fencepost-server"),
            "description": _DESCRIPTION,
        },
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class Schemas:
    """JSON schemas of all structs that the routes read and answer. components: those that others refer to."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._parameters = set[type[Struct]]()
        bodies: set[type[Struct]] = {ProblemDocument}
        for endpoint in map(_endpoint, routes):
            bodies |= {answer for answer in answers_of(endpoint).values() if answer is not None}
            if isinstance(endpoint, Endpoint):
                (self._parameters if endpoint.from_query else bodies).add(endpoint.kind)
        kinds = sorted(bodies | self._parameters, key=lambda kind: kind.__name__)
        schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
        self._of = dict(zip(kinds, schemas, strict=True))
        components = _portable(components)
        self._fields = {kind: components.pop(kind.__name__) for kind in self._parameters}
        self.components = dict(sorted(components.items()))

    def of(self, kind: type[Struct]) -> Json:
        """A reference to it."""
        return self._of[kind]

    def parameters(self, kind: type[Struct]) -> Iterator[Json]:
        """Its fields as they stand in a query string, where what is null stays away."""
        told = self._fields[kind]
        for name, schema in told["properties"].items():
            [needed] = [each for each in schema.get("anyOf", [schema]) if each != {"type": "null"}]
            yield {"name": name, "in": "query", "required": name in told["required"], "schema": needed}


def answers_of(endpoint: AnyEndpoint) -> dict[int, type[Struct] | None]:
    """What it answers beside problems: a struct for each status, None for text.

    Raises TypeError when the return type of `told_by` does not tell it.
    """
    told = get_type_hints(endpoint.told_by)["return"]
    answers: dict[int, type[Struct] | None] = {}
    for kind in get_args(told) if get_origin(told) not in (None, *_replies()) else [told]:
        reply, body = (get_origin(kind) or kind), (*get_args(kind), None)[0]
        if reply is Text:
            answers[200] = None
        elif issubclass(reply, Reply):
            answers[_status(reply)] = body
        elif issubclass(reply, Struct) and reply is not Struct:
            answers[200] = reply
        else:
            raise TypeError(f"{endpoint.told_by.__qualname__} does not say what it answers: {told}")
    return answers


def _replies() -> tuple[type, ...]:
    return (Reply, *Reply.__subclasses__())


def _status(reply: type[Reply[Any]]) -> int:
    status = next(field.default for field in fields(reply) if field.name == "status")
    assert isinstance(status, int)
    return status


def _endpoint(route: Route) -> AnyEndpoint:
    assert isinstance(route.app, Endpoint | OpenEndpoint)
    return route.app


def _method(route: Route) -> str:
    [method] = (route.methods or set()) - {"HEAD"}
    return method


def _operation(route: Route, schemas: Schemas) -> Json:
    method, endpoint = _method(route), _endpoint(route)
    told: Json = {
        "operationId": _operation_id(method, route.path),
        "summary": _summary(endpoint.told_by),
        "tags": [_nouns(route.path)[0]],
        "responses": {str(status): _answer(status, kind, schemas) for status, kind in answers_of(endpoint).items()},
    }
    if isinstance(endpoint, OpenEndpoint):
        return {**told, "security": []}
    told["parameters"] = list(_parameters(route.path, endpoint, schemas))
    if endpoint.kind is not NoBody and not endpoint.from_query:
        content = {"application/json": {"schema": schemas.of(endpoint.kind)}}
        told["requestBody"] = {"required": not endpoint.may_be_empty, "content": content}
        told["x-body-limit"] = endpoint.body_limit
    told["responses"] |= {str(status): _problem(status, schemas) for status in _problems(route.path, endpoint)}
    told["x-roles"] = sorted({*endpoint.roles, "admin"})
    told["x-queue-scope"] = endpoint.queue_scope
    return told


def _parameters(path: str, endpoint: Endpoint[Any], schemas: Schemas) -> Iterator[Json]:
    if "{id}" in path:
        kind = TokenId if "/tokens/" in path else UUID
        yield {"name": "id", "in": "path", "required": True, "schema": _portable(msgspec.json.schema(kind))}
    if "{queue}" in path:
        yield {"name": "queue", "in": "path", "required": True, "schema": _portable(msgspec.json.schema(Name))}
    if endpoint.from_query:
        yield from schemas.parameters(endpoint.kind)
    if endpoint.keyed:
        yield _KEY


def _problems(path: str, endpoint: Endpoint[Any]) -> Iterator[int]:
    """The statuses of what may be wrong with a call, or with us."""
    reads_body = endpoint.kind is not NoBody and not endpoint.from_query
    holds_lease = "lease_token" in endpoint.kind.__struct_fields__
    if reads_body:
        yield from (400, 408, 413, 415)
    yield from (401, 403)
    if "{id}" in path:
        yield 404
    # Of jobs a newer server may have stored what this one cannot read.
    if endpoint.keyed or holds_lease or "/jobs" in path or path.endswith("/rotate"):
        yield 409
    if reads_body or endpoint.from_query or endpoint.keyed or "{queue}" in path:
        yield 422
    yield _SHED


def _answer(status: int, kind: type[Struct] | None, schemas: Schemas) -> Json:
    content: Json = {"text/plain": {"schema": {"type": "string"}}}
    if kind is not None:
        content = {"application/json": {"schema": {"type": "object"} if kind is Struct else schemas.of(kind)}}
    return {"description": HTTPStatus(status).phrase, "content": content}


def _problem(status: int, schemas: Schemas) -> Json:
    content = {"application/problem+json": {"schema": schemas.of(ProblemDocument)}}
    headers = {"headers": _RETRY_AFTER} if status == _SHED else {}
    return {"description": HTTPStatus(status).phrase, "content": content, **headers}


def _nouns(path: str) -> list[str]:
    """The path's words, without the version."""
    return [word for word in re.findall(r"[A-Za-z]+", path) if word != "v"]


def _operation_id(method: str, path: str) -> str:
    return method.lower() + "".join(word.title() for word in _nouns(path))


def _summary(told_by: Callable[..., Any]) -> str:
    first, *_ = (told_by.__doc__ or "").strip().splitlines() or [""]
    return first.removesuffix(".")


def _portable(schema: T) -> T:
    r"""The same with patterns as every dialect of regular expressions has them: `$` is the end there, not `\Z`."""
    text = msgspec.json.encode(schema).replace(rb"\\Z", b"$")
    return msgspec.json.decode(text, type=type(schema))
