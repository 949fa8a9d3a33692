"""Clients of a real API, for the tests of the SDK against it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from uuid import UUID

from fencepost import (
    FencepostClient,
    RunContext,
    Worker,
)
from ledger.connection import Pool, session
from ledger.runs import read_run
from ledger.tokens import Role, create_token
from tests.connectors.client.wire import Wire

TENANT = "acme"


class Clients:
    """Clients of the API, each with a token of its own and a wire that can fail."""

    def __init__(self, url: str, pool: Pool) -> None:
        self.url = url
        self._pool = pool

    async def token(self, role: Role = "admin") -> str:
        async with session(self._pool) as conn:
            return await create_token(conn, TENANT, role)

    @contextlib.asynccontextmanager
    async def client(self, role: Role = "admin", wire: Wire | None = None) -> AsyncIterator[FencepostClient]:
        async with FencepostClient(self.url, await self.token(role), transport=wire) as client:
            yield client

    @contextlib.asynccontextmanager
    async def working(
        self,
        handler: Callable[[RunContext], Any],
        *,
        queue: str | Sequence[str] = "mail",
        wire: Wire | None = None,
        **options: Any,
    ) -> AsyncIterator[Worker]:
        async with self.client("worker", wire) as client:
            worker = Worker(client, queue, handler, **options)
            running = asyncio.create_task(worker.run())
            try:
                yield worker
            finally:
                await worker.drain()
                await running

    async def state(self, run_id: UUID) -> tuple[str, int | None]:
        """A run's state and attempt; ended runs are gone from the table."""
        async with session(self._pool) as conn:
            row = await read_run(conn, run_id)
        return (row.state, row.attempt) if row else ("ended", None)
