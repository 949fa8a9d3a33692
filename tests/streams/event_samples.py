"""Run events and outbox rows to test with, and a reader of what reached the topic."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from ledger.connection import Connection
from schemas.audits import AUDIT_KEY
from schemas.codec import Codec, Record
from streams.history_projector import event_row
from streams.history_tables import EventRow
from streams.outbox_events import EventRecord
from streams.topics import Topics, create_topics

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
JOB_ID = UUID(int=7)
PARTITIONS = 4


def new_topics(bootstrap: str) -> Topics:
    """Topics of this test alone."""
    topics = Topics(f"test-{uuid4().hex[:12]}")
    create_topics(bootstrap, topics, PARTITIONS)
    return topics


def run_event(run_id: UUID | None, version: int, kind: str, **fields: Any) -> Record:
    """A RunEvent as Avro fields; event `version` of a run happens `version` seconds after START."""
    return {
        "eventId": f"0-{run_id or JOB_ID}-{version}",
        "type": kind,
        "at": START + timedelta(seconds=version),
        "tenant": "acme",
        "jobId": str(JOB_ID),
        "runId": None if run_id is None else str(run_id),
        "version": version,
        "queue": "mail",
        "lane": "normal",
        **dict.fromkeys(("attempt", "leaseToken", "scheduledFor", "dueAt", "leaseExpiresAt")),
        **dict.fromkeys(("workerId", "reason", "result", "definition", "count")),
        "gated": False,
        **fields,
    }


def run_row(run_id: UUID | None, version: int, kind: str, *, offset: int = 0, **fields: Any) -> EventRow:
    """The same as a row of the history store, read from partition 0."""
    return stored(run_event(run_id, version, kind, **fields), offset)


def stored(event: Record, offset: int) -> EventRow:
    """An event as a row of the history store, read from partition 0."""
    in_micros = {key: _micros(value) if isinstance(value, datetime) else value for key, value in event.items()}
    return event_row(in_micros, 0, offset)


def _micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def life_of(run_id: UUID, **fields: Any) -> list[Record]:
    """A run that was scheduled, leased half a second late, and completed."""
    leased = {"attempt": 1, "leaseToken": 1, "workerId": "worker-1"}
    due = {"scheduledFor": START, "dueAt": START}
    return [
        run_event(run_id, 1, "run_scheduled", **due, **fields),
        run_event(run_id, 2, "run_leased", at=START + timedelta(seconds=0.5), **due, **leased, **fields),
        run_event(run_id, 3, "run_completed", result='{"sent":2}', **leased, **fields),
    ]


def decoded(events: Sequence[bytes]) -> list[Record]:
    """Events as the relay encodes them, as their readers see them."""
    fields: list[Record] = Codec().decode(Codec().header("RunEvents") + EventRecord(0, list(events)).body())[1][
        "events"
    ]
    return fields


def produce_values(
    bootstrap: str, topic: str, values: Sequence[bytes], partition: int = 0, *, key: bytes | None = None
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, key, partition)
    assert producer.flush(30) == 0


def produce_events(bootstrap: str, topics: Topics, events: Sequence[Record], partition: int = 0) -> None:
    """One RunEvents record."""
    value = Codec().encode("RunEvents", {"partition": partition, "events": events})
    produce_values(bootstrap, topics.run_events, [value], partition)


PUT_IN_OUTBOX = """
INSERT INTO outbox (event, job_ids, run_ids, partitions, tenants, queues, lanes, versions, results)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
"""


async def put_in_outbox(
    conn: Connection, runs: Sequence[tuple[UUID, int]], version: int, *, event: str = "run_leased", result: str = "null"
) -> None:
    """One outbox row with an event of that version for each (run id, partition)."""
    count = len(runs)
    await conn.execute(
        PUT_IN_OUTBOX,
        (
            event,
            [JOB_ID] * count,
            [run_id for run_id, _ in runs],
            [partition for _, partition in runs],
            ["acme"] * count,
            ["mail"] * count,
            [1] * count,
            [version] * count,
            [result] * count,
        ),
    )


@contextmanager
def reading(bootstrap: str, topics: Topics) -> Iterator[Consumer]:
    """A consumer of all run events from the beginning."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid4().hex, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topics.run_events, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    try:
        yield consumer
    finally:
        consumer.close()


def read_events(consumer: Consumer, count: int, *, deadline_s: float = 30.0) -> list[Record]:
    """The next events until `count` different ones have come, repetitions and all. Blocks: call it from a thread."""
    events: list[Record] = []
    until = time.monotonic() + deadline_s
    while (found := len({event["eventId"] for event in events})) < count:
        assert time.monotonic() < until, f"only {found} of {count} events came within {deadline_s} s"
        message = consumer.poll(0.5)
        if message is not None and message.error() is None and message.key() != AUDIT_KEY:
            events += Codec().decode(message.value())[1]["events"]
    return events


def without_repetitions(events: Sequence[Record]) -> list[Record]:
    """The first of each event id."""
    return list({event["eventId"]: event for event in reversed(events)}.values())[::-1]
