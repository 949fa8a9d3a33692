"""/openapi.json: whole, valid, and made of what answers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route

from api.app import Api
from api.endpoints import Endpoint, OpenEndpoint
from api.openapi import answers_of, describe
from tests.api.conftest import Caller
from tests.api.described import Json, operations


@pytest.fixture
def document(api: Api) -> Json:
    return describe(api.routes())


async def test_the_document_is_there_without_a_token(api: Api, document: Json) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api.app()), base_url="http://api") as client:
        response = await client.get("/openapi.json")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == document


async def test_the_document_is_valid_openapi(document: Json) -> None:
    assert document["openapi"].startswith("3.1.")
    OpenAPIV31SpecValidator(document).validate()


async def test_every_route_is_told_with_a_name_and_a_summary_of_its_own(api: Api, document: Json) -> None:
    told = list(operations(document))
    assert {str(each) for each in told} == {
        f"{method} {route.path}" for route in api.routes() for method in route.methods or () if method != "HEAD"
    }
    assert len({each.told["operationId"] for each in told}) == len(told)
    assert [str(each) for each in told if not each.told["summary"]] == []


async def test_what_a_route_takes_is_what_its_endpoint_parses(document: Json) -> None:
    """Roles, limits and fields are the endpoint's own, under the names that they have in JSON."""
    told = {str(each): each for each in operations(document)}
    lease = told["POST /v1/queues/{queue}/lease"]
    assert (lease.roles, lease.told["x-body-limit"], lease.queue_scope) == (["admin", "worker"], 16 * 1024, "named")
    body = lease.body()
    assert body is not None
    assert body["required"] == ["workerId", "max"]
    assert body["properties"]["waitSeconds"] == {"type": "number", "minimum": 0, "maximum": 60, "default": 0.0}
    assert body["additionalProperties"] is False
    dead = told["GET /v1/dead"]
    assert [each["name"] for each in dead.parameters("query")][-1] == "limit"
    assert [each["name"] for each in told["DELETE /v1/jobs/{id}"].parameters("header")] == ["Idempotency-Key"]


async def test_patterns_are_those_of_every_dialect(document: Json) -> None:
    r"""`\Z` is Python's alone."""
    assert r"\Z" not in str(document)
    assert document["components"]["schemas"]["NewJob"]["properties"]["queue"]["pattern"] == "^[A-Za-z0-9_.:-]+$"


async def test_a_route_without_a_token_says_so(document: Json) -> None:
    no_token = {str(each) for each in operations(document) if each.roles is None}
    assert no_token == {"GET /healthz", "GET /readyz", "GET /metrics", "GET /openapi.json"}


async def test_a_handler_that_does_not_say_what_it_answers_is_refused() -> None:
    async def vague() -> Any:
        """Something."""

    with pytest.raises(TypeError, match="does not say"):
        answers_of(OpenEndpoint(vague))


async def test_every_endpoint_takes_a_token_or_is_known_to_take_none(api: Api) -> None:
    """What is neither would be answered past token, role and limits."""
    assert all(isinstance(route, Route) and isinstance(route.app, Endpoint | OpenEndpoint) for route in api.routes())


async def test_no_origin_is_let_in(worker: Caller) -> None:
    """CORS is off: a page of another origin gets no answer that its browser would show it."""
    asks = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    for method, path in (("OPTIONS", "/v1/lease"), ("GET", "/v1/whoami"), ("GET", "/healthz")):
        response = await worker.http.request(method, path, headers=asks)
        assert not [name for name in response.headers if name.startswith("access-control")]
    assert (await worker.http.request("OPTIONS", "/v1/lease", headers=asks)).status_code == 405
