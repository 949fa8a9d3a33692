"""Events read to their end at once, before an owner works: all of them, in order, or none that count."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.stack import KafkaBroker
from schemas.codec import Codec
from schemas.events import Event
from streams import missed_events
from streams.missed_events import MissedEvents
from streams.topics import Topics
from tests.streams.event_samples import PARTITIONS, new_topics, produce_events, produce_values, run_event
from tests.streams.waiting import until

FAR = 1_000  # an end that does not come
MANY = 1_000


class Folded:
    """A topic, who reads it, and what was folded."""

    def __init__(self, bootstrap: str, topics: Topics) -> None:
        self.bootstrap, self.topics = bootstrap, topics
        self.missed = MissedEvents(bootstrap, topics.run_events, Codec())
        self.versions: defaultdict[int, list[int]] = defaultdict(list)
        self.offsets: defaultdict[int, list[int]] = defaultdict(list)

    async def produce(self, versions: range, partition: int = 0) -> None:
        """A record each."""
        events = [run_event(UUID(int=1), version, "run_leased") for version in versions]
        values = [Codec().encode("RunEvents", {"partition": partition, "events": [event]}) for event in events]
        await asyncio.to_thread(produce_values, self.bootstrap, self.topics.run_events, values, partition)

    async def read(self, offset: int, end: int, partition: int = 0, limit: int = MANY) -> int | None:
        def fold(events: list[Event], next_offset: int) -> None:
            self.versions[partition] += [event.version for event in events]
            self.offsets[partition].append(next_offset)

        return await self.missed(partition, offset, end, limit, fold)


@pytest_asyncio.fixture
async def folded(kafka_broker: KafkaBroker) -> AsyncIterator[Folded]:
    folded = Folded(kafka_broker.bootstrap, await asyncio.to_thread(new_topics, kafka_broker.bootstrap))
    yield folded
    await folded.missed.close()


@pytest.fixture
def consumers(monkeypatch: pytest.MonkeyPatch) -> list[Consumer]:
    """All that were made."""
    made: list[Consumer] = []

    def make(config: dict[str, Any]) -> Consumer:
        made.append(Consumer(config))
        return made[-1]

    monkeypatch.setattr(missed_events, "Consumer", make)
    return made


async def test_events_are_folded_from_the_offset_to_the_end(folded: Folded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_events, "EVENTS_AT_ONCE", 4)
    await folded.produce(range(1, 31))
    assert await folded.read(5, 30) == 30
    assert folded.versions[0] == list(range(6, 31))
    assert folded.offsets[0] == sorted(folded.offsets[0])
    assert folded.offsets[0][-1] == 30


async def test_where_nothing_was_missed_nothing_is_read(folded: Folded, consumers: list[Consumer]) -> None:
    assert await folded.read(7, 7) == 7
    assert consumers == []


async def test_a_record_that_is_none_of_ours_is_passed_over(folded: Folded) -> None:
    await folded.produce(range(1, 2))
    await asyncio.to_thread(produce_values, folded.bootstrap, folded.topics.run_events, [b"what is this"])
    nobody = run_event(UUID(int=1), 7, "run_leased") | {"runId": "nobody"}
    await asyncio.to_thread(produce_events, folded.bootstrap, folded.topics, [nobody])
    assert await folded.read(0, 3) == 3
    assert folded.versions[0] == [1]


async def test_more_events_than_are_worth_it_are_not_folded(folded: Folded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_events, "EVENTS_AT_ONCE", 4)
    await folded.produce(range(1, 12))
    assert await folded.read(0, 11, limit=10) is None
    assert len(folded.versions[0]) <= 10
    assert await folded.read(1, 11, limit=10) == 11


@pytest.mark.apache_kafka(reason="tansu deletes no records")
async def test_events_that_retention_has_taken_cannot_be_had(folded: Folded) -> None:
    await folded.produce(range(1, 4))
    admin = AdminClient({"bootstrap.servers": folded.bootstrap})
    for future in admin.delete_records([TopicPartition(folded.topics.run_events, 0, 2)]).values():
        await asyncio.to_thread(future.result, 20)
    assert await folded.read(1, 3) is None
    assert await folded.read(2, 3) == 3
    assert folded.versions[0] == [3]


@pytest.mark.apache_kafka(reason="tansu does not tell of offsets that it has not reached")
async def test_an_offset_that_the_topic_has_not_reached_is_of_another_topic(folded: Folded) -> None:
    await folded.produce(range(1, 4))
    assert await folded.read(4, 5) is None


async def test_an_absent_broker_is_not_waited_for(folded: Folded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_events, "SILENCE_S", 0.2)
    folded.missed = MissedEvents("127.0.0.1:1", folded.topics.run_events, Codec())
    assert set(await asyncio.gather(folded.read(0, 3), folded.read(0, 3, partition=1))) == {None}


async def test_a_broker_that_falls_silent_before_the_end_is_not_waited_for(
    folded: Folded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missed_events, "SILENCE_S", 1.0)
    await folded.produce(range(1, 4))
    reading = asyncio.create_task(folded.read(0, FAR))
    await until(lambda: folded.versions[0] == [1, 2, 3])
    assert await reading is None


async def test_one_consumer_reads_what_is_asked_together_and_a_moment_later(
    folded: Folded, consumers: list[Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missed_events, "KEPT_S", FAR)
    for partition in range(PARTITIONS):
        await folded.produce(range(1, 4 + partition), partition)
    *most, last = range(PARTITIONS)
    assert await asyncio.gather(*(folded.read(1, 3 + each, each) for each in most)) == [3 + each for each in most]
    assert await folded.read(1, 3 + last, last) == 3 + last
    assert folded.versions == {each: list(range(2, 4 + each)) for each in range(PARTITIONS)}
    assert len(consumers) == 1


async def test_the_consumer_is_closed_when_nobody_asks_any_more(
    folded: Folded, consumers: list[Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missed_events, "KEPT_S", 0.0)
    await folded.produce(range(1, 4))
    for _ in range(2):
        assert await folded.read(0, 3) == 3
        await until(lambda: folded.missed._reader is None)
    assert len(consumers) == 2
    for consumer in consumers:
        with pytest.raises(RuntimeError, match="closed"):
            consumer.poll(0)


async def test_one_that_is_given_up_is_folded_no_more_and_may_be_asked_for_anew(folded: Folded) -> None:
    await folded.produce(range(1, 4))
    await folded.produce(range(1, 4), 1)
    given_up, other = (asyncio.create_task(folded.read(0, end, each)) for each, end in enumerate((FAR, 3)))
    await until(lambda: folded.versions[0] == [1, 2, 3])
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await folded.produce(range(4, 6))
    assert await other == 3
    assert folded.versions[0] == [1, 2, 3]
    assert await folded.read(3, 5) == 5
    assert folded.versions[0] == [1, 2, 3, 4, 5]


async def test_a_fold_that_fails_fails_who_asked_for_it_alone(folded: Folded) -> None:
    def fail(*_: object) -> None:
        raise ValueError("the disk is full")

    for partition in range(2):
        await folded.produce(range(1, 4), partition)
    failing, other = folded.missed(0, 0, 3, MANY, fail), folded.read(0, 3, 1)
    found = await asyncio.gather(failing, other, return_exceptions=True)
    assert isinstance(found[0], ValueError)
    assert found[1] == 3


async def test_who_waits_when_it_is_closed_has_none(folded: Folded, consumers: list[Consumer]) -> None:
    await folded.produce(range(1, 4))
    waiting = asyncio.create_task(folded.read(0, FAR))
    await until(lambda: folded.versions[0] == [1, 2, 3])
    await folded.missed.close()
    assert await waiting is None
    assert len(consumers) == 1
