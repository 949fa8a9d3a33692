"""Run events for the owners of this process, read in batches, past Faust: its per-event cost is for commands only."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas.audits import AUDIT_KEY
from schemas.codec import Codec
from schemas.errors import Undecodable
from schemas.event_rows import EventRows
from schemas.events import Event
from streams.feed_watch import FeedWatch
from streams.topic_ends import TopicEnds

log = logging.getLogger(__name__)

BATCH = 500  # records; each has up to a thousand events
EVENTS_AT_ONCE = 2_000  # on the loop, some 10 ms
POLL_S = 0.2  # the library wakes as often by itself; so long may what is newly assigned wait
LOOK_EVERY_S = 10.0
LOOK_TIMEOUT_S = 1.0
# In the order of Event's.
_FIELDS = (
    "type", "jobId", "runId", "version", "tenant", "queue", "lane", "scheduledFor", "dueAt", "leaseExpiresAt",
    "definition", "gated",
)  # fmt: skip
_Batches = dict[int, tuple[list[Event], int]]  # by partition: events, and the offset after them


class OwnerEvents:
    """Reads of records of run-events what their partition's owner takes."""

    def __init__(self, codec: Codec) -> None:
        self._rows = EventRows(codec, _FIELDS)

    def of(self, wire: bytes) -> list[Event]:
        """Raises Undecodable."""
        return [_event(*row) for row in self._rows.of(wire)]

    def of_record(self, message: Message) -> list[Event]:
        """None of a record that is none of ours, or of audits."""
        if message.key() == AUDIT_KEY:
            return []
        try:
            return self.of(message.value() or b"")
        except Undecodable:
            # Somebody else wrote to our topic. The memory is a cache: the sweeps mend what this may have held.
            log.exception("run-events %d@%d is no record of ours", message.partition(), message.offset())
            return []


class EventFeed:
    """Feeds each assigned partition's events to `deliver(partition, events, next offset)` on the loop, in order.

    gone(partition): the events from the asked offset on are not in the topic any more; the partition is unassigned.
    crash(error): the feed has ended by an error that no time will mend. All three are called on the loop.
    A batch is fetched only when the one before was delivered: the topic is the buffer.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        codec: Codec,
        deliver: Callable[[int, list[Event], int], None],
        gone: Callable[[int], None],
        crash: Callable[[Exception], None],
        kafka_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._topic, self._events = topic, OwnerEvents(codec)
        self._deliver, self._gone, self._crash = deliver, gone, crash
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": "fencepost-owner-feed",  # asked for by the library; we neither join nor commit
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 500,  # a broker answers as soon as it has a byte
            "fetch.min.bytes": 1,
            "isolation.level": "read_committed",
            **(kafka_config or {}),
        }
        self._consumer = Consumer(config)
        self._ends = TopicEnds(topic, config)
        self._requests: SimpleQueue[tuple[int, int | None]] = SimpleQueue()
        self._look_at = 0.0
        self.watch = FeedWatch()  # of the loop
        self._stop = threading.Event()
        self._assigned = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read, in a thread, delivering to the running loop."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._read, args=(loop,), name="event-feed", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Stop reading; a batch under way is delivered first."""
        self._stop.set()
        self._assigned.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        await asyncio.gather(asyncio.to_thread(self._consumer.close), self._ends.close())

    def assign(self, partition: int, offset: int) -> None:
        """Read this partition from this offset on."""
        self.watch.begin(partition, offset, time.monotonic())
        self._requests.put((partition, offset))
        self._assigned.set()

    def unassign(self, partition: int) -> None:
        """Read this partition no more; a no-op when it is not assigned. What is under way is still delivered."""
        self.watch.end(partition)
        self._requests.put((partition, None))

    async def end_offset(self, partition: int) -> int:
        """The offset that the partition's next event will have. Raises KafkaUnavailable."""
        return await self._ends.of(partition)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        self._assigned.wait()
        while not self._stop.is_set():
            try:
                self._read_some(loop)
            except Exception as error:
                if not self._stop.is_set():
                    log.exception("the feed of run-events failed")
                    loop.call_soon_threadsafe(self._crash, error)
                return

    def _read_some(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._reassign()
            self._look(loop)
            messages = self._fetch()
        except KafkaException as error:
            log.warning("run-events cannot be read: %s", error)
            self._stop.wait(POLL_S)
            return
        if messages:
            self._hand_over(loop, messages)

    def _fetch(self) -> list[Message]:
        """What is there: consume() alone would wait for the batch to be full."""
        first = self._consumer.poll(POLL_S)
        return [] if first is None else [first, *self._consumer.consume(BATCH - 1, 0)]

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask the leaders now and then how far the topic goes: a fetch that brings nothing, or hangs, tells nobody."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY_S
        latest = [TopicPartition(self._topic, each.partition, OFFSET_END) for each in self._consumer.assignment()]
        if latest:
            told = self._consumer.offsets_for_times(latest, timeout=LOOK_TIMEOUT_S)
            ends = {each.partition: each.offset for each in told if each.error is None}
            loop.call_soon_threadsafe(self.watch.looked, ends, time.monotonic())

    def _reassign(self) -> None:
        """Carry out what was asked meanwhile: only the reading thread touches its consumer."""
        while not self._requests.empty():
            partition, offset = self._requests.get()
            self._unassign(partition)
            if offset is not None:
                self._consumer.incremental_assign([TopicPartition(self._topic, partition, offset)])

    def _unassign(self, partition: int) -> None:
        if any(tp.partition == partition for tp in self._consumer.assignment()):
            self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def _hand_over(self, loop: asyncio.AbstractEventLoop, messages: list[Message]) -> None:
        batches: _Batches = {}
        count = 0
        for message in messages:
            if error := message.error():
                self._on_error(loop, message, error)
                continue
            events, _ = batches.setdefault(message.partition(), ([], 0))
            events += (more := self._events.of_record(message))
            batches[message.partition()] = (events, message.offset() + 1)
            count += len(more)
            if count >= EVENTS_AT_ONCE:
                self._await_delivery(loop, batches)
                batches, count = {}, 0
        if batches:
            self._await_delivery(loop, batches)

    def _await_delivery(self, loop: asyncio.AbstractEventLoop, batches: _Batches) -> None:
        delivered = asyncio.run_coroutine_threadsafe(self._deliver_all(batches), loop)
        while not self._stop.is_set():
            try:
                delivered.result(timeout=POLL_S)
                return
            except TimeoutError:
                continue

    async def _deliver_all(self, batches: _Batches) -> None:
        for partition, (events, next_offset) in batches.items():
            self._deliver(partition, events, next_offset)
            self.watch.went_on(partition, next_offset, time.monotonic())

    def _on_error(self, loop: asyncio.AbstractEventLoop, message: Message, error: KafkaError) -> None:
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._unassign(message.partition())
            loop.call_soon_threadsafe(self._gone, message.partition())
        else:
            log.warning("run-events %s: %s", message.partition(), error)


def _event(kind: str, job_id: str, run_id: str | None, *fields: Any) -> Event:
    return Event(kind, _id_bytes(job_id), None if run_id is None else _id_bytes(run_id), *fields)


def _id_bytes(text: str) -> bytes:
    """Those of an id in its usual form, in a sixth of UUID's time. Raises Undecodable."""
    try:
        if len(found := bytes.fromhex(text.replace("-", ""))) == 16:
            return found
    except ValueError:
        pass
    raise Undecodable(f"{text!r} is no id")
