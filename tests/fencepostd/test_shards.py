"""A whole installation on two shards: every role, from a command on Kafka to the history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from connectors.stack import KafkaBroker
from connectors.stack.ports import free_port
from fencepost import CommandProducer, JobSpec, at
from fencepostd import roles
from fencepostd.local import init
from fencepostd.settings import Settings
from ledger.connection import ledger_pool, session
from ledger.tokens import create_token
from schemas.ids import partition_of_run
from streams.topics import Topics
from tests.ledger_fixtures import PARTITIONS, Database

JOBS = 24


class Installation:
    """http: a client of the API whose token may do everything."""

    def __init__(self, bootstrap: str, topics: Topics, http: httpx.AsyncClient) -> None:
        self._bootstrap, self._topics, self._http = bootstrap, topics, http

    def create(self, queue: str) -> None:
        """Jobs that are due now, by commands on Kafka."""
        with CommandProducer(self._bootstrap, tenant="acme", topic_prefix=self._topics.prefix) as producer:
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

    async def completed(self, queue: str, count: int) -> None:
        """Return once the history has so many completed runs of the queue."""
        sql = f"SELECT count(*) FROM runs WHERE queue = '{queue}' AND state = 'completed'"
        async with asyncio.timeout(60):
            while True:
                answer = await self._http.post("/v1/query", json={"sql": sql})
                if answer.status_code == 200 and answer.json()["rows"] == [[count]]:
                    return
                await asyncio.sleep(0.1)


def shard_of(run_id: str) -> int:
    return partition_of_run(UUID(run_id)) % 2


@asynccontextmanager
async def installed(bootstrap: str, dsns: list[str], folder: Path) -> AsyncIterator[Installation]:
    """Every role in this process."""
    topics, stop = Topics(f"shards-{uuid4().hex[:8]}"), asyncio.Event()
    await asyncio.to_thread(init, bootstrap, dsns[0], topics, PARTITIONS, print, shards=dsns[1:])
    async with ledger_pool(dsns[0], size=1) as pool, session(pool) as conn:
        token = await create_token(conn, "acme", "admin")

    def settings(name: str) -> Settings:
        return Settings(dsns[0], bootstrap, topics, folder / name, port=free_port())

    history, api = settings("history"), settings("api")
    works: list[Coroutine[Any, Any, None]] = [
        roles.run_history(history, stop),
        roles.run_streams(settings("streams"), "streams", stop),
        roles.run_relay(settings("relay"), stop),
        roles.run_api(api, f"http://127.0.0.1:{history.port}", stop),
    ]
    running = [asyncio.create_task(work) for work in works]
    headers = {"authorization": f"Bearer {token}"}
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{api.port}", headers=headers, timeout=30) as http:
            await answering(http)
            yield Installation(bootstrap, topics, http)
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


@pytest.mark.apache_kafka(reason="on tansu a join waits for half the session timeout")
async def test_jobs_of_both_shards_run_and_one_shard_s_go_on_while_the_other_is_away(
    kafka_broker: KafkaBroker, postgres_server: str, empty_ledger_dsn: str, another_ledger_dsn: str, tmp_path: Path
) -> None:
    other = Database(postgres_server, another_ledger_dsn)
    async with installed(kafka_broker.bootstrap, [empty_ledger_dsn, another_ledger_dsn], tmp_path) as installation:
        await asyncio.to_thread(installation.create, "first")
        finished = await installation.work("first", lambda finished: len(finished) == JOBS)
        assert {shard_of(run_id) for run_id in finished} == {0, 1}
        await installation.completed("first", JOBS)

        other.go_away()
        await asyncio.to_thread(installation.create, "second")
        here = await installation.work("second", lambda finished: len(finished) > 0)
        other.come_back()
        rest = await installation.work("second", lambda finished: len(here) + len(finished) == JOBS)
        assert {shard_of(run_id) for run_id in here} == {0}
        assert {shard_of(run_id) for run_id in rest} >= {1}
        await installation.completed("second", JOBS)
