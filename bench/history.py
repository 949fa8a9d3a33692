"""What an event costs the history projector: its CPU time, beside that of storing the events with nothing in between.

    python -m bench.history [--runs 20000] [--rounds 5] [--rate 6000]

A broker of its own; the projector in a process whose CPU time is all that counts, so that other load on the machine
does little. Each round projects the same records three times, in turn: as a backlog; as they come, `--rate` events a
second; and the floor: a bare consumer reads the records, and DuckDB copies the decoded events from a table that has
them already, a transaction for as many as come in the projector's time to gather.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from bench.commands import PARTITIONS, Wire, servers
from bench.cpu import cpu_s, measured
from bench.rounds import new_topics, parse, report_rounds
from bench.run_lives import EVENTS_A_RUN, Columns, outbox_rows
from schemas.codec import Codec
from schemas.commands import LANES
from streams.history_projector import GATHER_S, HistoryProjector
from streams.history_store import HistoryStore

ROWS_A_BATCH = 10  # that the relay reads and publishes together
COPY_EVENTS = "INSERT INTO events SELECT * FROM decoded WHERE rowid >= ? AND rowid < ?"


def main() -> None:
    options = parse(__doc__)
    events, wire = options.runs * EVENTS_A_RUN, list(records(outbox_rows(options.runs)))
    with servers() as (_, bootstrap):
        one = partial(one_round, bootstrap, wire, events, options.rate)
        report_rounds("history", options.rounds, one, events=events, records=len(wire))


def one_round(bootstrap: str, wire: Wire, events: int, rate: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        paths = [Path(folder) / name for name in ("backlog", "paced", "floor")]
        per_record = events / len(wire)
        topic = new_topics(bootstrap).run_events
        produce(bootstrap, topic, wire)
        paced = new_topics(bootstrap).run_events
        return {
            "backlog, CPU us/event": projected(bootstrap, topic, paths[0], len(wire)) / events * 1e6,
            f"at {rate} events/s, CPU us/event": projected(
                bootstrap, paced, paths[1], len(wire), lambda: produce(bootstrap, paced, wire, rate / per_record)
            )
            / events
            * 1e6,
            "floor, CPU us/event": floored(bootstrap, topic, paths, events, int(rate * GATHER_S)) / events * 1e6,
        }


def projected(bootstrap: str, topic: str, path: Path, count: int, feed: Callable[[], None] = lambda: None) -> float:
    """CPU seconds that a projector takes for `count` records, which are there or which `feed` brings."""
    with measured(project, bootstrap, topic, path, count) as pipe:
        before = pipe.recv()
        feed()
        return float(pipe.recv() - before)


def floored(bootstrap: str, topic: str, paths: list[Path], events: int, batch: int) -> float:
    with measured(bare_history, bootstrap, topic, paths[0], paths[2], events, batch) as pipe:
        return float(pipe.recv())


def project(pipe: Connection, bootstrap: str, topic: str, path: Path, count: int) -> None:
    """The process that is measured: tells its CPU time before it begins, and after so many records."""
    store, stop = HistoryStore(path), threading.Event()
    pipe.send(cpu_s())
    thread = threading.Thread(target=HistoryProjector(store, bootstrap, topic, Codec()).run, args=(stop,))
    thread.start()
    while sum(store.positions().values()) < count:
        time.sleep(0.2)
    stop.set()
    thread.join()
    store.close()
    pipe.send(cpu_s())


def bare_history(
    pipe: Connection, bootstrap: str, topic: str, source: Path, path: Path, events: int, batch: int
) -> None:
    """The floor's process: the bytes of every record, and the events that `source` has in a file of their own."""
    with duckdb.connect(str(path), config={"threads": 2}) as database:
        database.execute(f"ATTACH '{source}' AS source (READ_ONLY)")
        database.execute("CREATE TEMP TABLE decoded AS FROM source.store.run_events")
        database.execute("CREATE TABLE events AS FROM decoded LIMIT 0")
        before = cpu_s()
        read_all(bootstrap, topic)
        for start in range(0, events, batch):
            database.execute(COPY_EVENTS, [start, start + batch])
    pipe.send(cpu_s() - before)


def read_all(bootstrap: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid4().hex, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        consumer.consume(32, timeout=0.2)
    consumer.close()


def records(rows: Iterator[Columns]) -> Iterator[tuple[int, bytes]]:
    """The rows' events as the relay publishes them: a record a partition for every few rows."""
    codec, batch = Codec(), list[Columns]()
    for number, row in enumerate(rows, start=1):
        batch.append(row | {"number": number})
        if number % ROWS_A_BATCH == 0:
            yield from _records(codec, batch)
            batch.clear()
    yield from _records(codec, batch)


def _records(codec: Codec, batch: list[Columns]) -> Iterator[tuple[int, bytes]]:
    by_partition: defaultdict[int, list[Any]] = defaultdict(list)
    for row in batch:
        for index, partition in enumerate(row["partitions"]):
            by_partition[partition].append(_event(row, index))
    for partition, events in by_partition.items():
        yield partition, codec.encode("RunEvents", {"partition": partition, "events": events})


def _event(row: Columns, index: int) -> dict[str, Any]:
    def of(column: str) -> Any:
        return row[column][index] if column in row else None

    return {
        "eventId": f"0-{row['number']}-{index}",
        "type": row["event"],
        "at": row["at"],
        "tenant": of("tenants"),
        "jobId": str(of("job_ids")),
        "runId": str(of("run_ids")),
        "version": of("versions"),
        "queue": of("queues"),
        "lane": LANES[of("lanes")],
        "attempt": of("attempts"),
        "leaseToken": of("lease_tokens"),
        "scheduledFor": of("scheduled_for"),
        "dueAt": of("due_at"),
        "leaseExpiresAt": of("lease_expires_at"),
        "workerId": of("worker_ids"),
        "result": of("results"),
    }


def produce(bootstrap: str, topic: str, wire: Wire, records_a_second: float | None = None) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "compression.type": "lz4"})
    began = time.monotonic()
    for number, (partition, value) in enumerate(wire):
        if records_a_second is not None:
            time.sleep(max(0.0, began + number / records_a_second - time.monotonic()))
        producer.produce(topic, value, partition=partition)
        producer.poll(0)
    assert producer.flush(60) == 0


if __name__ == "__main__":
    main()
