"""What a command costs that one streams role applies: packed in batch records, and one a record.

    python -m bench.commands [--count 20000] [--rounds 3]
    python -m bench.commands --behind 1000000

A broker and a Postgres of their own, and the role in a process of its own, whose CPU time is what counts: other load on
the machine changes it little. It runs from the first record to the last consumed offset. Beside it the transactions
alone, by a bare client.

With --behind: how late another tenant's commands are, one after the other, behind so many creates of one tenant.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import NamedTuple
from uuid import uuid4

import click
import psycopg
import uvloop
from confluent_kafka import Producer
from psycopg.conninfo import make_conninfo

from bench.cluster import wait_until
from bench.cpu import cpu_s, measured, postgres_pid, with_children_s
from connectors.stack import KafkaBroker, PostgresServer, default_cache_dir
from ledger.connection import ledger_pool
from ledger.fence import owner_transaction, take_over
from ledger.migrations import migrate
from ledger.shard_map import init_alone
from schemas.codec import NAMESPACE, Codec
from schemas.commands import Command, CreateJob, JobSpec, PauseJob, ResumeJob, command_record, encode_command
from schemas.ids import new_id, partition_of_job
from streams.command_batch import apply_commands
from streams.ownership import Ownership
from streams.streams_role import StreamsRole
from streams.topics import Topics, create_topics

PARTITIONS = 16
A_RECORD = 100
A_TRANSACTION = 500
A_PRODUCER_HOLDS = 50_000  # records
PROBES = 20
SETTLED_S = 2.0  # after taking over, before anything is measured
CONSUMED = "SELECT sum(consumed_offset)::int FROM partitions"
SPEC = JobSpec(queue="bench", schedule={"runAt": "2100-01-01T00:00:00Z"}, payload='{"to":"somebody"}')
Wire = list[tuple[int, bytes]]


def commands(count: int, tenant: str = "bench") -> dict[int, list[CreateJob]]:
    """Creates of one-off jobs, by partition."""
    by_partition: defaultdict[int, list[CreateJob]] = defaultdict(list)
    for _ in range(count):
        job_id = new_id()
        command = CreateJob(command_id=new_id(), tenant=tenant, job_id=job_id, issued_at=datetime.now(UTC), spec=SPEC)
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
        while len(producer) > A_PRODUCER_HOLDS:
            producer.poll(0.1)
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
        await init_alone(conn, PARTITIONS)
    return own


class Cost(NamedTuple):
    """Of so many commands, in seconds: the clock's, and CPU time of the process that applies them and of Postgres."""

    wall: float
    process: float
    postgres: float


async def transactions_alone(dsn: str, count: int) -> float:
    """Commands a second of the fenced transactions by themselves: the floor's figure."""
    return count / (await _transactions_alone(await new_ledger(dsn), commands(count))).wall


async def _transactions_alone(ledger: str, by_partition: Mapping[int, Sequence[CreateJob]]) -> Cost:
    server = postgres_pid(ledger)
    async with ledger_pool(ledger, size=8) as pool:
        fences = {partition: (await take_over(pool, partition, "bench")).fence for partition in by_partition}
        before, server_before, began = cpu_s(), with_children_s(server), perf_counter()
        for partition, part in by_partition.items():
            for chunk in _chunks(part, A_TRANSACTION):
                async with owner_transaction(pool, fences[partition]) as tx:
                    await apply_commands(tx, chunk)
        return Cost(perf_counter() - began, cpu_s() - before, with_children_s(server) - server_before)


def floor(dsn: str, count: int) -> Cost:
    """The transactions alone."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_transactions_alone(runner.run(new_ledger(dsn)), commands(count)))


def through_the_role(dsn: str, bootstrap: str, records: Wire) -> Cost:
    """From the topic to the ledger, by a role that has taken over its partitions before."""
    topics, ledger = Topics(f"bench-{uuid4().hex[:8]}"), asyncio.run(new_ledger(dsn))
    create_topics(bootstrap, topics, PARTITIONS)
    server = postgres_pid(ledger)
    with measured(role, ledger, bootstrap, topics.prefix) as pipe:
        before, server_before, began = pipe.recv(), with_children_s(server), perf_counter()
        produce(bootstrap, topics.commands, records)
        wait_until(ledger, CONSUMED, len(records))
        wall, server_s = perf_counter() - began, with_children_s(server) - server_before
        pipe.send("applied")
        used = pipe.recv() - before
    return Cost(wall, used, server_s)


class Behind(NamedTuple):
    """Of probes sent one after the other behind a flood: how late each was, and how much of the flood was applied."""

    lateness_s: list[float]
    flood_applied: list[int]


def behind_a_flood(dsn: str, bootstrap: str, codec: Codec, flood: Wire, probes: int) -> Behind:
    """The role runs all the while. A probe pauses or resumes a job of a tenant that does nothing else."""
    topics, ledger = Topics(f"bench-{uuid4().hex[:8]}"), asyncio.run(new_ledger(dsn))
    create_topics(bootstrap, topics, PARTITIONS)
    behind = Behind([], [])
    with measured(role, ledger, bootstrap, topics.prefix) as pipe, psycopg.connect(ledger, autocommit=True) as conn:
        pipe.recv()
        [[create]] = commands(1, "calm").values()
        at = partition_of_job(create.job_id, PARTITIONS)
        _lateness_s(conn, bootstrap, topics.commands, codec, at, create)
        produce(bootstrap, topics.commands, flood)
        for probe in range(probes):
            kind = ResumeJob if probe % 2 else PauseJob
            command = kind(command_id=new_id(), tenant="calm", job_id=create.job_id, issued_at=datetime.now(UTC))
            behind.lateness_s.append(_lateness_s(conn, bootstrap, topics.commands, codec, at, command))
            [applied] = conn.execute("SELECT count(*) FROM jobs WHERE tenant = 'bench'").fetchone() or (0,)
            behind.flood_applied.append(applied)
        pipe.send("enough")
        pipe.recv()
    return behind


def _lateness_s(
    conn: psycopg.Connection, bootstrap: str, topic: str, codec: Codec, partition: int, command: Command
) -> float:
    """From just before the command is sent until its effect is committed."""
    began = perf_counter()
    produce(bootstrap, topic, [(partition, encode_command(codec, command))])
    while not conn.execute("SELECT FROM applied_commands WHERE command_id = %s", [command.command_id]).rowcount:
        sleep(0.005)
    return perf_counter() - began


def role(pipe: Connection, dsn: str, bootstrap: str, prefix: str) -> None:
    """The process that is measured: tells its CPU time once it owns everything, and again when it is asked."""

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
            ownership, stop = Ownership("bench", 6.0), asyncio.Event()
            streams = StreamsRole("bench", dsn, bootstrap, Topics(prefix), Codec(), Path(folder))
            running = asyncio.create_task(streams.run(stop, ownership))
            while len(ownership.partitions()) < PARTITIONS:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
            await asyncio.sleep(SETTLED_S)
            pipe.send(cpu_s())
            await asyncio.to_thread(pipe.recv)
            pipe.send(cpu_s())
            stop.set()
            await running

    uvloop.run(run())  # as the role does


def tell(name: str, cost: Cost, count: int) -> None:
    process, postgres = cost.process / count * 1e6, cost.postgres / count * 1e6
    click.echo(
        f"{name:20} {count / cost.wall:8,.0f} commands/s  CPU us/command: {process:6.1f} + Postgres {postgres:6.1f}"
        f"  commands/s a core: {1e6 / process:7,.0f}, with Postgres {1e6 / (process + postgres):7,.0f}"
    )


def tell_behind(name: str, behind: Behind, flood: int) -> None:
    late, applied = behind.lateness_s, behind.flood_applied
    click.echo(
        f"{name:20} behind {flood:,} commands of another tenant: the first after {late[0]:.2f} s, when {applied[0]:,}"
        f" of those were applied; {len(late)} in turn: median {median(late):.2f} s, at most {max(late):.2f} s,"
        f" when {applied[-1]:,} were"
    )


@click.command()
@click.option("--count", default=20_000, show_default=True, help="commands a measurement")
@click.option("--rounds", default=3, show_default=True, help="of each measurement, in turn")
@click.option("--behind", default=0, help="measure instead how late another tenant's commands are behind so many")
def main(count: int, rounds: int, behind: int) -> None:
    codec = Codec()
    with servers() as (dsn, bootstrap):
        for name, wire in (("packed", packed), ("one a record", one_a_record)) if behind else ():
            tell_behind(name, behind_a_flood(dsn, bootstrap, codec, wire(codec, behind), PROBES), behind)
        if behind:
            return
        for _ in range(rounds):
            tell("transactions alone", floor(dsn, count), count)
            tell("packed", through_the_role(dsn, bootstrap, packed(codec, count)), count)
            tell("one a record", through_the_role(dsn, bootstrap, one_a_record(codec, count)), count)


if __name__ == "__main__":
    main()
