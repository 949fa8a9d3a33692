"""Run events of a partition that happened while others owned it: read to their end before the new owner works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from schemas.codec import Codec
from schemas.errors import KafkaUnavailable, Undecodable
from schemas.events import Event
from streams.breath import Breath
from streams.event_feed import BATCH, EVENTS_AT_ONCE, OwnerEvents

log = logging.getLogger(__name__)

POLL_S = 0.2
OFFSET_TIMEOUT_S = 5.0

T = TypeVar("T")
Fold = Callable[[list[Event], int], None]  # events, and the offset after them


class MissedEvents:
    """Belongs to one event loop. One partition at a time: a loop folds no more at once."""

    def __init__(self, bootstrap: str, topic: str, codec: Codec, kafka_config: Mapping[str, Any] | None = None) -> None:
        self._topic, self._events = topic, OwnerEvents(codec)
        self._config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": "fencepost-owner-missed",  # asked for by the library; we neither join nor commit
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            **(kafka_config or {}),
        }
        self._turn = asyncio.Lock()

    async def __call__(self, partition: int, offset: int, limit: int, fold: Fold) -> int | None:
        """Fold what the topic has from the offset on, up to its end as of now; returns that end.

        None when it is not all there any more, or is more than `limit` records; some of it may be folded then. Raises
        KafkaUnavailable.
        """
        async with self._turn:
            consumer = Consumer(self._config)  # its threads are needed rarely
            try:
                return await self._read(consumer, TopicPartition(self._topic, partition, offset), limit, fold)
            except KafkaException as error:
                raise KafkaUnavailable(f"{self._topic} cannot be read: {error}") from error
            finally:
                await _in_thread(consumer.close)

    async def _read(self, consumer: Consumer, start: TopicPartition, limit: int, fold: Fold) -> int | None:
        first, end = await _in_thread(consumer.get_watermark_offsets, start, OFFSET_TIMEOUT_S)
        offset: int = start.offset
        if not first <= offset <= end or end - offset > limit:
            return None
        consumer.assign([start])
        while offset < end:
            if (reached := await self._fold(await _in_thread(_fetch, consumer), offset, fold)) is None:
                return None
            offset = reached
        return offset

    async def _fold(self, messages: list[Message], offset: int, fold: Fold) -> int | None:
        """The offset after these; None when the topic has lost some."""
        events: list[Event] = []
        breath = Breath()
        for message in messages:
            if (error := message.error()) is None:
                events += self._read_events(message)
                offset = message.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                offset = max(offset, message.offset())  # what is before the end may be no record
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                return None
            else:
                raise KafkaException(error)
            if len(events) >= EVENTS_AT_ONCE:
                fold(events, offset)
                events = []
                await breath.take()
        fold(events, offset)
        return offset

    def _read_events(self, message: Message) -> list[Event]:
        try:
            return self._events.of(message.value() or b"")
        except Undecodable:
            log.exception("run-events %d@%d is no record of ours", message.partition(), message.offset())
            return []


def _fetch(consumer: Consumer) -> list[Message]:
    """What is there: consume() alone would wait for the batch to be full."""
    first = consumer.poll(POLL_S)
    return [] if first is None else [first, *consumer.consume(BATCH - 1, 0)]


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
