"""How many jobs a second can be created: by Kafka packed and one a record, and by HTTP.

    python -m bench.enqueue [--jobs 20000] [--http-jobs 2000] [--one-by-one 200] [--rounds 3] [--peers all]

In bulk there are two figures: until the broker has acknowledged everything, which is when a producer may forget it, and
until everything is in the ledger. The floors: a bare Kafka producer of the same records, the owners' transactions by a
bare client, and a bare HTTP server that gets the same bodies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import NamedTuple
from uuid import uuid4

import uvloop
from confluent_kafka.admin import AdminClient, NewTopic

from bench import commands
from bench.benchmark import Benchmark, Stage
from bench.cluster import wait_until
from bench.compare import OURS, Contender, Figures
from bench.http_load import echo_server, send_all, wire
from fencepost import CommandProducer, JobSpec, at
from fencepostd.local import LOCAL_TENANT, Local
from schemas.codec import Codec

FAR = datetime(2100, 1, 1, tzinfo=UTC)  # what is created here waits, and is in nobody's way
CALLERS = 32


class Size(NamedTuple):
    """jobs: in bulk. http_jobs: by so many callers at once. one_by_one: by one that waits for each answer."""

    jobs: int = 20_000
    http_jobs: int = 2_000
    one_by_one: int = 200


def contenders(stage: Stage, size: Size) -> dict[str, Contender]:
    local, numbers = stage.local, count()

    def ours() -> Figures:
        number = next(numbers)
        return {
            **by_kafka(local, f"packed-{number}", size.jobs, "packed", 500),
            **by_kafka(local, f"single-{number}", size.jobs, "one a record", 1),
            **by_http(local.url, local.token, f"http-{number}", size),
        }

    def bare_http() -> Figures:
        with echo_server() as echo:
            return by_http(echo.url, "none", "echo", size, path="/echo")

    peers: dict[str, Contender] = {
        peer.name: lambda peer=peer: peer.enqueue(size.jobs, size.one_by_one)  # type: ignore[misc]
        for peer in stage.peers
    }
    floors: dict[str, Contender] = {
        "floor (Kafka)": lambda: bare_producer(local.stack.bootstrap, size.jobs),
        "floor (SQL)": lambda: bare_transactions(stage.dsn, size.jobs),
        "floor (HTTP)": bare_http,
    }
    return {OURS: ours, **floors, **peers}


def by_kafka(local: Local, queue: str, jobs: int, how: str, batch: int) -> Figures:
    spec = JobSpec(queue=queue, schedule=at(FAR), payload={"to": "somebody"})
    with CommandProducer(local.stack.bootstrap, tenant=LOCAL_TENANT, batch_commands=batch) as producer:
        began = time.monotonic()
        for _ in range(jobs):
            producer.create_job(spec)
        producer.flush()
        acknowledged = time.monotonic() - began
    wait_until(local.stack.dsn, f"SELECT count(*) FROM runs WHERE queue = '{queue}'", jobs, 300)
    applied = time.monotonic() - began
    name = "bulk" if batch > 1 else f"bulk, {how}"
    return {f"{name}, jobs/s": jobs / applied, f"{name}, to the broker, jobs/s": jobs / acknowledged}


def by_http(url: str, token: str, queue: str, size: Size, path: str = "/v1/jobs") -> Figures:
    """Creates by so many callers at once, then by one; each answer comes after the job is in the ledger."""
    body = {"queue": queue, "schedule": {"runAt": FAR.isoformat()}, "payload": {"to": "somebody"}}

    def requests(jobs: int) -> list[bytes]:
        return [wire(token, path, body, f"idempotency-key: {uuid4().hex}\r\n") for _ in range(jobs)]

    together = uvloop.run(send_all(url, requests(size.http_jobs), CALLERS))
    alone = uvloop.run(send_all(url, requests(size.one_by_one), 1))
    return {
        f"HTTP, {CALLERS} callers, jobs/s": together.done / together.seconds,
        "one by one, jobs/s": alone.done / alone.seconds,
    }


def bare_producer(bootstrap: str, jobs: int) -> Figures:
    """The same commands as ready-made records, on a topic that nobody reads."""
    figures = {}
    for name, records in (
        ("bulk", commands.packed(Codec(), jobs)),
        ("bulk, one a record", commands.one_a_record(Codec(), jobs)),
    ):
        with _scratch_topic(bootstrap) as topic:
            began = time.monotonic()
            commands.produce(bootstrap, topic, records)
            figures[f"{name}, to the broker, jobs/s"] = jobs / (time.monotonic() - began)
    return figures


@contextmanager
def _scratch_topic(bootstrap: str) -> Iterator[str]:
    admin, name = AdminClient({"bootstrap.servers": bootstrap}), f"scratch-{uuid4().hex[:8]}"
    for made in admin.create_topics([NewTopic(name, commands.PARTITIONS, 1)]).values():
        made.result(30)
    try:
        yield name
    finally:
        for gone in admin.delete_topics([name]).values():
            gone.result(30)


def bare_transactions(dsn: str, jobs: int) -> Figures:
    return {"bulk, jobs/s": asyncio.run(commands.transactions_alone(dsn, jobs))}


BENCH = Benchmark("enqueue", "Jobs created a second, by Kafka and by HTTP.", Size(), contenders)

if __name__ == "__main__":
    BENCH.main()
