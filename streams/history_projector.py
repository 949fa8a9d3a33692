"""The history projector: reads run events from Kafka, and audits, and appends them to the history store, with the
positions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple

import duckdb
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas.audits import AUDIT_KEY, decode_audits
from schemas.codec import Codec, Record
from schemas.errors import KafkaUnavailable, TryAgain, Undecodable
from schemas.event_rows import EventRows
from streams.history_store import HistoryStore
from streams.history_tables import AuditRow, EventRow
from streams.metrics import (
    HISTORY_EVENTS,
    HISTORY_LAG_RECORDS,
    HISTORY_RECORDS_SKIPPED,
    HISTORY_REPEATED_EVENTS,
    HISTORY_SILENT_SECONDS,
)

log = logging.getLogger(__name__)

# A transaction takes about 15 ms however small it is, so small ones wait for company; in a stream of events it pays to
# wait longer.
GATHER_S = 0.2
ALONE_S = 0.05  # after silence: what comes is most likely alone
STREAM_EVENTS = 500  # that came within that time
STREAM_GATHER_S = 1.0
BATCH_EVENTS = 20_000
READ_RECORDS = 32  # at once; each has up to a thousand events
IDLE_S = 0.6  # waited for the first record of a batch, and at most for the end
MEASURE_S = 5.0  # while nothing comes
TIDY_S = 60.0  # between looks for days to forget and to sort
LATE_EVENTS = timedelta(hours=1)  # after the end of a day nearly all of its events have come
_RETRY_S = 1.0
_METADATA_TIMEOUT_S = 5.0

_FIELDS = (
    "eventId", "type", "at", "tenant", "jobId", "runId", "version", "queue", "lane", "attempt", "leaseToken",
    "scheduledFor", "dueAt", "leaseExpiresAt", "workerId", "reason", "result", "definition",
    "count",
)  # fmt: skip
_fields_of = itemgetter(*_FIELDS)


class Batch(NamedTuple):
    """What was read of one record: its events, or audits, as rows; none when it was unreadable."""

    partition: int
    offset: int
    rows: Sequence[EventRow] = ()
    audits: Sequence[AuditRow] = ()


class HistoryProjector:
    """Reads every partition from where the store's positions stand. `run` blocks: give it a thread of its own."""

    def __init__(
        self,
        store: HistoryStore,
        bootstrap: str,
        topic: str,
        codec: Codec,
        *,
        gather_s: float = GATHER_S,
        stream_gather_s: float = STREAM_GATHER_S,
        idle_s: float = IDLE_S,
        keep_days: int | None = None,
        kafka_config: Mapping[str, Any] | None = None,
    ) -> None:
        """keep_days: how far back the history goes; None: as far as what it was ever told."""
        self._store = store
        self._keep_days = keep_days
        self._bootstrap = bootstrap
        self._topic = topic
        self._codec = codec
        self._rows = EventRows(codec, _FIELDS)
        self._gather_s = gather_s
        self._stream_gather_s = stream_gather_s
        self._idle_s = idle_s
        self._kafka_config = kafka_config
        self._lag: Mapping[int, int] = {}
        self._was_silent = True
        self._measured = self._tidied = float("-inf")

    @property
    def lag(self) -> Mapping[int, int]:
        """Records behind the end of each partition, as last seen; empty while Kafka was never reached."""
        return self._lag

    def run(self, stop: threading.Event) -> None:
        """Project until `stop`, over every failure that time can mend. Raises duckdb.Error when the store is broken."""
        began = time.monotonic()
        HISTORY_SILENT_SECONDS.set_function(lambda: time.monotonic() - max(began, self._measured))
        while not stop.is_set():
            try:
                with self._consumer() as consumer:
                    self._project(consumer, stop)
            except (TryAgain, KafkaException, duckdb.OutOfMemoryException) as error:
                log.warning("the history projector starts over: %s", error)
                stop.wait(_RETRY_S)

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"{self._topic}-history",  # librdkafka wants one; nothing is ever committed under it
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 1000,  # a broker answers once there is something, the fallback one after this
                "queued.max.messages.kbytes": 32 * 1024,
                "reconnect.backoff.ms": 500,
                "reconnect.backoff.max.ms": 2000,
                **(self._kafka_config or {}),
            },
            logger=log,
        )
        try:
            consumer.assign(self._assignment(consumer))
            yield consumer
        finally:
            consumer.close()

    def _assignment(self, consumer: Consumer) -> list[TopicPartition]:
        metadata = consumer.list_topics(self._topic, timeout=_METADATA_TIMEOUT_S).topics[self._topic]
        if metadata.error is not None or not metadata.partitions:
            raise KafkaUnavailable(f"topic {self._topic} is not there yet: {metadata.error}")
        positions = self._store.positions()
        return [
            TopicPartition(self._topic, partition, positions.get(partition, OFFSET_BEGINNING))
            for partition in sorted(metadata.partitions)
        ]

    def _project(self, consumer: Consumer, stop: threading.Event) -> None:
        assignment = consumer.assignment()
        while not stop.is_set():
            if time.monotonic() - self._tidied >= TIDY_S:
                self._tidy(datetime.now(UTC))
            if batches := self._gather(consumer):
                self._append(batches)
            if batches or time.monotonic() - self._measured >= MEASURE_S:
                self._measure(consumer, assignment)

    def _tidy(self, now: datetime) -> None:
        """Drop the days that are too old; sort one that is over, unless there is more to read."""
        if self._keep_days is not None:
            for day in self._store.forget(now.date() - timedelta(days=self._keep_days)):
                log.info("dropped the events of %s", day)
        is_idle = not any(self._lag.values())
        if is_idle and (over := self._store.sort_a_day((now - LATE_EVENTS).date())):
            log.info("sorted the events of %s", over)
        self._tidied = time.monotonic()

    def _gather(self, consumer: Consumer) -> list[Batch]:
        """What comes within the time to gather after a first record, or a full batch before that."""
        batches: list[Batch] = []
        events = 0
        first = consumer.poll(self._idle_s)
        began, least_s = time.monotonic(), ALONE_S if self._was_silent else self._gather_s
        self._was_silent = first is None
        messages = [] if first is None else [first]
        while messages:
            for message in messages:
                if _is_record(message):
                    batches.append(self._read(message))
                    events += len(batches[-1].rows)
            gather_s = self._stream_gather_s if events >= STREAM_EVENTS else least_s
            left_s = began + gather_s - time.monotonic()
            is_full = events >= BATCH_EVENTS
            messages = consumer.consume(READ_RECORDS, timeout=left_s) if left_s > 0 and not is_full else []
        return batches

    def _read(self, message: Message) -> Batch:
        partition, offset = message.partition(), message.offset()
        place = (partition, offset)
        try:
            if message.key() == AUDIT_KEY:
                audits = decode_audits(self._codec, message.value())
                return Batch(partition, offset, audits=[audit + place for audit in audits])
            return Batch(partition, offset, [row + place for row in self._rows.of(message.value() or b"")])
        except Undecodable as error:
            _skip(partition, offset, error)
            return Batch(partition, offset)

    def _append(self, batches: Sequence[Batch]) -> None:
        """Store all of them, or all but those with values that no column can hold."""
        rows = [row for batch in batches for row in batch.rows]
        audits = [audit for batch in batches for audit in batch.audits]
        try:
            kept = self._store.append(rows, {batch.partition: batch.offset + 1 for batch in batches}, audits)
        except (duckdb.ConversionException, duckdb.ConstraintException, duckdb.InvalidInputException) as error:
            self._append_apart(batches, error)
            return
        HISTORY_EVENTS.inc(kept)
        HISTORY_REPEATED_EVENTS.inc(len(rows) - kept)

    def _append_apart(self, batches: Sequence[Batch], error: duckdb.Error) -> None:
        """Halve until the culprit is alone, then leave it out."""
        if len(batches) == 1:
            [culprit] = batches
            _skip(culprit.partition, culprit.offset, error)
            self._append([Batch(culprit.partition, culprit.offset)])
            return
        middle = len(batches) // 2
        self._append(batches[:middle])
        self._append(batches[middle:])

    def _measure(self, consumer: Consumer, assignment: Sequence[TopicPartition]) -> None:
        """The lag by the broker's last word on where each partition ends; it comes with every fetch."""
        lag = {}
        for position in consumer.position(list(assignment)):
            _, end = consumer.get_watermark_offsets(position, cached=True)
            lag[position.partition] = max(end - max(position.offset, 0), 0) if end >= 0 else 0
            HISTORY_LAG_RECORDS.labels(position.partition).set(lag[position.partition])
        self._lag, self._measured = lag, time.monotonic()


def event_row(event: Record, partition: int, offset: int) -> EventRow:
    """A RunEvent, its times in microseconds, as a row for the history store."""
    return (*_fields_of(event), partition, offset)


def _is_record(message: Message) -> bool:
    """Whether it is a record; librdkafka's news of its connections comes as messages too. Raises KafkaException."""
    error: KafkaError | None = message.error()
    if error is None:
        return True
    if error.fatal() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise KafkaException(error)
    log.info("reading run events: %s", error)
    return False


def _skip(partition: int, offset: int, error: Exception) -> None:
    HISTORY_RECORDS_SKIPPED.inc()
    log.error("left out the record at %s:%s: %s", partition, offset, error)
