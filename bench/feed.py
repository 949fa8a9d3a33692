"""What an event costs the owners of partitions: its CPU time, beside that of as many bytes and writes by themselves.

    python -m bench.feed [--runs 20000] [--rounds 5] [--rate 6000]

A broker of its own; the feed and the memories of all partitions in a process whose CPU time is all that counts, so that
other load on the machine does little. Each round feeds the same records three times, in turn: as a backlog; as they
come, `--rate` events a second; and the floor: a bare consumer reads the records, and a bare RocksDB gets a put and a
deletion a run.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from uuid import uuid4

import uvloop
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from rocksdict import Options, Rdict, WriteBatch

from bench.commands import PARTITIONS, Wire, servers
from bench.cpu import cpu_s, measured
from bench.history import produce, records
from bench.rounds import new_topics, parse, report_rounds
from bench.run_lives import EVENTS_A_RUN, outbox_rows
from schemas.codec import Codec
from schemas.events import Event
from streams.event_feed import EventFeed
from streams.partition_memory import PartitionMemory
from streams.timers import Position

A_BATCH = 500  # runs that the floor writes together


def main() -> None:
    options = parse(__doc__)
    events, wire = options.runs * EVENTS_A_RUN, list(records(outbox_rows(options.runs)))
    with servers() as (_, bootstrap):
        one = partial(one_round, bootstrap, wire, events, options.rate)
        report_rounds("feed", options.rounds, one, events=events, records=len(wire))


def one_round(bootstrap: str, wire: Wire, events: int, rate: int) -> dict[str, float]:
    per_record = events / len(wire)
    topic, paced = new_topics(bootstrap).run_events, new_topics(bootstrap).run_events
    produce(bootstrap, topic, wire)
    return {
        "backlog, CPU us/event": fed(bootstrap, topic, events) / events * 1e6,
        f"at {rate} events/s, CPU us/event": fed(
            bootstrap, paced, events, lambda: produce(bootstrap, paced, wire, rate / per_record)
        )
        / events
        * 1e6,
        "floor, CPU us/event": floored(bootstrap, topic, len(wire), events) / events * 1e6,
    }


def fed(bootstrap: str, topic: str, events: int, bring: Callable[[], None] = lambda: None) -> float:
    """CPU seconds that owners take for so many events, which are there or which `bring` brings."""
    with measured(feed, bootstrap, topic, events) as pipe:
        before = pipe.recv()
        bring()
        return float(pipe.recv() - before)


def floored(bootstrap: str, topic: str, count: int, events: int) -> float:
    with measured(bare_feed, bootstrap, topic, count, events // EVENTS_A_RUN) as pipe:
        return float(pipe.recv())


def feed(pipe: Connection, bootstrap: str, topic: str, count: int) -> None:
    """The process that is measured: tells its CPU time before it begins, and after so many events."""

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
            memories = [PartitionMemory(Path(folder) / f"p-{number}") for number in range(PARTITIONS)]
            seen, over = 0, asyncio.Event()

            def deliver(partition: int, events: list[Event], next_offset: int) -> None:
                nonlocal seen
                memories[partition].fold(events, Position(1, next_offset))
                seen += len(events)
                if seen >= count:
                    over.set()

            feed = EventFeed(bootstrap, topic, Codec(), deliver, print, print)
            pipe.send(cpu_s())
            feed.start()
            for partition in range(PARTITIONS):
                feed.assign(partition, 0)
            await over.wait()
            await feed.close()
            for memory in memories:
                memory.close()
            pipe.send(cpu_s())

    uvloop.run(run())  # as the role does


def bare_feed(pipe: Connection, bootstrap: str, topic: str, count: int, runs: int) -> None:
    """The floor's process: the bytes of every record, and what a run leaves on its way through a database."""
    before = cpu_s()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid4().hex, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
    read, until = 0, time.monotonic() + 60
    while read < count and time.monotonic() < until:
        read += len(consumer.consume(32, timeout=0.2))
    consumer.close()
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        database = Rdict(folder, Options(raw_mode=True))
        keys = [uuid4().bytes for _ in range(runs)]
        for start in range(0, runs, A_BATCH):
            put, deletion = WriteBatch(raw_mode=True), WriteBatch(raw_mode=True)
            for key in keys[start : start + A_BATCH]:
                put.put(key, b"a run's queue, and so on")
                deletion.delete(key)
            database.write(put)
            database.write(deletion)
        database.close()
    pipe.send(cpu_s() - before)


if __name__ == "__main__":
    main()
