"""How many commands a second one streams role applies: packed in batch records, and one a record.

    python -m bench.commands [--count 20000] [--profile FILE]

A broker, a Postgres and the role of their own, the role in this process; the clock runs from the role's taking its
partitions to the last consumed offset. What is compared is the ratio of the two, and both with the transactions alone.
"""

from __future__ import annotations

import asyncio
import cProfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from uuid import uuid4

import click
import psycopg
from confluent_kafka import Producer
from psycopg.conninfo import make_conninfo

from connectors.stack import KafkaBroker, PostgresServer, default_cache_dir
from ledger.connection import Pool, ledger_pool
from ledger.fence import owner_transaction, take_over
from ledger.migrations import migrate
from ledger.partitions import init_partitions
from schemas.codec import NAMESPACE, Codec
from schemas.commands import CreateJob, JobSpec, command_record, encode_command
from schemas.ids import new_id, partition_of_job
from streams.command_batch import apply_commands
from streams.ownership import Ownership
from streams.streams_role import StreamsRole
from streams.topics import Topics, create_topics

PARTITIONS = 16
A_RECORD = 100
A_TRANSACTION = 500
SPEC = JobSpec(queue="bench", schedule={"runAt": "2100-01-01T00:00:00Z"}, payload='{"to":"somebody"}')
Wire = list[tuple[int, bytes]]


def commands(count: int) -> dict[int, list[CreateJob]]:
    """Creates of one-off jobs, by partition."""
    by_partition: defaultdict[int, list[CreateJob]] = defaultdict(list)
    for _ in range(count):
        job_id = new_id()
        command = CreateJob(command_id=new_id(), tenant="bench", job_id=job_id, issued_at=datetime.now(UTC), spec=SPEC)
        by_partition[partition_of_job(job_id, PARTITIONS)].append(command)
    return by_partition


def one_a_record(codec: Codec, count: int) -> Wire:
    return [(at, encode_command(codec, each)) for at, part in commands(count).items() for each in part]


def packed(codec: Codec, count: int) -> Wire:
    return [(at, _batch(codec, chunk)) for at, part in commands(count).items() for chunk in _chunks(part, A_RECORD)]


def _batch(codec: Codec, chunk: Sequence[CreateJob]) -> bytes:
    members = [(f"{NAMESPACE}.CreateJob", command_record(command)) for command in chunk]
    return codec.encode("CommandBatch", {"commands": members})


def _chunks(part: Sequence[CreateJob], size: int) -> Iterator[Sequence[CreateJob]]:
    for start in range(0, len(part), size):
        yield part[start : start + size]


def produce(bootstrap: str, topic: str, records: Wire) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"})
    for partition, value in records:
        producer.produce(topic, value, partition=partition)
        producer.poll(0)
    assert producer.flush(60) == 0


@contextmanager
def servers() -> Iterator[tuple[str, str]]:
    """The DSN of an empty Postgres and the address of a broker."""
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder, ExitStack() as stack:
        Path(folder).chmod(0o755)  # Postgres runs as a user of its own
        postgres = PostgresServer(Path(folder), default_cache_dir())
        kafka = KafkaBroker(Path(folder), default_cache_dir())
        for server in (postgres, kafka):
            stack.callback(server.stop)
            server.start()
        yield postgres.dsn, kafka.bootstrap


async def new_ledger(dsn: str) -> str:
    """A database of its own, so that no measurement works in the tables of another."""
    name = f"bench_{uuid4().hex[:8]}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(f"CREATE DATABASE {name}")
    own = make_conninfo(dsn, dbname=name)
    migrate(own)
    async with await psycopg.AsyncConnection.connect(own, autocommit=True) as conn:
        await init_partitions(conn, PARTITIONS)
    return own


async def transactions_alone(dsn: str, count: int) -> float:
    """Commands a second of the fenced transactions by themselves: the floor's figure."""
    by_partition = commands(count)
    async with ledger_pool(await new_ledger(dsn), size=8) as pool:
        fences = {partition: (await take_over(pool, partition, "bench")).fence for partition in by_partition}
        began = perf_counter()
        for partition, part in by_partition.items():
            for chunk in _chunks(part, A_TRANSACTION):
                async with owner_transaction(pool, fences[partition]) as tx:
                    await apply_commands(tx, chunk)
        return count / (perf_counter() - began)


async def through_the_role(dsn: str, bootstrap: str, records: Wire, count: int) -> float:
    """Commands a second from the topic to the ledger."""
    topics, ledger = Topics(f"bench-{uuid4().hex[:8]}"), await new_ledger(dsn)
    create_topics(bootstrap, topics, PARTITIONS)
    produce(bootstrap, topics.commands, records)
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        role, stop, ownership = (
            StreamsRole("bench", ledger, bootstrap, topics, Codec(), Path(folder)),
            asyncio.Event(),
            Ownership("bench", 6.0),
        )
        running = asyncio.create_task(role.run(stop, ownership))
        async with ledger_pool(ledger, size=1) as pool:
            while len(ownership.partitions()) < PARTITIONS:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
            began, before = perf_counter(), await _applied(pool)
            while await _applied(pool) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            rate = (count - before) / (perf_counter() - began)
        stop.set()
        await running
    return rate


async def _applied(pool: Pool) -> int:
    async with pool.connection() as conn:
        row = await (await conn.execute("SELECT count(*) FROM jobs")).fetchone()
    return int(row[0]) if row else 0


async def measure(count: int, profile: Path | None) -> None:
    codec = Codec()
    with servers() as (dsn, bootstrap):
        alone = await transactions_alone(dsn, count)
        click.echo(f"transactions alone       {alone:8,.0f} commands/s")
        for name, records in (("packed", packed(codec, count)), ("one a record", one_a_record(codec, count))):
            profiler = cProfile.Profile() if profile and name == "one a record" else None
            if profiler:
                profiler.enable()
            rate = await through_the_role(dsn, bootstrap, records, count)
            if profiler:
                profiler.disable()
                profiler.dump_stats(str(profile))
            click.echo(f"{name:24} {rate:8,.0f} commands/s  {rate / alone:5.2f} of the transactions alone")


@click.command()
@click.option("--count", default=20_000, show_default=True, help="commands a measurement")
@click.option("--profile", type=click.Path(path_type=Path), help="write cProfile's figures of the one-a-record path")
def main(count: int, profile: Path | None) -> None:
    asyncio.run(measure(count, profile))


if __name__ == "__main__":
    main()
