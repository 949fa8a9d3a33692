"""Events read to their end at once, before an owner works: all of them, in order, or none that count."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import UUID

import pytest
import pytest_asyncio
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.stack import KafkaBroker
from schemas.codec import Codec
from schemas.errors import KafkaUnavailable
from schemas.events import Event
from streams import missed_events
from streams.missed_events import MissedEvents
from streams.topics import Topics
from tests.streams.event_samples import new_topics, produce_events, produce_values, run_event
from tests.streams.waiting import until

MANY = 1_000


@dataclass
class Folded:
    """A topic, and what was folded of its first partition."""

    bootstrap: str
    topics: Topics
    versions: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def produce(self, versions: range) -> None:
        """A record each."""
        events = [run_event(UUID(int=1), version, "run_leased") for version in versions]
        values = [Codec().encode("RunEvents", {"partition": 0, "events": [event]}) for event in events]
        produce_values(self.bootstrap, self.topics.run_events, values)

    def fold(self, events: list[Event], next_offset: int) -> None:
        self.versions += [event.version for event in events]
        self.offsets.append(next_offset)

    async def is_led(self) -> bool:
        """A new topic's partitions have their leaders a moment after it is there."""
        try:
            return await self.read(0) == 0
        except KafkaUnavailable:
            return False

    async def read(self, offset: int, limit: int = MANY) -> int | None:
        return await MissedEvents(self.bootstrap, self.topics.run_events, Codec())(0, offset, limit, self.fold)


@pytest_asyncio.fixture
async def folded(kafka_broker: KafkaBroker) -> Folded:
    folded = Folded(kafka_broker.bootstrap, await asyncio.to_thread(new_topics, kafka_broker.bootstrap))
    await until(folded.is_led)
    return folded


@pytest.mark.apache_kafka(reason="tansu tells wrong ends of topics that hold batches")
async def test_events_are_folded_from_the_offset_to_the_end(folded: Folded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_events, "EVENTS_AT_ONCE", 4)
    await asyncio.to_thread(folded.produce, range(1, 31))
    assert await folded.read(5) == 30
    assert folded.versions == list(range(6, 31))
    assert folded.offsets == sorted(folded.offsets)
    assert folded.offsets[-1] == 30
    assert await folded.read(30) == 30
    assert folded.versions == list(range(6, 31))


async def test_a_topic_without_events_has_none_to_fold(folded: Folded) -> None:
    assert await folded.read(0) == 0
    assert folded.versions == []


@pytest.mark.apache_kafka(reason="tansu tells wrong ends of topics that hold batches")
async def test_a_record_that_is_none_of_ours_is_passed_over(folded: Folded) -> None:
    await asyncio.to_thread(folded.produce, range(1, 2))
    await asyncio.to_thread(produce_values, folded.bootstrap, folded.topics.run_events, [b"what is this"])
    nobody = run_event(UUID(int=1), 7, "run_leased") | {"runId": "nobody"}
    await asyncio.to_thread(produce_events, folded.bootstrap, folded.topics, [nobody])
    assert await folded.read(0) == 3
    assert folded.versions == [1]


@pytest.mark.apache_kafka(reason="tansu tells wrong ends of topics that hold batches")
async def test_more_than_is_worth_reading_is_not_read(folded: Folded) -> None:
    await asyncio.to_thread(folded.produce, range(1, 12))
    assert await folded.read(0, limit=10) is None
    assert folded.versions == []
    assert await folded.read(1, limit=10) == 11


@pytest.mark.apache_kafka(reason="tansu deletes no records")
async def test_events_that_retention_has_taken_cannot_be_had(folded: Folded) -> None:
    await asyncio.to_thread(folded.produce, range(1, 4))
    admin = AdminClient({"bootstrap.servers": folded.bootstrap})
    for future in admin.delete_records([TopicPartition(folded.topics.run_events, 0, 2)]).values():
        await asyncio.to_thread(future.result, 20)
    assert await folded.read(1) is None
    assert await folded.read(2) == 3
    assert folded.versions == [3]


@pytest.mark.apache_kafka(reason="tansu tells wrong ends of topics that hold batches")
async def test_an_offset_that_the_topic_has_not_reached_is_of_another_topic(folded: Folded) -> None:
    await asyncio.to_thread(folded.produce, range(1, 4))
    assert await folded.read(4) is None


async def test_an_absent_broker_is_said(folded: Folded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_events, "OFFSET_TIMEOUT_S", 0.2)
    missed = MissedEvents("127.0.0.1:1", folded.topics.run_events, Codec())
    with pytest.raises(KafkaUnavailable):
        await missed(0, 0, MANY, folded.fold)


async def test_several_at_once_take_turns_and_one_that_is_cancelled_leaves_no_consumer_behind(folded: Folded) -> None:
    await asyncio.to_thread(folded.produce, range(1, 4))
    missed = MissedEvents(folded.bootstrap, folded.topics.run_events, Codec())
    cancelled, *others = (asyncio.create_task(missed(0, 0, MANY, folded.fold)) for _ in range(3))
    await asyncio.sleep(0)  # it has begun
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await asyncio.gather(*others) == [3, 3]
    assert folded.versions == [1, 2, 3] * 2
