"""What every answer says to browsers and caches, whoever gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from api.app import ApiSettings
from connectors.stack.ports import free_port
from ledger.connection import Pool
from ledger.shards import Shards
from schemas.http_headers import SECURITY_HEADERS
from streams.embedded_server import serve_health
from tests.api.served import Served, serving


@pytest_asyncio.fixture
async def served(shards: Shards, ledger_pool: Pool, settings: ApiSettings) -> AsyncIterator[Served]:
    async with serving(shards, ledger_pool, settings) as served:
        yield served


def missing(answer: httpx.Response) -> list[str]:
    return [name for name, value in SECURITY_HEADERS if answer.headers.get_list(name) != [value]]


async def test_every_answer_of_the_api_has_them_also_one_to_a_wrong_call(served: Served) -> None:
    client = served.client
    answers = [
        await client.get("/healthz"),
        await client.get("/openapi.json"),
        await client.get("/v1/whoami"),
        await client.get("/v1/whoami", headers={"authorization": ""}),
        await client.get("/v1/nothing"),
        await client.put("/v1/lease"),
        await client.post("/v1/lease", content=b"{"),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 401, 404, 405, 400]
    assert {str(answer.url): missing(answer) for answer in answers if missing(answer)} == {}
    assert "server" not in answers[0].headers


async def test_what_is_no_http_gets_them_too(served: Served) -> None:
    async with served.connection() as (reader, writer), asyncio.timeout(10):
        writer.write(b"nonsense\r\n\r\n")
        said = (await reader.read()).decode()
    assert said.startswith("HTTP/1.1 400")
    assert [name for name, value in SECURITY_HEADERS if f"{name}: {value}" not in said] == []


async def test_the_ops_endpoints_of_the_other_roles_have_them() -> None:
    stop, port = asyncio.Event(), free_port()
    serving_health = asyncio.create_task(serve_health("127.0.0.1", port, dict, lambda: True, stop))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client, asyncio.timeout(10):
        for path in ("/healthz", "/readyz", "/metrics", "/nothing"):
            answer = await client.get(path)
            assert missing(answer) == []
            assert "server" not in answer.headers
    stop.set()
    await serving_health
