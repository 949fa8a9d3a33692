"""The owner of all partitions, as far as the API can tell: it makes due runs, hints them, and applies commands."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from uuid import UUID

from confluent_kafka import Producer

from ledger.connection import Pool
from ledger.fence import Fence, owner_transaction, take_over
from ledger.jobs import NewJob, create_jobs
from schemas.codec import Codec
from schemas.commands import LANES, JobSpec, definition_json
from schemas.ids import new_id, partition_of_job, partition_of_run, run_id_for
from tests.ledger_fixtures import PARTITIONS

SPEC = JobSpec(queue="mail", schedule={"delaySeconds": 0})


class Owner:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.fences: dict[int, Fence] = {}

    async def take_over_all(self) -> None:
        for partition in range(PARTITIONS):
            takeover = await take_over(self._pool, partition, "test-owner")
            self.fences[partition] = takeover.fence

    async def make_due(
        self,
        count: int = 1,
        *,
        tenant: str = "acme",
        queue: str = "mail",
        lane: int = 1,
        payload: str | None = None,
        max_attempts: int = 5,
        overdue_s: float = 1.0,
    ) -> list[UUID]:
        """Jobs whose only run is due; returns the run ids in due order."""
        by_partition: dict[int, list[NewJob]] = defaultdict(list)
        due = datetime.now(UTC) - timedelta(seconds=overdue_s)
        run_ids = []
        for position in range(count):
            job_id, at = new_id(), due + timedelta(microseconds=position)
            partition = partition_of_job(job_id, PARTITIONS)
            run_ids.append(run_id := run_id_for(job_id, at, partition))
            job = NewJob(job_id, tenant, queue, lane, definition_json(SPEC), payload, max_attempts, at, at, run_id, at)
            by_partition[partition].append(job)
        for partition, jobs in by_partition.items():
            async with owner_transaction(self._pool, self.fences[partition]) as tx:
                await create_jobs(tx, jobs)
        return run_ids

    def hint(
        self,
        bootstrap: str,
        topic: str,
        run_ids: list[UUID],
        *,
        tenant: str = "acme",
        queue: str = "mail",
        lane: int = 1,
    ) -> None:
        """Say on the ready topic that runs are due."""
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        codec = Codec()
        for run_id in run_ids:
            fence = self.fences[partition_of_run(run_id)]
            record = {
                "tenant": tenant,
                "queue": queue,
                "lane": LANES[lane],
                "partition": fence.partition,
                "epoch": fence.epoch,
                "runIds": run_id.bytes,
            }
            producer.produce(topic, codec.encode("ReadyHints", record))
        assert producer.flush(10) == 0
