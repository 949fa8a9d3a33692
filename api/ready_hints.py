"""Reads the ready topic into the ready index: every API instance reads all of it, from now on, in no group.

A thread waits for records, decodes them, and keeps back what is not due yet: owners tell of runs before their time, so
that the hint's way is over by then. The event loop gets what is due in batches. What was said before this process
looked is found by ready_poll.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from api.held_hints import HeldHints
from api.metrics import ApiMetrics
from api.ready_index import Queue, ReadyIndex, ReadyRun
from ledger.clock import monotonic_us
from schemas.codec import Codec
from schemas.commands import LANES
from schemas.errors import Undecodable

log = logging.getLogger(__name__)

_BATCH_RECORDS = 500
_POLL_STEP_S = 0.001  # the library counts a poll's time in whole milliseconds
_GIVE_EVERY_US = 1_000  # at most: where a lot comes due, the event loop is not woken for each run
_PROBE_EVERY_S = 2.0
_PROBE_TIMEOUT_S = 1.0
_PROBED_AFTER_S = 10.0  # since somebody has asked; a probe is much of what the thread does while nothing happens
_LANE_NUMBERS = {lane: number for number, lane in enumerate(LANES)}


class Hint(NamedTuple):
    """A decoded record. Instants are by `monotonic_us`.

    until_us: when all of the runs are due; None: they are.
    lag_ms: from when the owner sent it, by both wall clocks; None when the record has no time.
    """

    queue: Queue
    runs: list[ReadyRun]
    read_us: int
    until_us: int | None
    lag_ms: float | None


class ReadyHints:
    """Runs one thread between start and stop.

    locally_us: when it will be an instant, by the clock of a partition's shard, on our own, `monotonic_us`; None while
    that is not known. The thread asks it.
    idle_s: how long it waits for records at a time; a stop may take as long.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        codec: Codec,
        index: ReadyIndex,
        metrics: ApiMetrics,
        locally_us: Callable[[int, int], int | None],
        kafka_config: Mapping[str, Any] | None = None,
        *,
        idle_s: float,
    ) -> None:
        self._topic, self._codec, self._index, self._metrics = topic, codec, index, metrics
        self._locally_us = locally_us
        self._held: HeldHints[Hint] = HeldHints()
        self._rests_until_us = 0
        self._config = {
            "bootstrap.servers": bootstrap,
            "group.id": "fencepost-api-ready",  # librdkafka asks for one; nothing is ever committed to it
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "fetch.wait.max.ms": 500,  # a broker answers as soon as it has a byte; the fallback one only after this
            "fetch.queue.backoff.ms": 1,
            "topic.metadata.refresh.interval.ms": 30_000,
            "error_cb": self._failed,
            **(kafka_config or {}),
        }
        self._idle_s = idle_s
        self._probe_at = self._read_until = self._asked_until = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.positioned = threading.Event()  # set once every hint from now on will be read

    def are_read(self) -> bool:
        """Whether hints that are sent now come through: the leader of each partition answered a moment ago.

        They are asked while this is: after a pause it takes another moment until it can be known.
        """
        now = time.monotonic()
        self._asked_until = now + _PROBED_AFTER_S
        return now < self._read_until

    def start(self) -> None:
        """Begin to read. Call it in the event loop that the index belongs to."""
        deliver = asyncio.get_running_loop().call_soon_threadsafe
        self._thread = threading.Thread(target=self._read, args=(deliver,), name="ready-hints", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _read(self, deliver: Callable[..., object]) -> None:
        consumer = Consumer(self._config, logger=log)
        try:
            self._assign_all(consumer)
            while not self._stopping.is_set():
                for hint in self._decode(_next_records(consumer, self._wait_s())):
                    self._hold(hint)
                self._give(deliver)
                if self._is_time_to_probe():
                    self._probe(consumer)
        except RuntimeError:
            log.info("the event loop is gone")  # of call_soon_threadsafe, while the process ends
        finally:
            consumer.close()

    def _wait_s(self) -> float:
        """For the next record: no longer than until something that is held back may be given."""
        now_us = monotonic_us()
        held_us = self._held.wait_us(now_us)
        return self._idle_s if held_us is None else min(self._idle_s, max(held_us, self._rests_until_us - now_us) / 1e6)

    def _give(self, deliver: Callable[..., object]) -> None:
        now_us = monotonic_us()
        if now_us >= self._rests_until_us and (due := self._held.pop(now_us)):
            self._rests_until_us = now_us + _GIVE_EVERY_US
            deliver(self._take_in, due)

    def _assign_all(self, consumer: Consumer) -> None:
        """Read every partition of the topic from its end; waits for a broker and for the topic."""
        while not self._stopping.is_set():
            try:
                partitions = consumer.list_topics(self._topic, timeout=2.0).topics[self._topic].partitions
            except KafkaException as error:
                log.warning("the ready topic is not to be had: %s", error)
                partitions = {}
            if partitions:
                consumer.assign(_ends(consumer, [TopicPartition(self._topic, each, OFFSET_END) for each in partitions]))
                self.positioned.set()
                return
            self._stopping.wait(0.5)

    def _is_time_to_probe(self) -> bool:
        """A probe takes some milliseconds, so it waits, for a while, until nothing is held back."""
        now = time.monotonic()
        return now < self._asked_until and now - self._probe_at >= (_PROBE_EVERY_S if self._held else 0)

    def _probe(self, consumer: Consumer) -> None:
        """Ask the leaders for something small: a fetch that brings nothing, or hangs, tells nobody."""
        try:
            latest = [TopicPartition(self._topic, each.partition, OFFSET_END) for each in consumer.assignment()]
            answered = not any(end.error for end in consumer.offsets_for_times(latest, timeout=_PROBE_TIMEOUT_S))
        except KafkaException as error:
            if self._read_until:
                log.warning("hints cannot be read: %s", error)
            answered = False
        now = time.monotonic()
        self._probe_at = now + _PROBE_EVERY_S
        self._read_until = now + 2 * (_PROBE_EVERY_S + _PROBE_TIMEOUT_S) if answered else 0.0

    def _failed(self, _: KafkaError) -> None:
        """Called by the library while it is polled: a connection was lost, for instance."""
        self._probe_at = self._read_until = 0.0

    def _decode(self, records: Iterable[Message]) -> list[Hint]:
        hints = []
        for record in records:
            if record.error():
                _log_unless_expected(record.error())
                continue
            try:
                hints.append(self._decode_one(record))
            except (Undecodable, KeyError, ValueError) as error:
                self._metrics.undecodable_hints.inc()
                log.warning("partition %s offset %s is no hint: %s", record.partition(), record.offset(), error)
        return hints

    def _decode_one(self, record: Message) -> Hint:
        name, fields = self._codec.decode(record.value(), micros=True)
        if name != "ReadyHints":
            raise Undecodable(f"a {name} is no hint")
        packed: bytes = fields["runIds"]
        lane, epoch = _LANE_NUMBERS[fields["lane"]], fields["epoch"]
        runs = [ReadyRun(UUID(bytes=packed[start : start + 16]), epoch, lane) for start in range(0, len(packed), 16)]
        kind, sent_ms = record.timestamp()
        lag_ms = None if kind == TIMESTAMP_NOT_AVAILABLE else max(0.0, time.time() * 1000 - sent_ms)
        due_us: int | None = fields["dueAt"]
        until_us = None if due_us is None else self._locally_us(fields["partition"], due_us)
        return Hint((fields["tenant"], fields["queue"]), runs, monotonic_us(), until_us, lag_ms)

    def _hold(self, hint: Hint) -> None:
        self._held.hold(hint, hint.read_us if hint.until_us is None else hint.until_us, hint.read_us)

    def _take_in(self, hints: Iterable[Hint]) -> None:
        """In the event loop: the index belongs to it."""
        for hint in hints:
            self._index.add(hint.queue, hint.runs)
            self._metrics.hints.inc(len(hint.runs))
            if hint.lag_ms is not None:
                self._metrics.hint_lag_ms.observe(hint.lag_ms)
            if hint.until_us is not None:
                self._metrics.hint_late_ms.observe(max(0, hint.read_us - hint.until_us) / 1000)


def _ends(consumer: Consumer, latest: list[TopicPartition]) -> list[TopicPartition]:
    """Where each partition ends now; of one whose leader does not tell, where it will once the first fetch is sent."""
    try:
        told = consumer.offsets_for_times(latest, timeout=_PROBE_TIMEOUT_S)
    except KafkaException as error:
        log.warning("the ready topic's ends are not to be had: %s", error)
        return latest
    return [TopicPartition(end.topic, end.partition, OFFSET_END if end.error else end.offset) for end in told]


def _next_records(consumer: Consumer, within_s: float) -> list[Message]:
    """The first record that comes in time and all that came beside it: `consume` alone waits for a full batch."""
    if within_s < _POLL_STEP_S:
        time.sleep(within_s)  # to the point, which a poll is not
        within_s = 0
    first = consumer.poll(within_s)
    return [] if first is None else [first, *consumer.consume(_BATCH_RECORDS, 0)]


def _log_unless_expected(error: KafkaError) -> None:
    if error.code() != KafkaError._PARTITION_EOF:
        log.warning("reading hints: %s", error)
