"""The roles of one installation as processes that can be hurt, each with addresses of its own for Kafka and Postgres.

The servers are somebody else's, who may share them between installations: each has its database and topics.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import httpx
import psycopg

from connectors.stack import LocalStack, RoleSpec
from connectors.stack.part import Part, Say
from fencepostd.local import LOCAL_TENANT, init
from ledger.connection import ledger_pool, session
from ledger.tokens import create_token
from streams.topics import Topics
from tests.chaos.cluster import ROOT, wait_for

STOP_DEADLINE_S = 20.0
READY_DEADLINE_S = 180.0  # a machine that is busy with much else must not fail a harness


class Addresses(NamedTuple):
    """Where Kafka and Postgres are, as somebody is told."""

    kafka: str
    postgres: str


class Installation:
    """Roles by name: streams-N, api, api-N, relay, relay-N, history.

    servers: where the harness itself finds them. told: where a role is told that they are, by its name; the same unless
    given. source: the tree that the roles are run from. env: what a role, by its name, has in its environment as well.
    """

    def __init__(
        self,
        state: Path,
        servers: Addresses,
        roles: Sequence[str],
        *,
        say: Say,
        topics: Topics | None = None,
        partitions: int = 16,
        source: Path = ROOT,
        told: Callable[[str], Addresses] | None = None,
        env: Callable[[str], Mapping[str, str]] = lambda _: {},
    ) -> None:
        self.state, self.servers, self.roles = state, servers, list(roles)
        self.topics, self.partitions = topics or Topics(), partitions
        self.token = ""
        self._source, self._told, self._env, self._say = source, told or (lambda _: servers), env, say
        self.stack = LocalStack(state, kafka=servers.kafka, postgres=servers.postgres, say=say, init=self._init)
        for role in self.roles:
            self.stack.add_role(self._spec(role))

    def add(self, role: str) -> None:
        """One more role, which `start` starts."""
        self.roles.append(role)
        self.stack.add_role(self._spec(role))

    def up(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Start what does not run, and wait until every partition has an owner."""
        self.stack.up()
        wait_for(self.is_owned, deadline_s, "every partition has an owner")

    def down(self) -> None:
        """Stop every role."""
        self.stack.down()

    def start(self, role: str) -> None:
        """Start a role that does not run; returns once it says that it is ready."""
        self.stack.start_part(role)

    def stop(self, role: str) -> None:
        """SIGTERM, and SIGKILL if that takes too long."""
        Part(role, self.state).end(STOP_DEADLINE_S)

    def kill(self, role: str) -> None:
        self.stack.kill_part(role)

    def freeze(self, role: str) -> None:
        self.stack.signal_part(role, signal.SIGSTOP)

    def thaw(self, role: str) -> None:
        self.stack.signal_part(role, signal.SIGCONT)

    def pid(self, role: str) -> int | None:
        """None while it does not run."""
        return Part(role, self.state).pid

    def url(self, role: str = "api") -> str:
        return f"http://127.0.0.1:{self.stack.port_for(role)}"

    @property
    def owners(self) -> list[str]:
        return [role for role in self.roles if role.startswith("streams")]

    def is_owned(self) -> bool:
        """The owners say that together they hold all partitions, each once."""
        held = chain.from_iterable(self.held_by(owner) for owner in self.owners)
        return sorted(held) == list(range(self.partitions))

    def is_shared(self) -> bool:
        """And each of them holds some."""
        return all(self.held_by(owner) for owner in self.owners) and self.is_owned()

    def held_by(self, owner: str) -> list[int]:
        """The partitions that a streams process says it owns; none while it does not answer."""
        return self.said_by(owner) or []

    def said_by(self, owner: str) -> list[int] | None:
        """As `held_by`, but None while it does not answer."""
        try:
            answer = httpx.get(f"{self.url(owner)}/healthz", timeout=2, trust_env=False)
            partitions: list[int] = answer.json().get("partitions", [])
            return partitions
        except (httpx.HTTPError, ValueError):
            return None

    def holders(self) -> dict[int, str]:
        """Who owns each partition by the ledger: the name of the process, without its nonce; "" for nobody."""
        with psycopg.connect(self.servers.postgres, autocommit=True) as conn:
            sql = "SELECT partition, coalesce(split_part(owner, '/', 1), '') FROM partitions"
            return dict(conn.execute(sql).fetchall())

    def _init(self, bootstrap: str, dsn: str) -> None:
        init(bootstrap, dsn, self.topics, self.partitions, self._say)
        if not self.token:
            self.token = asyncio.run(_new_token(dsn))

    def _spec(self, role: str) -> RoleSpec:
        command = role.partition("-")[0]
        port = self.stack.port_for(role)
        options = {"streams": ["--name", role], "api": ["--history-url", self.url("history")]}.get(command, [])
        told = self._told(role)
        return RoleSpec(
            role,
            # -P: else the folder that the harness runs in would come before the tree.
            [sys.executable, "-P", "-m", "fencepostd", "run", command, "--port", str(port), *options],
            {
                "FENCEPOST_KAFKA": told.kafka,
                "FENCEPOST_POSTGRES": told.postgres,
                "FENCEPOST_TOPIC_PREFIX": self.topics.prefix,
                "FENCEPOST_STATE": str(self.state / role),
                "PYTHONPATH": os.pathsep.join(map(str, (self._source, self._source / "connectors/client/src"))),
                "PYTHONUNBUFFERED": "1",
                **self._env(role),
            },
            health_url=f"{self.url(role)}/{'readyz' if command == 'api' else 'healthz'}",
            port=port,
            ready_deadline_s=READY_DEADLINE_S,
        )


async def _new_token(dsn: str) -> str:
    async with ledger_pool(dsn, size=1) as pool, session(pool) as conn:
        return await create_token(conn, LOCAL_TENANT, "admin")
