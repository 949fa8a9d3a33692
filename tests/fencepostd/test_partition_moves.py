"""Partitions of a running installation move to a shard that is added meanwhile: nobody who works notices."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from psycopg.conninfo import make_conninfo

from bench.failed_calls import FailedCalls
from connectors.stack import KafkaBroker
from fencepost import CommandProducer, FencepostClient, JobSpec, RunContext, Worker, at
from schemas.codec import Codec
from schemas.ids import idempotent_id, partition_of_job, partition_of_run
from streams.event_feed import OwnerEvents
from tests.fencepostd.installation import Installation, installed
from tests.ledger_fixtures import PARTITIONS
from tests.streams.waiting import until

MOVED = (3, 5, 8)
LASTING = 2  # runs a partition that last through all the moves
JOBS_A_BATCH = 8
VISIBILITY_S = 90.0  # so that a heartbeat comes while partitions move, and may take a busy machine 15 s
AHEAD_S = 0.3


async def output_of(*arguments: str) -> str:
    """The command as people run it; its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fencepostd", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    return out.decode()


async def move(partition: int, *home: str) -> None:
    """On a machine so busy that the relay is seconds behind it is refused, and nothing has happened: then again."""
    for _ in range(10):
        said = await output_of("shard", "move-partition", str(partition), "--to", "1", *home)
        if f"partition {partition} is on shard 1" in said:
            return
        assert f"partition {partition} stays on shard 0" in said
    raise AssertionError(said)


class Traffic:
    """One-offs that come due all the time, some that last through all the moves, and a worker who completes them.

    failed: calls of the worker, and of who creates by HTTP.
    """

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self.created = 0
        self.executions: Counter[UUID] = Counter()
        self.failed: list[str] = []
        self._is_over = asyncio.Event()

    def client(self) -> FencepostClient:
        return FencepostClient(
            self._installation.url, self._installation.token, transport=FailedCalls(self.failed.append)
        )

    async def create_lasting(self) -> None:
        """They run when this returns, some of every partition that will move: a job's id comes from its key."""
        keys = (str(uuid4()) for _ in count())
        async with self.client() as client:
            for partition in MOVED * LASTING:
                key = next(key for key in keys if partition_of_job(idempotent_id("acme", key), PARTITIONS) == partition)
                await client.create_job(JobSpec(queue="lasting", schedule=at(datetime.now(UTC))), idempotency_key=key)
                self.created += 1
        await until(lambda: len(self.executions) == self.created)
        assert {partition_of_run(run_id) for run_id in self.executions} == set(MOVED)

    async def create_by_http(self) -> None:
        """One after the other, each with a key."""
        async with self.client() as client:
            while not self._is_over.is_set():
                due = datetime.now(UTC) + timedelta(seconds=AHEAD_S)
                await client.create_job(JobSpec(queue="mail", schedule=at(due)), idempotency_key=str(uuid4()))
                self.created += 1

    async def create_by_kafka(self) -> None:
        bootstrap, topics = self._installation.bootstrap, self._installation.topics
        with CommandProducer(bootstrap, tenant="acme", topic_prefix=topics.prefix) as producer:
            while not self._is_over.is_set():
                due = datetime.now(UTC) + timedelta(seconds=AHEAD_S)
                for _ in range(JOBS_A_BATCH):
                    producer.create_job(JobSpec(queue="mail", schedule=at(due)))
                self.created += JOBS_A_BATCH
                await asyncio.to_thread(producer.flush)
                await asyncio.sleep(0.2)  # the load's pace; nothing waits for it

    async def handle(self, run: RunContext) -> None:
        self.executions[run.run_id] += 1
        if run.queue == "lasting":
            await self._is_over.wait()

    async def work(self) -> Worker:
        """Until all that was created has been executed."""
        async with self.client() as client:
            worker = Worker(client, ["mail", "lasting"], self.handle, slots=50, visibility_s=VISIBILITY_S)
            working = asyncio.create_task(worker.run())
            await self._is_over.wait()
            await until(lambda: len(self.executions) >= self.created, deadline_s=60)
            await worker.drain(30)
            await working
        return worker

    def end(self) -> None:
        self._is_over.set()


def versions_in_order(bootstrap: str, topic: str) -> dict[bytes, list[int]]:
    """The versions of each run, as run-events has them from its beginning."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "order", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    events, versions, at_end = OwnerEvents(Codec()), defaultdict[bytes, list[int]](list), set[int]()
    while len(at_end) < PARTITIONS:
        for message in consumer.consume(500, 1.0):
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                at_end.add(message.partition())
                continue
            for event in events.of_record(message):
                if event.run_id is not None:
                    versions[event.run_id].append(event.version)
    consumer.close()
    return versions


@pytest.fixture
def new_dsn(postgres_server: str) -> Iterator[str]:
    """A database with nothing in it."""
    name = f"new_shard_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
        yield make_conninfo(postgres_server, dbname=name)
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.apache_kafka(reason="on tansu a join waits for half the session timeout")
async def test_partitions_move_to_a_new_shard_under_traffic_and_no_call_fails(
    kafka_broker: KafkaBroker, new_dsn: str, empty_ledger_dsn: str, tmp_path: Path
) -> None:
    home = ("--postgres", empty_ledger_dsn)
    async with installed(kafka_broker.bootstrap, [empty_ledger_dsn], tmp_path) as installation:
        traffic = Traffic(installation)
        working = asyncio.create_task(traffic.work())
        await traffic.create_lasting()
        creating = asyncio.gather(traffic.create_by_kafka(), traffic.create_by_http())
        await output_of("shard", "add", new_dsn, *home)
        for partition in MOVED:
            await move(partition, *home)
        listed = await output_of("shard", "list", *home)
        assert "3 partitions: 3 5 8" in listed
        seen = len(traffic.executions)
        await until(lambda: {partition_of_run(run_id) for run_id in list(traffic.executions)[seen:]} >= set(MOVED))
        traffic.end()
        await creating
        worker = await working
        assert traffic.failed == []
        assert set(traffic.executions.values()) == {1}
        assert len(traffic.executions) == traffic.created == worker.stats.completed
        assert (worker.stats.conflicts, worker.stats.abandoned, worker.stats.refused) == (0, 0, 0)
        await installation.completed(traffic.created, "mail", "lasting")
        told = await asyncio.to_thread(versions_in_order, installation.bootstrap, installation.topics.run_events)
    assert set(map(len, told.values())) == {3}  # scheduled, leased, completed
    assert all(versions == [1, 2, 3] for versions in told.values())
