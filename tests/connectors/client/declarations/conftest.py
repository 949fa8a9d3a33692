"""An owner that applies commands, and the `fencepost` command in front of the real API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from fencepost.cli import main
from fencepost.client import FencepostClient
from ledger.connection import Pool, session
from ledger.tokens import create_token
from tests.api.owner import Owner
from tests.connectors.client.api_clients import TENANT


@pytest_asyncio.fixture
async def owner(owner: Owner) -> AsyncIterator[Owner]:
    """Of all partitions; it applies commands."""
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
