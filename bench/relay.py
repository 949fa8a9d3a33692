"""What an event costs the outbox relay: its CPU time, beside that of moving the same bytes with nothing in between.

    python -m bench.relay [--runs 20000] [--rounds 5] [--rate 6000]

A broker and a Postgres of their own; the relay in a process whose CPU time is all that counts, so that other load on
the machine does little. Each round moves the same rows three times, in turn: as a backlog; as they come, `--rate`
events a second; and the floor, which reads the rows in binary form, produces as many bytes, and deletes the rows.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from multiprocessing.connection import Connection

import psycopg
import uvloop
from confluent_kafka import Producer
from psycopg import sql

from bench.cluster import scalar, wait_until
from bench.commands import PARTITIONS, new_ledger, servers
from bench.cpu import cpu_s, measured
from bench.rounds import new_topics, parse, report_rounds
from bench.run_lives import A_ROW, EVENTS_A_RUN, Columns, outbox_rows
from schemas.codec import Codec
from streams.outbox_relay import OutboxRelay
from streams.topics import Topics

EMPTY = "SELECT count(*) FROM outbox"
# What the relay's records were measured to hold; the floor's are all alike.
EVENT_BYTES = 150
RECORD_EVENTS = 600
FLOOR_ROWS = 100
READ_ALL = "COPY (SELECT * FROM outbox ORDER BY id LIMIT {}) TO STDOUT (FORMAT binary)"
DELETE = "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT %s)"


def main() -> None:
    options = parse(__doc__)
    with servers() as (dsn, bootstrap):
        one = partial(one_round, asyncio.run(new_ledger(dsn)), bootstrap, options.runs, options.rate)
        report_rounds("relay", options.rounds, one, events=options.runs * EVENTS_A_RUN)


def one_round(dsn: str, bootstrap: str, runs: int, rate: int) -> dict[str, float]:
    rows, events = list(outbox_rows(runs)), runs * EVENTS_A_RUN
    return {
        "backlog, CPU us/event": relayed(dsn, bootstrap, rows, None) / events * 1e6,
        f"at {rate} events/s, CPU us/event": relayed(dsn, bootstrap, rows, rate) / events * 1e6,
        "floor, CPU us/event": floored(dsn, bootstrap, rows) / events * 1e6,
    }


def relayed(dsn: str, bootstrap: str, rows: list[Columns], rate: int | None) -> float:
    """CPU seconds that a relay takes for the rows, which are there at once or come at a rate of events a second."""
    topics = new_topics(bootstrap)
    if rate is None:
        put(dsn, rows)
    with measured(relay, dsn, bootstrap, topics.prefix) as pipe:
        before = pipe.recv()
        if rate is not None:
            put(dsn, rows, rate)
        wait_until(dsn, EMPTY, 0)
        pipe.send("stop")
        return float(pipe.recv() - before)


def floored(dsn: str, bootstrap: str, rows: list[Columns]) -> float:
    topics = new_topics(bootstrap)
    put(dsn, rows)
    with measured(bare_relay, dsn, bootstrap, topics.run_events) as pipe:
        return float(pipe.recv())


def relay(pipe: Connection, dsn: str, bootstrap: str, prefix: str) -> None:
    """The process that is measured: tells its CPU time before it begins and once it is told to stop."""

    async def run() -> None:
        outbox_relay, stop = OutboxRelay(dsn, bootstrap, Topics(prefix), Codec()), asyncio.Event()
        pipe.send(cpu_s())
        relaying = asyncio.create_task(outbox_relay.run(stop))
        await asyncio.to_thread(pipe.recv)
        stop.set()
        await relaying
        pipe.send(cpu_s())

    uvloop.run(run())  # as the role does


def bare_relay(pipe: Connection, dsn: str, bootstrap: str, topic: str) -> None:
    """The floor's process: the bytes of every row from Postgres, as many to Kafka, the deletion; tells its CPU time."""
    value = (b"0123456789abcdef" * EVENT_BYTES)[: EVENT_BYTES * RECORD_EVENTS]
    before = cpu_s()
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4"})
    with psycopg.connect(dsn, autocommit=True) as conn:
        while scalar(conn, EMPTY):
            with conn.cursor() as cursor, cursor.copy(READ_ALL.format(FLOOR_ROWS).encode()) as rows:
                for _ in rows:
                    pass
            for number in range(FLOOR_ROWS * A_ROW // RECORD_EVENTS):
                producer.produce(topic, value, partition=number % PARTITIONS)
            producer.flush()
            conn.execute(DELETE, (FLOOR_ROWS,))
    pipe.send(cpu_s() - before)


def put(dsn: str, rows: list[Columns], rate: int | None = None) -> None:
    """Insert rows, each in a transaction of its own."""
    began = time.monotonic()
    with psycopg.connect(dsn, autocommit=True) as conn:
        for number, row in enumerate(rows):
            if rate is not None:
                time.sleep(max(0.0, began + number * A_ROW / rate - time.monotonic()))
            conn.execute(insertion(row), row)


def insertion(columns: Columns) -> sql.Composed:
    return sql.SQL("INSERT INTO outbox ({}) VALUES ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL(", ").join(map(sql.Placeholder, columns))
    )


if __name__ == "__main__":
    main()
