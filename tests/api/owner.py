"""The owner of all partitions, as far as the API can tell: it makes due runs, hints them, and applies commands."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Message, Producer, TopicPartition

from api.ready_index import ReadyRun
from ledger.completions import expire_leases
from ledger.fence import Fence, owner_transaction, take_over
from ledger.jobs import NewJob, Policies, create_jobs
from ledger.shards import Shards
from schemas.codec import Codec
from schemas.commands import LANES, JobSpec, definition_json
from schemas.ids import new_id, partition_of_job, partition_of_run, run_id_for
from streams.command_applier import CommandApplier
from streams.fair_backlog import Batch
from streams.pending_caps import PendingCaps
from streams.rejections import CommandReturns, RawCommand
from streams.topics import Topics
from tests.ledger_fixtures import PARTITIONS

SPEC = JobSpec(queue="mail", schedule={"delaySeconds": 0})


class Owner:
    """bootstrap, topics: where commands come from and hints go to."""

    def __init__(self, shards: Shards, bootstrap: str, topics: Topics) -> None:
        self._shards = shards
        self._bootstrap = bootstrap
        self._topics = topics
        self._codec = Codec()
        self.fences: dict[int, Fence] = {}
        self.caps = PendingCaps()

    async def take_over_all(self) -> None:
        takeovers = await asyncio.gather(
            *(take_over(self._shards.of(partition), partition, "test-owner") for partition in range(PARTITIONS))
        )
        self.fences = {takeover.fence.partition: takeover.fence for takeover in takeovers}

    def ready(self, run_ids: Sequence[UUID], lane: int = 1) -> list[ReadyRun]:
        """The runs as the ready index has them."""
        return [ReadyRun(run_id, self.fences[partition_of_run(run_id)].epoch, lane) for run_id in run_ids]

    async def make_due(
        self,
        count: int = 1,
        *,
        tenant: str = "acme",
        queue: str = "mail",
        lane: int = 1,
        payload: str | None = None,
        max_attempts: int = 5,
        due_in_s: float = -1.0,
        concurrency_key: str | None = None,
    ) -> list[UUID]:
        """Jobs with a run each that is due; returns the run ids in due order."""
        by_partition: dict[int, list[NewJob]] = defaultdict(list)
        due = datetime.now(UTC) + timedelta(seconds=due_in_s)
        run_ids = []
        for position in range(count):
            job_id, at = new_id(), due + timedelta(microseconds=position)
            partition = partition_of_job(job_id, PARTITIONS)
            run_ids.append(run_id := run_id_for(job_id, at, partition))
            definition = definition_json(SPEC)
            policies = Policies(concurrency_key=concurrency_key)
            job = NewJob(job_id, tenant, queue, lane, definition, payload, max_attempts, at, at, run_id, at, policies)
            by_partition[partition].append(job)
        await asyncio.gather(*(self._create(partition, jobs) for partition, jobs in by_partition.items()))
        return run_ids

    async def _create(self, partition: int, jobs: Sequence[NewJob]) -> None:
        async with owner_transaction(self._shards.of(partition), self.fences[partition]) as tx:
            await create_jobs(tx, jobs)

    async def expire(self, run_id: UUID) -> bool:
        """End an attempt, if its lease has run out; whether it had."""
        async with owner_transaction(self._shards.of_run(run_id), self.fences[partition_of_run(run_id)]) as tx:
            return await expire_leases(tx.conn, [run_id]) != []

    def hint(
        self,
        run_ids: Sequence[UUID],
        *,
        tenant: str = "acme",
        queue: str = "mail",
        lane: int = 1,
        epoch: int | None = None,
        due_at: datetime | None = None,
    ) -> None:
        """Say on the ready topic that runs are due, or when they will be, each in a record of its own."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 0})
        for run_id in run_ids:
            fence = self.fences[partition_of_run(run_id)]
            record = {
                "tenant": tenant,
                "queue": queue,
                "lane": LANES[lane],
                "partition": fence.partition,
                "epoch": fence.epoch if epoch is None else epoch,
                "runIds": run_id.bytes,
                "dueAt": due_at,
            }
            producer.produce(self._topics.ready, self._codec.encode("ReadyHints", record))
        assert producer.flush(10) == 0

    @asynccontextmanager
    async def applying_commands(self) -> AsyncIterator[None]:
        """Inside, commands that are sent from now on are applied as they come."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "owner", "fetch.wait.max.ms": 10})
        ends = [TopicPartition(self._topics.commands, partition, OFFSET_END) for partition in range(PARTITIONS)]
        positions = await asyncio.to_thread(_end_positions, consumer, ends)
        consumer.assign(positions)
        task = asyncio.create_task(self._apply_all(consumer))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.to_thread(consumer.close)

    async def _apply_all(self, consumer: Consumer) -> None:
        returns = CommandReturns(self._bootstrap, self._topics.commands, self._topics.rejected, self._codec)
        appliers = {
            partition: CommandApplier(fence, self._shards.of(partition), returns, self._codec, PARTITIONS, self.caps)
            for partition, fence in self.fences.items()
        }
        while True:
            message = await asyncio.to_thread(consumer.poll, 0.05)
            if message is not None and not message.error():
                await appliers[message.partition()].apply(Batch.of([_raw(message)]))


def _end_positions(consumer: Consumer, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Fixed offsets, so that a command sent right after is read however late the consumer gets going."""
    return [TopicPartition(each.topic, each.partition, _end_of(consumer, each)) for each in partitions]


def _end_of(consumer: Consumer, partition: TopicPartition) -> int:
    """The partition's end; a topic that was just made may need a moment to find its leader."""
    for _ in range(50):
        try:
            end: int = consumer.get_watermark_offsets(partition, timeout=10)[1]
        except KafkaException:
            time.sleep(0.1)
        else:
            return end
    raise AssertionError(f"{partition} has no leader")


def _raw(message: Message) -> RawCommand:
    return RawCommand(message.partition(), message.offset(), message.key(), message.value(), message.headers() or ())
