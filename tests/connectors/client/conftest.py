"""Fixtures of the client's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio
import uvicorn

from api.api_role import ApiRole
from api.app import ApiSettings
from connectors.stack import KafkaBroker
from ledger.connection import Pool
from ledger.shards import Shards
from schemas.codec import Codec
from streams.topics import Topics, create_topics
from tests.api.owner import Owner
from tests.connectors.client.api_clients import Clients
from tests.connectors.client.lease_server import LeaseServer
from tests.connectors.client.worker_bench import Bench, eventually
from tests.ledger_fixtures import IDLE_S, PARTITIONS, PATIENCE_S


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest_asyncio.fixture
async def served() -> AsyncIterator[tuple[LeaseServer, str]]:
    """The in-memory server on a real loopback port, for a worker that is a process of its own."""
    server = LeaseServer()
    http = uvicorn.Server(uvicorn.Config(server.app(), host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    http.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(http._serve())
    await eventually(lambda: http.started)
    port = http.servers[0].sockets[0].getsockname()[1]
    yield server, f"http://127.0.0.1:{port}"
    http.should_exit = http.force_exit = True  # a poll that its client has left would be waited for
    await serving


@pytest.fixture(scope="module")
def topics(kafka_broker: KafkaBroker) -> Topics:
    topics = Topics(f"client-{uuid4().hex[:8]}")
    create_topics(kafka_broker.bootstrap, topics, PARTITIONS)
    return topics


@pytest.fixture
def patience_s() -> float:
    """How long the API's callers wait for their commands; a test in which nobody applies them has less."""
    return PATIENCE_S


@pytest_asyncio.fixture
async def api_url(shards: Shards, kafka_broker: KafkaBroker, topics: Topics, patience_s: float) -> AsyncIterator[str]:
    settings = ApiSettings(
        bootstrap=kafka_broker.bootstrap,
        commands_topic=topics.commands,
        ready_topic=topics.ready,
        codec=Codec(),
        applied_within_s=patience_s,
        look_every_s=(0.1, 0.2),
        idle_s=IDLE_S,
    )
    role, stop = ApiRole(shards, "127.0.0.1", 0, settings), asyncio.Event()
    running = asyncio.create_task(role.run(stop))
    await role.ready.wait()
    yield role.url
    stop.set()
    await running


@pytest_asyncio.fixture
async def owner(shards: Shards, kafka_broker: KafkaBroker, topics: Topics) -> Owner:
    owner = Owner(shards, kafka_broker.bootstrap, topics)
    await owner.take_over_all()
    return owner


@pytest.fixture
def clients(api_url: str, ledger_pool: Pool) -> Clients:
    return Clients(api_url, ledger_pool)
