"""An API on a ledger and topics, and what stands in for the owners beside it.

The tests of this folder share topics.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from api.app import Api, ApiSettings
from connectors.stack import KafkaBroker
from ledger.connection import Pool, session
from ledger.outbox import outbox_lag
from ledger.shards import Shards
from ledger.tokens import Role, create_token
from schemas.codec import Codec
from streams.history_service import HistoryRole
from streams.outbox_relay import OutboxRelay
from streams.topics import Topics, create_topics
from tests.api.owner import Owner
from tests.ledger_fixtures import IDLE_S, PARTITIONS, PATIENCE_S

TENANT = "acme"


@pytest.fixture(scope="session")
def shared_topics(kafka_broker: KafkaBroker) -> Topics:
    return new_topics(kafka_broker)


@pytest.fixture
def topics(kafka_broker: KafkaBroker, shared_topics: Topics) -> Topics:
    """Topics that the tests share: what one writes means nothing to another one's ledger.

    On the fallback broker each has its own: a topic's end is wrong there, and an owner would start among old commands.
    """
    return shared_topics if kafka_broker.flavour == "apache" else new_topics(kafka_broker)


def new_topics(broker: KafkaBroker) -> Topics:
    topics = Topics(f"api-{uuid4().hex[:8]}")
    create_topics(broker.bootstrap, topics, PARTITIONS)
    return topics


@pytest.fixture
def patience_s() -> float:
    """How long the API's callers wait for their commands; a test in which nobody applies them has less."""
    return PATIENCE_S


@pytest.fixture
def look_every_s() -> tuple[float, float]:
    """How often a queue is looked at on which a call waits; a test that no look may meddle with has more."""
    return 0.1, 0.2


@pytest.fixture
def settings(
    kafka_broker: KafkaBroker, topics: Topics, patience_s: float, look_every_s: tuple[float, float]
) -> ApiSettings:
    return ApiSettings(
        bootstrap=kafka_broker.bootstrap,
        commands_topic=topics.commands,
        ready_topic=topics.ready,
        codec=Codec(),
        applied_within_s=patience_s,
        history_catches_up_s=PATIENCE_S,
        look_every_s=look_every_s,
        idle_s=IDLE_S,
    )


class Past:
    """A relay and a history of one test alone."""

    def __init__(self, pool: Pool, role: HistoryRole, relay: asyncio.Task[None], stop_relay: asyncio.Event) -> None:
        self._pool = pool
        self._relay = relay
        self._stop_relay = stop_relay
        self.url = role.url

    async def relayed(self) -> None:
        """Return once the outbox is empty."""
        async with asyncio.timeout(20):
            while True:
                async with session(self._pool) as conn:
                    rows, _ = await outbox_lag(conn)
                if rows == 0:
                    return
                await asyncio.sleep(0.02)

    async def hears(self) -> None:
        """Return once the history has reached Kafka, which it does in its own time after it answers."""
        async with asyncio.timeout(20), httpx.AsyncClient() as client:
            while True:
                if (await client.get(f"{self.url}/healthz")).json()["kafka"]:
                    return
                await asyncio.sleep(0.02)

    async def stop_hearing(self) -> None:
        """Relay nothing any more: the history stays as it is."""
        self._stop_relay.set()
        await self._relay


@pytest_asyncio.fixture
async def past(ledger_dsn: str, ledger_pool: Pool, kafka_broker: KafkaBroker, tmp_path: Path) -> AsyncIterator[Past]:
    topics, stop, stop_relay = Topics(f"past-{uuid4().hex[:8]}"), asyncio.Event(), asyncio.Event()
    create_topics(kafka_broker.bootstrap, topics, PARTITIONS)
    role = HistoryRole(
        kafka_broker.bootstrap, topics, Codec(), tmp_path / "history.duckdb", "127.0.0.1", 0, idle_s=IDLE_S
    )
    relay = OutboxRelay(ledger_dsn, kafka_broker.bootstrap, topics, Codec())
    remembering, relaying = asyncio.create_task(role.run(stop)), asyncio.create_task(relay.run(stop_relay))
    await role.ready.wait()
    yield Past(ledger_pool, role, relaying, stop_relay)
    stop.set()
    stop_relay.set()
    await asyncio.gather(remembering, relaying)


def with_history(settings: ApiSettings, past: Past) -> ApiSettings:
    """An API that asks it: a test module's own `settings`."""
    return dataclasses.replace(settings, history_url=past.url)


@pytest_asyncio.fixture
async def api(shards: Shards, settings: ApiSettings) -> AsyncIterator[Api]:
    """A running API."""
    api = Api(shards, settings)
    async with api.running():
        yield api


@pytest.fixture
def impatience(api: Api) -> Callable[[], None]:
    """Call it where the history will never know."""

    def begin() -> None:
        api.history.catches_up_s = 0.2

    return begin


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

    async def patch(self, path: str, body: Any) -> httpx.Response:
        return await self.http.patch(path, json=body)

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
async def owner(shards: Shards, kafka_broker: KafkaBroker, topics: Topics) -> Owner:
    """Who owns every partition."""
    owner = Owner(shards, kafka_broker.bootstrap, topics)
    await owner.take_over_all()
    return owner
