"""A whole installation, every role in this process, and a client of it that works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from api.budgets import ShedAt
from connectors.stack.ports import free_port
from fencepost import CommandProducer, JobSpec, at
from fencepostd import roles
from fencepostd.local import init
from fencepostd.settings import Settings
from ledger.connection import ledger_pool, session
from ledger.tokens import create_token
from streams.kafka_security import PLAINTEXT, KafkaSecurity
from streams.topics import Topics
from tests.ledger_fixtures import PARTITIONS

JOBS = 24


class Installation:
    """http: a client of the API. token: its own, which may do everything."""

    def __init__(
        self, bootstrap: str, topics: Topics, http: httpx.AsyncClient, token: str, security: KafkaSecurity
    ) -> None:
        self._kafka_config = security.librdkafka()
        self.bootstrap, self.topics, self._http, self.token = bootstrap, topics, http, token
        self.url = str(http.base_url)

    def create(self, queue: str) -> None:
        """Jobs that are due now, by commands on Kafka."""
        with CommandProducer(
            self.bootstrap, tenant="acme", topic_prefix=self.topics.prefix, kafka_config=self._kafka_config
        ) as producer:
            for _ in range(JOBS):
                producer.create_job(JobSpec(queue=queue, schedule=at(datetime.now(UTC))))

    async def work(self, queue: str, done: Callable[[list[str]], bool]) -> list[str]:
        """Lease, heartbeat and complete until that is enough; returns the run ids."""
        finished: list[str] = []
        async with asyncio.timeout(90):
            while not done(finished):
                ask = {"workerId": "w", "max": 5, "waitSeconds": 2, "requestId": str(uuid4())}
                answer = await self._http.post(f"/v1/queues/{queue}/lease", json=ask)
                if answer.status_code == 503:
                    continue
                leases = [{"runId": run["runId"], "leaseToken": run["leaseToken"]} for run in answer.json()["runs"]]
                for kind in ("heartbeat", "complete"):
                    answers = (await self._http.post(f"/v1/runs/{kind}", json={"runs": leases})).json()["results"]
                    assert [each["status"] for each in answers] == [200] * len(leases)
                finished += [lease["runId"] for lease in leases]
        return finished

    async def completed(self, count: int, *queues: str) -> None:
        """Return once the history has so many completed runs of these queues together."""
        names = ", ".join(f"'{queue}'" for queue in queues)
        sql = f"SELECT count(*) FROM runs WHERE queue IN ({names}) AND state = 'completed'"
        async with asyncio.timeout(60):
            while True:
                answer = await self._http.post("/v1/query", json={"sql": sql})
                if answer.status_code == 200 and answer.json()["rows"] == [[count]]:
                    return
                await asyncio.sleep(0.1)


@asynccontextmanager
async def installed(
    bootstrap: str, dsns: list[str], folder: Path, security: KafkaSecurity = PLAINTEXT
) -> AsyncIterator[Installation]:
    """Every role in this process."""
    topics, stop = Topics(f"shards-{uuid4().hex[:8]}"), asyncio.Event()
    kafka_config = security.librdkafka()
    await asyncio.to_thread(
        init, bootstrap, dsns[0], topics, PARTITIONS, print, shards=dsns[1:], kafka_config=kafka_config
    )
    async with ledger_pool(dsns[0], size=1) as pool, session(pool) as conn:
        token = await create_token(conn, "acme", "admin")

    def settings(name: str) -> Settings:
        return Settings(dsns[0], bootstrap, topics, folder / name, port=free_port(), security=security)

    history, api = settings("history"), settings("api")
    works: list[Coroutine[Any, Any, None]] = [
        roles.run_history(history, 30, stop),
        roles.run_streams(settings("streams"), "streams", stop),
        roles.run_relay(settings("relay"), stop),
        roles.run_api(api, f"http://127.0.0.1:{history.port}", stop, ShedAt()),
    ]
    running = [asyncio.create_task(work) for work in works]
    headers = {"authorization": f"Bearer {token}"}
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{api.port}", headers=headers, timeout=30) as http:
            await answering(http)
            yield Installation(bootstrap, topics, http, token, security)
    finally:
        stop.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*running)


async def answering(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await http.get("/readyz")
                return
            except httpx.ConnectError:
                await asyncio.sleep(0.05)
