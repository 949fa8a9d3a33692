"""Reading a cluster from outside: its topics from their first record, its ledger at the end, its epochs meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from fencepost.verification.events import Event
from fencepost.verification.topic_pages import AUDIT_KEY, events_of
from schemas.codec import Codec
from schemas.commands import Command, decode_commands
from tests.chaos.history import EpochSample, LedgerReadout, TopicCommand, TopicEvent
from tests.chaos.ownerless import Takeover

READ_DEADLINE_S = 30.0
SAMPLE_PERIOD_S = 0.2


def read_topic(bootstrap: str, topic: str, starts: Mapping[int, int] | None = None) -> Iterator[Message]:
    """Every record from `starts` (else the first) to the last that was there when the call was made.

    starts: an offset for each partition, as `topic_ends` gives them. Raises TimeoutError.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"chaos-{uuid4()}", "enable.auto.commit": False})
    try:
        ends, starts = end_offsets(consumer, topic), starts or {}
        left = {partition for partition, end in ends.items() if end > starts.get(partition, 0)}
        consumer.assign([TopicPartition(topic, each, starts.get(each, OFFSET_BEGINNING)) for each in left])
        give_up_at = time.monotonic() + READ_DEADLINE_S
        while left:
            for message in consumer.consume(1000, 0.2):
                if message.error() is None and message.offset() < ends[message.partition()]:
                    yield message
            left -= {
                tp.partition for tp in consumer.position(_assigned(topic, left)) if tp.offset >= ends[tp.partition]
            }
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"partitions {sorted(left)} of {topic} could not be read to their ends")
    finally:
        consumer.close()


def end_offsets(consumer: Consumer, topic: str) -> dict[int, int]:
    """Where each partition of a topic ends now."""
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    return {each: consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=10)[1] for each in partitions}


def _assigned(topic: str, partitions: set[int]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in partitions]


def read_events(bootstrap: str, topic: str, starts: Mapping[int, int], job_ids: set[str]) -> list[TopicEvent]:
    """The events of these jobs' runs, in topic order."""
    return runs_of(read_told(bootstrap, topic, starts, job_ids))


def read_told(bootstrap: str, topic: str, starts: Mapping[int, int], job_ids: set[str]) -> list[Event]:
    """The events of these jobs and of their runs, in topic order."""
    records = (message for message in read_topic(bootstrap, topic, starts) if message.key() != AUDIT_KEY)
    told = (event for message in records for event in events_of(message.value()))
    return [event for event in told if event.job_id in job_ids]


def runs_of(told: list[Event]) -> list[TopicEvent]:
    """Those of the events that are of runs."""
    return [event for event in told if isinstance(event, TopicEvent)]


def read_commands(bootstrap: str, topic: str, starts: Mapping[int, int], job_ids: set[str]) -> list[TopicCommand]:
    """The commands of these jobs, in topic order."""
    codec = Codec()
    found = []
    for message in read_topic(bootstrap, topic, starts):
        for command in decode_commands(codec, message.value()):
            if isinstance(command, Command) and str(command.job_id) in job_ids:
                kind = type(command).__name__
                found.append(TopicCommand(str(command.command_id), str(command.job_id), kind))
    return found


def read_ledger(dsn: str, job_ids: set[str]) -> LedgerReadout:
    """What the ledger holds of these jobs, and of the outbox."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        jobs = list(job_ids)
        live = conn.execute("SELECT run_id::text FROM runs WHERE job_id::text = ANY (%s)", (jobs,)).fetchall()
        dead = conn.execute("SELECT run_id::text FROM dead_runs WHERE job_id::text = ANY (%s)", (jobs,)).fetchall()
        outbox = conn.execute("SELECT count(*) FROM outbox").fetchall()
        outcomes = conn.execute("SELECT command_id::text, outcome FROM applied_commands").fetchall()
    return LedgerReadout(
        live_runs=frozenset(row[0] for row in live),
        dead_runs=frozenset(row[0] for row in dead),
        outbox_rows=outbox[0][0],
        outcomes=dict(outcomes),
    )


def read_rows(dsn: str, job_ids: set[str]) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the ledger that tells of these jobs, every column of it, and every command's outcome."""
    jobs = {"jobs": list(job_ids)}
    with psycopg.connect(dsn, autocommit=True) as conn:
        rows = {
            "jobs": conn.execute("SELECT * FROM jobs WHERE job_id::text = ANY (%(jobs)s) ORDER BY 1", jobs),
            "runs": conn.execute("SELECT * FROM runs WHERE job_id::text = ANY (%(jobs)s) ORDER BY 1", jobs),
            "dead": conn.execute("SELECT * FROM dead_runs WHERE job_id::text = ANY (%(jobs)s) ORDER BY 1", jobs),
            "outcomes": conn.execute("SELECT * FROM applied_commands ORDER BY 1"),
        }
        return {table: cursor.fetchall() for table, cursor in rows.items()}


def read_takeovers(dsn: str) -> list[Takeover]:
    """Every takeover of every partition, in order."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        rows = conn.execute(
            "SELECT partition, split_part(owner, '/', 1), at FROM takeovers ORDER BY at, epoch"
        ).fetchall()
    return [Takeover(*row) for row in rows]


def topic_ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Where each partition of a topic ends now."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"chaos-{uuid4()}"})
    try:
        return end_offsets(consumer, topic)
    finally:
        consumer.close()


def consumed_offsets(dsn: str) -> dict[int, int]:
    """How far each partition's commands are applied, by the ledger."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return dict(conn.execute("SELECT partition, consumed_offset FROM partitions").fetchall())


def forget_offsets(dsn: str) -> None:
    """Make the ledger believe that no command was ever consumed."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("UPDATE partitions SET consumed_offset = 0")


def produce_again(bootstrap: str, topic: str) -> int:
    """Produce every record of a topic once more, each to the partition it came from; returns how many."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    records = list(read_topic(bootstrap, topic))
    for record in records:
        producer.produce(topic, record.value(), record.key(), record.partition())
    assert producer.flush(READ_DEADLINE_S) == 0
    return len(records)


def sample_epochs(conn: psycopg.Connection) -> EpochSample:
    """The partitions now, and what waits too long."""
    rows = conn.execute(
        """
        SELECT partition, epoch, owner,
               (SELECT count(*) FROM runs WHERE state = 'pending' AND due_at < now() - interval '5 seconds')
        FROM partitions
        """
    ).fetchall()
    partitions = {partition: (epoch, owner) for partition, epoch, owner, _ in rows}
    return EpochSample(datetime.now(UTC), partitions, rows[0][3] if rows else 0)


class EpochWatch:
    """Samples the partitions five times a second, in a thread, over every outage of the ledger."""

    def __init__(self, dsn: str) -> None:
        self.samples: list[EpochSample] = []
        self._dsn = dsn
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="epoch-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_PERIOD_S):
            with suppress(psycopg.Error):
                self._watch_session()

    def _watch_session(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True, connect_timeout=2) as conn:
            while not self._stop.wait(SAMPLE_PERIOD_S):
                self.samples.append(sample_epochs(conn))
