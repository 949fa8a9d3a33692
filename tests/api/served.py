"""An API on a real socket, and a client of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from api.api_role import ApiRole
from api.app import ApiSettings
from ledger.connection import Pool, session
from ledger.shards import Shards
from ledger.tokens import Role, create_token


@dataclass
class Served:
    """A role that serves, and a client of it."""

    role: ApiRole
    token: str
    client: httpx.AsyncClient
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def lease(self, **fields: Any) -> list[dict[str, Any]]:
        response = await self.post("/v1/queues/mail/lease", {"workerId": "w", "max": 10, **fields})
        assert response.status_code == 200, response.text
        runs: list[dict[str, Any]] = response.json()["runs"]
        return runs

    async def metric(self, name: str) -> float:
        """The value of a metric without labels, or the sum over all of its labels."""
        text = (await self.client.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.partition("{")[0].partition(" ")[0] == name]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def sample(self, named: str) -> float:
        """One metric's value, by its name and labels as they stand there; 0 before there is any."""
        lines = (line.rpartition(" ") for line in (await self.client.get("/metrics")).text.splitlines())
        return next((float(value) for name, _, value in lines if name == named), 0.0)

    async def until(self, name: str, value: float) -> None:
        """Return once the metric has the value."""
        async with asyncio.timeout(10):
            while await self.metric(name) != value:  # noqa: ASYNC110
                await asyncio.sleep(0.005)  # metrics are all that tells it

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A bare one, for what no client sends."""
        address = urlsplit(self.role.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def raw_lease(self, **fields: Any) -> asyncio.StreamWriter:
        """A lease call on a connection of its own, which the caller may cut."""
        address = urlsplit(self.role.url)
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(self.lease_call(**fields))
        await writer.drain()
        return writer

    def lease_call(self, **fields: Any) -> bytes:
        """As it goes over the wire."""
        body = json.dumps({"workerId": "w", "max": 10, **fields}).encode()
        head = (
            f"POST /v1/queues/mail/lease HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.token}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@asynccontextmanager
async def serving(shards: Shards, pool: Pool, settings: ApiSettings, role: Role = "worker") -> AsyncIterator[Served]:
    """role: of the client's token."""
    api = ApiRole(shards, "127.0.0.1", 0, settings)
    async with session(pool) as conn:
        token = await create_token(conn, "acme", role)
    limits = httpx.Limits(max_connections=200)
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=api.url, headers=headers, limits=limits, timeout=30) as client:
        served = Served(api, token, client)
        running = asyncio.create_task(api.run(served.stop))
        await api.ready.wait()
        yield served
        served.stop.set()
        await running
