"""Run events of partitions that happened while others owned them: read to their end before the new owners work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas.codec import Codec
from schemas.events import Event
from streams.breath import Breath
from streams.event_feed import BATCH, EVENTS_AT_ONCE, OwnerEvents

log = logging.getLogger(__name__)

POLL_S = 0.05  # so long may wait what is newly asked, while nothing comes
SILENCE_S = 3.0  # a broker answers within milliseconds, unless it is away
KEPT_S = 1.0  # partitions are opened some at a time: the next ones ask in a moment

T = TypeVar("T")
Fold = Callable[[list[Event], int], None]  # events, and the offset after them


class MissedEvents:
    """Belongs to one event loop. One consumer reads all that is asked meanwhile, and is there only while somebody asks.

    It is not the feed's, whose owners are at work and would wait for what others have missed.
    """

    def __init__(self, bootstrap: str, topic: str, codec: Codec, kafka_config: Mapping[str, Any] | None = None) -> None:
        self._topic, self._events = topic, OwnerEvents(codec)
        self._config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": "fencepost-owner-missed",  # asked for by the library; we neither join nor commit
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            # Whoever asks while others are read to their end waits for the fetch under way: 0.5 s by the library's own.
            "fetch.wait.max.ms": 20,
            **(kafka_config or {}),
        }
        self._asked: list[_Reading] = []
        self._any_asked = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def __call__(self, partition: int, offset: int, end: int, limit: int, fold: Fold) -> int | None:
        """Fold what the topic has from the offset to the end, or a bit more; returns the offset after it.

        None when it is more than `limit` events or not all there any more, or when Kafka is silent; some of it may be
        folded then. A partition is read for one caller at a time.
        """
        if offset >= end:
            return offset
        reading = _Reading(partition, offset, end, limit, fold, asyncio.get_running_loop().create_future())
        self._asked.append(reading)
        self._any_asked.set()
        if self._reader is None:
            self._reader = asyncio.create_task(self._read(), name="missed events")
        return await reading.done

    async def close(self) -> None:
        """Nobody will ask any more; whoever waits gets none."""
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader

    async def _read(self) -> None:
        try:
            while self._asked:
                await self._read_while_asked()
        except KafkaException:
            log.exception("%s cannot be read", self._topic)
        finally:
            self._reader = None
            for reading in self._asked:
                reading.give_up()
            self._asked.clear()

    async def _read_while_asked(self) -> None:
        """With one consumer, until nobody has asked for a while."""
        reader = _Reader(self._topic, self._events, self._config)
        try:
            while reader.is_busy() or await self._is_asked():
                asked, self._asked = self._asked, []
                await reader.read_on([reading for reading in asked if not reading.done.done()])
        finally:
            await reader.close()

    async def _is_asked(self) -> bool:
        self._any_asked.clear()
        if not self._asked:
            with suppress(TimeoutError):
                async with asyncio.timeout(KEPT_S):
                    await self._any_asked.wait()
        return bool(self._asked)


@dataclass(eq=False)
class _Reading:
    """What somebody waits for. done: the offset after what was folded, or None."""

    partition: int
    offset: int
    end: int
    limit: int
    fold: Fold
    done: asyncio.Future[int | None]

    def take(self, events: list[Event], next_offset: int) -> None:
        """Fold, unless nobody waits any more."""
        self.limit -= len(events)
        if self.limit < 0:
            self.give_up()
        if self.done.done():
            return
        try:
            self.fold(events, next_offset)
        except Exception as error:
            self.done.set_exception(error)
            return
        self.offset = next_offset
        if next_offset >= self.end:
            self.done.set_result(next_offset)

    def give_up(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Reader:
    """A consumer, and what it reads."""

    def __init__(self, topic: str, events: OwnerEvents, config: Mapping[str, Any]) -> None:
        self._topic, self._events = topic, events
        self._consumer = Consumer(dict(config))
        self._under_way: dict[int, _Reading] = {}
        self._heard = time.monotonic()

    def is_busy(self) -> bool:
        return bool(self._under_way)

    async def close(self) -> None:
        for reading in self._under_way.values():
            reading.give_up()
        await _in_thread(self._consumer.close)

    async def read_on(self, asked: Sequence[_Reading]) -> None:
        """Begin with these, and fold what comes of all; when nothing has come for a while, none is waited for."""
        over = [reading for reading in self._under_way.values() if reading.done.done()]
        for reading in over:
            del self._under_way[reading.partition]
        self._under_way |= {reading.partition: reading for reading in asked}
        if asked:
            self._heard = time.monotonic()
        await self._fold(await _in_thread(self._fetch, over, asked))
        if time.monotonic() - self._heard > SILENCE_S:
            log.warning("%s: nothing comes of partitions %s", self._topic, sorted(self._under_way))
            for reading in self._under_way.values():
                reading.give_up()

    def _fetch(self, over: Sequence[_Reading], asked: Sequence[_Reading]) -> list[Message]:
        """What is there: consume() alone would wait for the batch to be full."""
        if over:
            self._consumer.incremental_unassign([TopicPartition(self._topic, each.partition) for each in over])
        if asked:
            begun = [TopicPartition(self._topic, each.partition, each.offset) for each in asked]
            self._consumer.incremental_assign(begun)
        first = self._consumer.poll(POLL_S)
        return [] if first is None else [first, *self._consumer.consume(BATCH - 1, 0)]

    async def _fold(self, messages: Sequence[Message]) -> None:
        breath = Breath()
        for partition, of_partition in groupby(messages, Message.partition):
            if (reading := self._under_way.get(partition)) is not None:
                await self._fold_of(reading, of_partition, breath)

    async def _fold_of(self, reading: _Reading, messages: Iterable[Message], breath: Breath) -> None:
        events, offset = list[Event](), reading.offset
        for message in messages:
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                self._heard = time.monotonic()
            if error is None:
                events += self._events.of_record(message)
                offset = message.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                offset = max(offset, message.offset())  # what is before the end may be no record
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                reading.give_up()
            else:
                log.warning("run-events %s: %s", message.partition(), error)
            if len(events) >= EVENTS_AT_ONCE:
                reading.take(events, offset)
                events = []
            await breath.take()
        reading.take(events, offset)


async def _in_thread(call: Callable[..., T], *args: Any) -> T:
    """A cancellation waits for the call: a consumer that is used must not be closed."""
    work = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        work.exception()  # nobody is left to be told
        raise
