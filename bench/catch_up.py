"""Whether catching up delays what is on time: minutely jobs that were down with catchUp all, beside another queue.

    python -m bench.catch_up [--jobs 20000] [--down-hours 2] [--seconds 40] [--rate 500]

A broker, a Postgres and one streams role of their own, the role in this process. The other queue's one-offs are due
every 100 ms while the role catches up; their lateness runs from the due time to the hint's arrival at a consumer. How
long the role's event loop was held up is told as it seemed, and as what it computed meanwhile: others use the machine.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import click
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.cluster import report
from bench.commands import A_TRANSACTION, PARTITIONS, new_ledger, servers
from ledger.connection import Pool, ledger_pool
from ledger.fence import owner_transaction, take_over
from ledger.queue_settings import set_rate
from schemas.codec import Codec
from schemas.commands import CreateJob, JobSpec
from schemas.ids import new_id, partition_of_job
from streams.command_batch import apply_commands
from streams.ownership import Ownership
from streams.streams_role import StreamsRole
from streams.topics import Topics, create_topics

LIVE = "live"
LIVE_PERIOD = timedelta(milliseconds=100)
TAKING_OVER_S, TAKEN_OVER_A_S = 12.0, 4_000  # when all should be owned: what is due before is not looked at
WARM_UP_S = 5.0
MOST_LATE_MS = 5_000
LOOP_LOOK_S = 0.01


def create(spec: JobSpec, issued_at: datetime) -> CreateJob:
    return CreateJob(command_id=new_id(), tenant="bench", job_id=new_id(), issued_at=issued_at, spec=spec)


async def fill(pool: Pool, commands: list[CreateJob]) -> None:
    """Apply commands as an owner would have, before anybody owns anything."""
    by_partition: dict[int, list[CreateJob]] = {}
    for command in commands:
        by_partition.setdefault(partition_of_job(command.job_id, PARTITIONS), []).append(command)
    for partition, part in by_partition.items():
        fence = (await take_over(pool, partition, "bench")).fence
        for start in range(0, len(part), A_TRANSACTION):
            async with owner_transaction(pool, fence) as tx:
                await apply_commands(tx, part[start : start + A_TRANSACTION])


class HintWatch:
    """When the live queue's runs were first hinted, as a consumer sees it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.seen: dict[UUID, datetime] = {}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid4().hex})
        partitions = self._consumer.list_topics(topic, timeout=10).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        self._codec, self._stop = Codec(), threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            self._consumer.close()

    def _watch(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            now, record = datetime.now(UTC), self._codec.decode(message.value())[1]
            if record["queue"] == LIVE:
                ids = record["runIds"]
                for start in range(0, len(ids), 16):
                    self.seen.setdefault(UUID(bytes=ids[start : start + 16]), now)


class LoopWatch:
    """The longest that the event loop has not come round: by the clock, and by what its thread computed."""

    def __init__(self) -> None:
        self.held_up_ms = self.computed_ms = 0.0

    async def run(self) -> None:
        while True:
            clock_s, computed_s = time.monotonic(), time.thread_time()
            await asyncio.sleep(LOOP_LOOK_S)
            self.held_up_ms = max(self.held_up_ms, (time.monotonic() - clock_s - LOOP_LOOK_S) * 1000)
            self.computed_ms = max(self.computed_ms, (time.thread_time() - computed_s) * 1000)


async def count(pool: Pool, query: str) -> int:
    async with pool.connection() as conn:
        row = await (await conn.execute(query.encode())).fetchone()
    return int(row[0]) if row else 0


async def measure(jobs: int, down_hours: float, seconds: float, rate: float | None) -> dict[str, Any]:
    with servers() as (dsn, bootstrap), tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        ledger, topics = await new_ledger(dsn), Topics(f"bench-{uuid4().hex[:8]}")
        create_topics(bootstrap, topics, PARTITIONS)
        async with ledger_pool(ledger, size=2) as pool:
            minutely = JobSpec(queue="behind", schedule={"cron": "* * * * *"}, catch_up="all")
            down_since = datetime.now(UTC) - timedelta(hours=down_hours)
            await fill(pool, [create(minutely, down_since) for _ in range(jobs)])
            async with pool.connection() as conn:
                await set_rate(conn, "bench", "behind", rate, "bench")
            role, stop, ownership = (
                StreamsRole("bench", ledger, bootstrap, topics, Codec(), Path(folder)),
                asyncio.Event(),
                Ownership("bench", 6.0),
            )
            watch, loop = HintWatch(bootstrap, topics.ready), LoopWatch()
            begin = datetime.now(UTC) + timedelta(seconds=TAKING_OVER_S + jobs / TAKEN_OVER_A_S + WARM_UP_S)
            due = [begin + number * LIVE_PERIOD for number in range(int(timedelta(seconds=seconds) / LIVE_PERIOD))]
            await fill(pool, [create(JobSpec(queue=LIVE, schedule={"runAt": at.isoformat()}), begin) for at in due])
            with watch.watching():
                started_at = datetime.now(UTC)
                running, looking = asyncio.create_task(role.run(stop, ownership)), asyncio.create_task(loop.run())
                while len(ownership.partitions()) < PARTITIONS:  # noqa: ASYNC110 - nobody announces it
                    await asyncio.sleep(0.05)
                owned_at = datetime.now(UTC)
                await asyncio.sleep(max(0.0, (begin - owned_at).total_seconds()))
                before, began = await count(pool, "SELECT count(*) FROM runs"), time.monotonic()
                await asyncio.sleep(seconds)
                caught_up = (await count(pool, "SELECT count(*) FROM runs") - before) / (time.monotonic() - began)
                left = await count(pool, "SELECT count(*) FROM jobs WHERE next_fire_at < now() - interval '1 minute'")
                await asyncio.sleep(MOST_LATE_MS / 1000)
                looking.cancel()
            stop.set()
            await running
            live = await due_times(pool)
            return figures({run_id: at for run_id, at in live.items() if at >= owned_at}, watch.seen) | {
                "live runs due before all was owned": sum(at < owned_at for at in live.values()),
                "jobs": jobs,
                "all owned after, s": (owned_at - started_at).total_seconds(),
                "runs made up a second": caught_up,
                "jobs still behind": left,
                "loop held up at most, ms": loop.held_up_ms,
                "loop computing at most, ms": loop.computed_ms,
            }


async def due_times(pool: Pool) -> dict[UUID, datetime]:
    async with pool.connection() as conn:
        cursor = await conn.execute("SELECT run_id, due_at FROM runs WHERE queue = %s", (LIVE,))
        return dict(await cursor.fetchall())


def figures(due: dict[UUID, datetime], seen: dict[UUID, datetime]) -> dict[str, Any]:
    late_ms = sorted((seen[run_id] - at).total_seconds() * 1000 for run_id, at in due.items() if run_id in seen)
    return {
        "live runs": len(due),
        "live runs without a hint": len(due) - len(late_ms),
        "p50, ms": late_ms[len(late_ms) // 2],
        "p99, ms": late_ms[int(len(late_ms) * 0.99)],
        "max, ms": late_ms[-1],
    }


@click.command()
@click.option("--jobs", default=20_000, show_default=True)
@click.option("--down-hours", default=2.0, show_default=True)
@click.option("--seconds", default=40.0, show_default=True, help="how long the other queue is watched")
@click.option("--rate", type=float, help="the rate of the queue that is caught up with; none unless given")
def main(jobs: int, down_hours: float, seconds: float, rate: float | None) -> None:
    report("catch_up", asyncio.run(measure(jobs, down_hours, seconds, rate)))


if __name__ == "__main__":
    main()
