"""Events straight from the topic `run-events`, for whoever may read Kafka: all tenants', as far as it goes back."""

from __future__ import annotations

import asyncio
import io
import logging
import struct
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import uuid4

import fastavro
import fastavro.schema
from confluent_kafka import OFFSET_END, Consumer, KafkaException, Message, TopicPartition

from fencepost.errors import InvalidInput, KafkaUnreachable, TopicMissing
from fencepost.verification.event_source import Page, Start
from fencepost.verification.events import Event, RunEvent, event_from
from fencepost.wire import AVRO_FOLDER, NAMESPACE

RUN_EVENTS_ID = 12  # of the server's built-in registry
AUDIT_KEY = b"audit"  # of records that tell who changed what, which are none of run events
_HEADER = struct.Struct(">bI")
_RECORDS_A_PAGE = 64  # each has up to a thousand events
_METADATA_TIMEOUT_S = 10.0
_SILENCE_S = 30.0  # of a broker that has records which it does not send
_CLOCKS_APART = timedelta(minutes=1)

log = logging.getLogger("fencepost.kafka")
log.addHandler(logging.NullHandler())


def events_of(wire: bytes | None, schema_id: int = RUN_EVENTS_ID) -> list[Event]:
    """The events of one record. Raises InvalidInput for one of another schema."""
    if wire is None or len(wire) < _HEADER.size:
        raise InvalidInput(f"a record of {0 if wire is None else len(wire)} bytes is none of run events")
    magic, written = _HEADER.unpack_from(wire)
    if magic != 0 or written != schema_id:
        raise InvalidInput(f"a record has schema id {written}; give a registry's id of RunEvents with --schema-id")
    body = io.BytesIO(wire)
    body.seek(_HEADER.size)
    record: Any = fastavro.schemaless_reader(body, _run_events(), None)
    return [event_from(each) for each in record["events"]]


@cache
def _run_events() -> Any:
    return fastavro.schema.load_schema(AVRO_FOLDER / f"{NAMESPACE}.RunEvents.avsc")


class TopicPages:
    """Events that happened from `since` on and, if `until` is given, before it. tenant: only this one's."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        since: datetime,
        until: datetime | None = None,
        *,
        tenant: str | None = None,
        kafka_config: Mapping[str, str] | None = None,
        schema_id: int = RUN_EVENTS_ID,
    ) -> None:
        self._topic, self._since, self._until, self._tenant = topic, since, until, tenant
        self._schema_id = schema_id
        self._bootstrap = bootstrap
        self._ends: dict[int, int] = {}
        settings = {
            **(kafka_config or {}),
            "bootstrap.servers": bootstrap,
            "group.id": f"fencepost-verify-{uuid4()}",  # librdkafka wants one; nothing is ever committed under it
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        try:
            self._consumer = Consumer(settings, logger=log)
        except KafkaException as error:
            raise InvalidInput(error.args[0].str(), field="kafka_config") from error

    async def measure(self) -> int:
        """Begin to read; returns how many records there are now."""
        return await asyncio.to_thread(self._begin)

    def _begin(self) -> int:
        try:
            topics: Any = self._consumer.list_topics(timeout=_METADATA_TIMEOUT_S).topics
            if self._topic not in topics:
                raise TopicMissing(
                    f"{self._bootstrap} has no topic {self._topic}: is that the right broker and prefix?"
                )
            partitions = sorted(topics[self._topic].partitions)
            ends = {each: self._watermarks(each)[1] for each in partitions}
            starts = self._starts(partitions)
            self._consumer.assign([TopicPartition(self._topic, each, starts[each]) for each in partitions])
        except KafkaException as error:
            raise KafkaUnreachable(f"Kafka at {self._bootstrap}: {error.args[0].str()}", sent=False) from error
        self._ends = {each: end for each, end in ends.items() if end > starts[each] != OFFSET_END}
        return sum(end - max(starts[each], self._watermarks(each)[0]) for each, end in self._ends.items())

    def _watermarks(self, partition: int) -> tuple[int, int]:
        found: tuple[int, int] = self._consumer.get_watermark_offsets(
            TopicPartition(self._topic, partition), timeout=_METADATA_TIMEOUT_S
        )
        return found

    def _starts(self, partitions: list[int]) -> dict[int, int]:
        """The first record of each partition that may have an event of the range: it was published after the event."""
        at_ms = int((self._since - _CLOCKS_APART).timestamp() * 1000)
        asked = [TopicPartition(self._topic, each, at_ms) for each in partitions]
        found = self._consumer.offsets_for_times(asked, timeout=_METADATA_TIMEOUT_S)
        return {each.partition: each.offset if each.offset >= 0 else OFFSET_END for each in found}

    async def jobs_at_start(self) -> AsyncIterator[Start]:
        """None: the topic may not go back so far."""
        nothing: list[Start] = []
        for start in nothing:
            yield start

    async def past_of(self, first_seen: Mapping[str, int]) -> list[RunEvent]:  # noqa: ARG002
        """None, for the same reason."""
        return []

    async def pages(self) -> AsyncIterator[Page]:
        """What was there when it was measured; the size of a page is the number of its records."""
        left = dict(self._ends)
        silent_s = 0.0
        while left:
            records = await asyncio.to_thread(self._consumer.consume, _RECORDS_A_PAGE, 1.0)
            silent_s = 0.0 if records else silent_s + 1.0
            if silent_s > _SILENCE_S:
                raise KafkaUnreachable(f"Kafka at {self._bootstrap} sends no records of {self._topic}", sent=False)
            if records:
                yield Page(self._events(records), len(records))
            positions = self._consumer.position([TopicPartition(self._topic, each) for each in left])
            for each in positions:
                if each.offset >= left[each.partition]:
                    del left[each.partition]

    async def new_page(self) -> list[Event]:
        """What has come since; waits for it for a moment."""
        return self._events(await asyncio.to_thread(self._consumer.consume, _RECORDS_A_PAGE, 1.0))

    async def close(self) -> None:
        """Leave the broker."""
        await asyncio.to_thread(self._consumer.close)

    def _events(self, records: list[Message]) -> list[Event]:
        return [
            event
            for record in records
            if record.error() is None and record.key() != AUDIT_KEY
            for event in events_of(record.value(), self._schema_id)
            if self._is_asked_for(event)
        ]

    def _is_asked_for(self, event: Event) -> bool:
        in_time = self._since <= event.at and (self._until is None or event.at < self._until)
        return in_time and (self._tenant is None or event.tenant == self._tenant)
