"""Streams processes of one installation, as roles in the test's own process, and commands for them all the while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from ledger.connection import Pool, session
from ledger.partitions import PartitionStatus, list_partitions
from schemas.codec import Codec
from schemas.commands import Command
from streams.faust_app import SESSION_TIMEOUT_S
from streams.outbox_relay import OutboxRelay
from streams.ownership import Ownership
from streams.streams_role import StreamsRole
from streams.topics import Topics
from tests.ledger_fixtures import PARTITIONS
from tests.streams.commands import create, job_on, pause, produce, resume
from tests.streams.ledger_dump import fetch
from tests.streams.waiting import until

ALL = list(range(PARTITIONS))
MEMBERSHIP_KNOWN_S = 1.0


@dataclass
class Streams:
    """Streams processes of one installation, as roles in this process."""

    dsn: str
    pool: Pool
    bootstrap: str
    folder: Path
    topics: Topics = field(default_factory=lambda: Topics(f"test-{uuid4().hex[:12]}"))

    @asynccontextmanager
    async def role(
        self, name: str, session_timeout_s: float = SESSION_TIMEOUT_S, stop: asyncio.Event | None = None
    ) -> AsyncIterator[Ownership]:
        """A running role, stopped gracefully at the end, or by `stop` before that. Fails if it failed."""
        ownership, stop = Ownership(name, MEMBERSHIP_KNOWN_S), stop or asyncio.Event()
        folder = self.folder / name
        role = StreamsRole(
            name, self.dsn, self.bootstrap, self.topics, Codec(), folder, session_timeout_s=session_timeout_s
        )
        task = asyncio.create_task(role.run(stop, ownership))
        try:
            yield ownership
        finally:
            stop.set()
            async with asyncio.timeout(30):
                await task

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        task = asyncio.create_task(OutboxRelay(self.dsn, self.bootstrap, self.topics, Codec()).run(stop))
        try:
            yield
        finally:
            stop.set()
            async with asyncio.timeout(30):
                await task

    async def partitions(self) -> list[PartitionStatus]:
        async with session(self.pool) as conn:
            return await list_partitions(conn)

    def produce(self, commands: Sequence[Command]) -> None:
        produce(self.bootstrap, self.topics.commands, commands)

    async def consumed(self, records: int) -> bool:
        return sum(status.consumed_offset for status in await self.partitions()) >= records


class Toggles:
    """Jobs that are paused and resumed in turn: their versions tell whether each command took effect, once, in turn."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.jobs = [job_on(partition) for partition in ALL]
        self.rounds = 0
        self.records = 0

    def begin(self) -> None:
        self._send([create(job_id) for job_id in self.jobs])

    def toggle(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self._send([command(job_id) for job_id in self.jobs for command in (pause, resume)])
            self.rounds += 1

    async def keep_on(self, while_running: asyncio.Event) -> None:
        while while_running.is_set():
            await asyncio.to_thread(self.toggle)
            await asyncio.sleep(0.05)

    async def check(self) -> None:
        await until(lambda: self._streams.consumed(self.records))
        versions = dict(await fetch(self._streams.pool, "SELECT job_id, version FROM jobs"))
        assert versions == dict.fromkeys(self.jobs, 1 + 2 * self.rounds)
        assert await fetch(self._streams.pool, "SELECT DISTINCT outcome FROM applied_commands") == ["applied"]

    def _send(self, commands: Sequence[Command]) -> None:
        self._streams.produce(commands)
        self.records += len(commands)


@asynccontextmanager
async def toggling(streams: Streams) -> AsyncIterator[Toggles]:
    """Commands all the while; at the end each must have been applied once, in order."""
    toggles, running = Toggles(streams), asyncio.Event()
    toggles.begin()
    running.set()
    task = asyncio.create_task(toggles.keep_on(running))
    try:
        yield toggles
    finally:
        running.clear()
        await task
    await toggles.check()
