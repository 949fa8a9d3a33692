"""An API on a ledger and topics, and what stands in for the owners beside it.

The tests of this folder share one database, emptied before each of them, and topics.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from api.app import Api, ApiSettings
from connectors.stack import KafkaBroker
from ledger.connection import Pool, session
from ledger.tokens import Role, create_token
from schemas.codec import Codec
from streams.topics import Topics, create_topics
from tests.api.owner import Owner
from tests.ledger_fixtures import PARTITIONS, empty_ledger, shared_ledger

TENANT = "acme"


@pytest.fixture(scope="session")
def topics(kafka_broker: KafkaBroker) -> Topics:
    """Topics that the session's tests share: what one test writes means nothing to another one's ledger."""
    topics = Topics(f"api-{uuid4().hex[:8]}")
    create_topics(kafka_broker.bootstrap, topics, PARTITIONS)
    return topics


@pytest.fixture(scope="session")
def shared_ledger_dsn(postgres_server: str, ledger_template: str) -> Iterator[str]:
    with shared_ledger(postgres_server, ledger_template, "ledger_of_api_tests") as dsn:
        yield dsn


@pytest.fixture
def ledger_dsn(shared_ledger_dsn: str) -> str:
    """In place of the database of its own that a test elsewhere has."""
    empty_ledger(shared_ledger_dsn)
    return shared_ledger_dsn


@pytest.fixture
def settings(kafka_broker: KafkaBroker, topics: Topics) -> ApiSettings:
    return ApiSettings(
        partitions=PARTITIONS,
        bootstrap=kafka_broker.bootstrap,
        commands_topic=topics.commands,
        ready_topic=topics.ready,
        codec=Codec(),
    )


@pytest_asyncio.fixture
async def api(ledger_pool: Pool, settings: ApiSettings) -> AsyncIterator[Api]:
    """A running API."""
    api = Api(ledger_pool, settings)
    async with api.running():
        yield api


class Caller(NamedTuple):
    """One client with one token. Every call is a POST of JSON unless it says otherwise."""

    http: httpx.AsyncClient

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(path, json=body, headers=named)

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(path)

    async def delete(self, path: str) -> httpx.Response:
        return await self.http.delete(path)

    async def put(self, path: str, body: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.put(path, json=body, headers=named)

    async def lease(self, queue: str = "mail", **fields: Any) -> list[dict[str, Any]]:
        """The runs of a successful lease call."""
        response = await self.post(f"/v1/queues/{queue}/lease", {"workerId": "w1", "max": 10, **fields})
        assert response.status_code == 200, response.text
        runs: list[dict[str, Any]] = response.json()["runs"]
        return runs


class Callers:
    """Makes clients of an API inside this process."""

    def __init__(self, api: Api, pool: Pool) -> None:
        self._transport = httpx.ASGITransport(api.app())
        self._pool = pool

    async def token(self, role: Role, tenant: str = TENANT, queues: list[str] | None = None) -> str:
        async with session(self._pool) as conn:
            return await create_token(conn, tenant, role, queues)

    async def __call__(self, role: Role, tenant: str = TENANT, queues: list[str] | None = None) -> Caller:
        return self.with_token(await self.token(role, tenant, queues))

    def with_token(self, token: str) -> Caller:
        headers = {"authorization": f"Bearer {token}"}
        return Caller(httpx.AsyncClient(transport=self._transport, base_url="http://api", headers=headers))


@pytest.fixture
def callers(api: Api, ledger_pool: Pool) -> Callers:
    return Callers(api, ledger_pool)


@pytest_asyncio.fixture
async def worker(callers: Callers) -> Caller:
    return await callers("worker")


@pytest_asyncio.fixture
async def operator(callers: Callers) -> Caller:
    return await callers("operator")


@pytest_asyncio.fixture
async def producer(callers: Callers) -> Caller:
    return await callers("producer")


@pytest_asyncio.fixture
async def owner(ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics) -> Owner:
    """Who owns every partition."""
    owner = Owner(ledger_pool, kafka_broker.bootstrap, topics)
    await owner.take_over_all()
    return owner
