"""Fencepost on one machine: which roles `fencepostd up` runs, and what it prepares before they start."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg

from connectors.stack import LocalStack, RoleSpec, StackError
from ledger.connection import Connection, ledger_pool, session
from ledger.migrations import migrate
from ledger.partitions import PartitionStatus, init_partitions, list_partitions, reset_offsets
from ledger.tokens import create_token, find_token
from schemas.errors import FencepostError
from streams.topics import Topics, create_topics

Say = Callable[[str], None]

LOCAL_TENANT = "demo"
OWNED_DEADLINE_S = 60.0


def init(
    bootstrap: str,
    dsn: str,
    topics: Topics,
    partitions: int,
    say: Say,
    *,
    replication_factor: int = 1,
    post: bool = True,
) -> None:
    """Migrate the ledger, fix the number of partitions, make the topics. Idempotent.

    post: also what processes of the last version would not survive. Raises LedgerMismatch when the ledger
    or a topic already exists with another number of partitions.
    """
    for name in migrate(dsn, post=post):
        say(f"ledger: migrated {name}")
    created = create_topics(bootstrap, topics, partitions, replication_factor=replication_factor)
    if created:
        say(f"kafka: created {', '.join(created)}")
    asyncio.run(_init_ledger(dsn, partitions, topics.commands in created, say))


async def _init_ledger(dsn: str, partitions: int, new_commands_topic: bool, say: Say) -> None:
    async with ledger_pool(dsn, size=1) as pool, session(pool) as conn:
        await init_partitions(conn, partitions)
        if new_commands_topic and (count := await reset_offsets(conn)):
            say(f"ledger: {count} partitions had read a commands topic that is gone; they start over")


class Local:
    """The local installation of one state folder."""

    def __init__(
        self,
        state: Path,
        say: Say,
        *,
        kafka: str | None = None,
        postgres: str | None = None,
        partitions: int = 16,
        owners: int = 2,
        apis: int = 1,
    ) -> None:
        self.state, self._say, self._partitions = state.resolve(), say, partitions
        self._owners = [f"streams-{number}" for number in range(owners)]
        self.stack = LocalStack(self.state, kafka=kafka, postgres=postgres, say=say, init=self._init)
        for role in self._roles(apis):
            self.stack.add_role(role)

    def up(self) -> None:
        """Start everything that does not run yet, and wait until every partition has an owner: then commands apply."""
        self.stack.up()
        began = time.monotonic()
        while (owned := self._owned()) < self._partitions:
            if time.monotonic() - began > OWNED_DEADLINE_S:
                raise StackError(f"only {owned} of {self._partitions} partitions have an owner; see the owners' logs")
            time.sleep(0.1)
        self._say(f"all {self._partitions} partitions are owned")

    @property
    def url(self) -> str:
        """Where the API answers. Raises StackError before the first `up`."""
        return f"http://127.0.0.1:{self.stack.port_for('api')}"

    @property
    def token(self) -> str:
        """A token of the local tenant that may do everything. Raises StackError before the first `up`."""
        try:
            return self._token_file.read_text().strip()
        except FileNotFoundError:
            raise StackError(f"nothing was started in {self.state} yet: run `fencepostd up`") from None

    def partitions(self) -> list[PartitionStatus]:
        """Who owns what, as the ledger has it; nothing while it is away."""
        with suppress(StackError, FencepostError, psycopg.Error):
            return asyncio.run(_partitions(self.stack.dsn))
        return []

    def _owned(self) -> int:
        """How many partitions the owners themselves say they own."""
        answers = [_health(self.stack.port_for(owner)) for owner in self._owners]
        return sum(len(answer.get("partitions", ())) for answer in answers)

    @property
    def _token_file(self) -> Path:
        return self.state / "token"

    def _init(self, bootstrap: str, dsn: str) -> None:
        init(bootstrap, dsn, Topics(), self._partitions, self._say)
        asyncio.run(self._keep_token(dsn))

    async def _keep_token(self, dsn: str) -> None:
        """One token for the life of the state folder; a new one if the ledger does not know it."""
        async with ledger_pool(dsn, size=1) as pool, session(pool) as conn:
            if not await self._token_is_good(conn):
                token = await create_token(conn, LOCAL_TENANT, "admin")
                self._token_file.touch(mode=0o600)
                self._token_file.write_text(token + "\n")

    async def _token_is_good(self, conn: Connection) -> bool:
        return self._token_file.exists() and await find_token(conn, self.token) is not None

    def _roles(self, apis: int) -> list[RoleSpec]:
        history = self._role("history")
        streams = [self._role(owner, "streams", "--name", owner) for owner in self._owners]
        names = ["api"] + [f"api-{number}" for number in range(1, apis)]
        ready = [
            self._role(name, "api", "--history-url", f"http://127.0.0.1:{history.port}", ready=True) for name in names
        ]
        return [history, self._role("relay"), *streams, *ready]

    def _role(self, name: str, command: str | None = None, *options: str, ready: bool = False) -> RoleSpec:
        port = self.stack.port_for(name)
        argv = [sys.executable, "-m", "fencepostd", "run", command or name, "--port", str(port), *options]
        return RoleSpec(
            name,
            argv,
            lambda bootstrap, dsn: {
                "FENCEPOST_KAFKA": bootstrap,
                "FENCEPOST_POSTGRES": dsn,
                "FENCEPOST_STATE": str(self.state / name),
                "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            },
            health_url=f"http://127.0.0.1:{port}/{'readyz' if ready else 'healthz'}",
            port=port,
        )


def _health(port: int) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5).json()
        return answer
    except httpx.HTTPError:
        return {}


async def _partitions(dsn: str) -> list[PartitionStatus]:
    async with ledger_pool(dsn, size=1) as pool, session(pool) as conn:
        return await list_partitions(conn)
