"""Fencepost on one machine: which roles `fencepostd up` runs, and what it prepares before they start."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import psycopg

from connectors.stack import LocalStack, RoleSpec, StackError
from ledger.backups import read_consumed
from ledger.connection import Connection, ledger_pool, session
from ledger.migrations import migrate
from ledger.partitions import PartitionStatus, list_partitions, reset_offsets
from ledger.shard_map import HOME, ShardMap, init_shard, plan_shards, prove_shard
from ledger.shards import open_shards
from ledger.tokens import create_token, find_token
from schemas.errors import FencepostError, LedgerUnavailable
from streams.topics import Topics, create_topics, read_ends

Say = Callable[[str], None]
Ends = Callable[[Sequence[int]], Mapping[int, int]]

LOCAL_TENANT = "demo"
OWNED_DEADLINE_S = 60.0
LOOK_S = 10.0


def init(
    bootstrap: str,
    dsn: str,
    topics: Topics,
    partitions: int,
    say: Say,
    *,
    shards: Sequence[str] = (),
    replication_factor: int = 1,
    post: bool = True,
    kafka_config: Mapping[str, Any] | None = None,
) -> None:
    """Migrate every shard, fix the number of partitions and which shard has which, make the topics. Idempotent.

    dsn: home's. shards: the DSNs of shards 1, 2, …; for a ledger that has some already, none or all of them.
    post: also what processes of the last version would not survive. kafka_config: librdkafka settings beside ours, here
    and wherever it is asked for: TLS and SASL, see streams/kafka_security.py. Raises LedgerMismatch when the ledger
    or a topic already exists with another number of partitions, or the ledger with another number of shards.
    """
    _migrate(dsn, HOME, say, post=post)
    found = asyncio.run(_plan(dsn, partitions, shards))
    for shard, its_dsn in found.dsns.items():
        _migrate(its_dsn, shard, say, post=post)
    created = create_topics(
        bootstrap, topics, partitions, replication_factor=replication_factor, kafka_config=kafka_config
    )
    if created:
        say(f"kafka: created {', '.join(created)}")
    asking = partial(read_ends, bootstrap, topics.commands, kafka_config=kafka_config)
    ends = asking if topics.commands not in created else _none
    asyncio.run(_init_ledger({**found.dsns, HOME: dsn}, found, ends, say))


def _migrate(dsn: str, shard: int, say: Say, *, post: bool) -> None:
    for name in migrate(dsn, post=post):
        say(f"ledger{f' shard {shard}' if shard else ''}: migrated {name}")


async def _plan(dsn: str, partitions: int, shards: Sequence[str]) -> ShardMap:
    """The map to be. Where there is one already, each of its shards is there too: an empty database in the place of one
    that was lost, or another address, must not be taken for it."""
    async with _connection(dsn) as conn:
        found, is_there = await plan_shards(conn, partitions, shards)
    if is_there:
        for shard, its_dsn in found.dsns.items():
            async with _connection(its_dsn) as conn:
                await prove_shard(conn, shard, partitions)
    return found


async def _init_ledger(dsns: Mapping[int, str], found: ShardMap, ends: Ends, say: Say) -> None:
    """Home last: only with its map the others are used. ends: of partitions of the commands topic."""
    for shard, dsn in dsns.items():
        async with _connection(dsn) as conn:
            await init_shard(conn, found, shard)
            if elsewhere := await _read_elsewhere(conn, ends):
                count = await reset_offsets(conn, elsewhere)
                say(f"ledger: {count} partitions had read a commands topic that is gone; they start over")


async def _read_elsewhere(conn: Connection, ends: Ends) -> list[int]:
    """The partitions that have read further than the topic goes: they have read another one.

    What they have read is asked first. The other way round owners that work might seem to be ahead.
    """
    consumed = {partition: offset for partition, offset in (await read_consumed(conn)).items() if offset}
    found = await asyncio.to_thread(ends, list(consumed)) if consumed else {}
    return [partition for partition, offset in consumed.items() if offset > found.get(partition, 0)]


def _none(_: Sequence[int]) -> dict[int, int]:
    """The ends of a topic that was just made, whatever has come to it since."""
    return {}


@asynccontextmanager
async def _connection(dsn: str) -> AsyncIterator[Connection]:
    async with ledger_pool(dsn, size=1) as pool, session(pool) as conn:
        yield conn


class Local:
    """The local installation of one state folder."""

    def __init__(
        self,
        state: Path,
        say: Say,
        *,
        kafka: str | None = None,
        postgres: str | None = None,
        shards: int | None = None,
        standby: bool = False,
        partitions: int = 16,
        owners: int = 2,
        apis: int = 1,
        relays: int = 1,
        notice_s: float = 0.0,
    ) -> None:
        """notice_s: of the APIs, for a balancer before them."""
        self.state, self._say, self._partitions = state.resolve(), say, partitions
        self._owners = [f"streams-{number}" for number in range(owners)]
        self.stack = LocalStack(
            self.state, kafka=kafka, postgres=postgres, shards=shards, standby=standby, say=say, init=self._init
        )
        for role in self._roles(apis, relays, notice_s):
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
        with suppress(StackError, FencepostError, psycopg.Error, TimeoutError):
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
        init(bootstrap, dsn, Topics(), self._partitions, self._say, shards=self.stack.shard_dsns)
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

    def _roles(self, apis: int, relays: int, notice_s: float) -> list[RoleSpec]:
        history = self._role("history")
        relaying = [self._role(name, "relay") for name in names_of("relay", relays)]
        streams = [self._role(owner, "streams", "--name", owner) for owner in self._owners]
        options = ["--history-url", f"http://127.0.0.1:{history.port}", "--notice-seconds", str(notice_s)]
        ready = [self._role(name, "api", *options, ready=True) for name in names_of("api", apis)]
        return [history, *relaying, *streams, *ready]

    def _role(self, name: str, command: str | None = None, *options: str, ready: bool = False) -> RoleSpec:
        port = self.stack.port_for(name)
        argv = [sys.executable, "-m", "fencepostd", "run", command or name, "--port", str(port), *options]
        return RoleSpec(
            name,
            argv,
            lambda bootstrap, dsn: {
                "FENCEPOST_KAFKA": bootstrap,
                "FENCEPOST_KAFKA_SECURITY_PROTOCOL": "plaintext",  # whatever is set for an installation elsewhere
                "FENCEPOST_POSTGRES": dsn,
                "FENCEPOST_STATE": str(self.state / name),
                "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            },
            health_url=f"http://127.0.0.1:{port}/{'readyz' if ready else 'healthz'}",
            port=port,
        )


def names_of(role: str, count: int) -> list[str]:
    """What its processes are called."""
    return [role] + [f"{role}-{number}" for number in range(1, count)]


def _health(port: int) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5).json()
        return answer
    except httpx.HTTPError:
        return {}


async def _partitions(dsn: str) -> list[PartitionStatus]:
    """Of the shards that answer. Raises TimeoutError when home does not."""
    async with asyncio.timeout(LOOK_S), open_shards(dsn, size=1) as shards:
        answers = (await shards.ask_each(list_partitions)).values()
    return sorted(chain.from_iterable(each for each in answers if not isinstance(each, LedgerUnavailable)))
