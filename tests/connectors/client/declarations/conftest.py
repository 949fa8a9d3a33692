"""The real API over TCP, an owner that applies commands, and the `fencepost` command in front of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from api.api_role import ApiRole
from api.app import ApiSettings
from connectors.stack import KafkaBroker
from fencepost.cli import main
from fencepost.client import FencepostClient
from ledger.connection import Pool, session
from ledger.shards import Shards
from ledger.tokens import create_token
from schemas.codec import Codec
from streams.topics import Topics, create_topics
from tests.api.owner import Owner
from tests.ledger_fixtures import IDLE_S, PARTITIONS, PATIENCE_S

TENANT = "acme"


@pytest.fixture(scope="module")
def topics(kafka_broker: KafkaBroker) -> Topics:
    topics = Topics(f"declared-{uuid4().hex[:8]}")
    create_topics(kafka_broker.bootstrap, topics, PARTITIONS)
    return topics


@pytest_asyncio.fixture
async def api_url(shards: Shards, kafka_broker: KafkaBroker, topics: Topics) -> AsyncIterator[str]:
    settings = ApiSettings(
        bootstrap=kafka_broker.bootstrap,
        commands_topic=topics.commands,
        ready_topic=topics.ready,
        codec=Codec(),
        applied_within_s=PATIENCE_S,
        idle_s=IDLE_S,
    )
    role, stop = ApiRole(shards, "127.0.0.1", 0, settings), asyncio.Event()
    running = asyncio.create_task(role.run(stop))
    await role.ready.wait()
    yield role.url
    stop.set()
    await running


@pytest_asyncio.fixture
async def owner(shards: Shards, kafka_broker: KafkaBroker, topics: Topics) -> AsyncIterator[Owner]:
    owner = Owner(shards, kafka_broker.bootstrap, topics)
    await owner.take_over_all()
    async with owner.applying_commands():
        yield owner


@pytest_asyncio.fixture
async def token(ledger_pool: Pool) -> str:
    async with session(ledger_pool) as conn:
        return await create_token(conn, TENANT, "producer")


@pytest_asyncio.fixture
async def client(api_url: str, token: str) -> AsyncIterator[FencepostClient]:
    async with FencepostClient(api_url, token) as client:
        yield client


class Shell:
    """The `fencepost` command in a folder with a file of jobs."""

    def __init__(self, url: str, token: str, folder: Path) -> None:
        self.env = {"FENCEPOST_URL": url, "FENCEPOST_TOKEN": token}
        self.file = folder / "billing.yaml"
        self.kept = folder / "plan.json"

    async def __call__(self, *args: str | Path, stdin: str | None = None) -> Result:
        words = [str(arg) for arg in args]
        return await asyncio.to_thread(
            lambda: CliRunner().invoke(main, words, env=self.env, input=stdin, catch_exceptions=False)
        )

    def declare(self, **jobs: str) -> None:
        """The file has these jobs from now on."""
        lines = [f"  {name}: {body}\n" for name, body in jobs.items()]
        self.file.write_text("jobs:\n" + "".join(lines) if lines else "jobs: {}\n")

    async def plan(self, *options: str) -> str:
        """The hash of the plan of the file."""
        result = await self("plan", self.file, *options)
        assert result.exit_code == 0, result.output
        [line] = [line for line in result.output.splitlines() if line.startswith("plan ")]
        return line.removeprefix("plan ")

    async def applied(self, *args: str | Path) -> str:
        """What applying says."""
        result = await self("apply", *args)
        assert result.exit_code == 0, result.output
        return result.output


@pytest.fixture
def shell(api_url: str, owner: Owner, token: str, tmp_path: Path) -> Shell:
    assert owner.fences
    return Shell(api_url, token, tmp_path)
