"""The feed of run events: in order, from the offset that was asked for, and never silently at an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
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
from streams import event_feed, topic_ends
from streams.event_feed import EventFeed
from streams.topics import Topics
from tests.streams.event_samples import new_topics, produce_events, produce_values, run_event
from tests.streams.waiting import until


@dataclass
class Fed:
    """A running feed and what it delivered."""

    bootstrap: str
    topics: Topics
    versions: dict[int, list[int]] = field(default_factory=dict)
    next_offsets: dict[int, int] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    crashes: list[Exception] = field(default_factory=list)
    failing: bool = False

    def deliver(self, partition: int, events: list[Event], next_offset: int) -> None:
        if self.failing:
            raise OSError("the state's disk is full")
        self.versions.setdefault(partition, []).extend(event.version for event in events)
        self.next_offsets[partition] = next_offset

    def produce(self, versions: range, partition: int = 0) -> None:
        for version in versions:
            produce_events(self.bootstrap, self.topics, [run_event(UUID(int=1), version, "run_leased")], partition)

    def feed(self) -> EventFeed:
        return EventFeed(
            self.bootstrap, self.topics.run_events, Codec(), self.deliver, self.gone.append, self.crashes.append
        )


@pytest.fixture
def fed(kafka_broker: KafkaBroker) -> Fed:
    return Fed(kafka_broker.bootstrap, new_topics(kafka_broker.bootstrap))


@pytest_asyncio.fixture
async def feed(fed: Fed) -> AsyncIterator[EventFeed]:
    feed = fed.feed()
    feed.start()
    yield feed
    await feed.close()


async def test_events_come_in_order_from_the_offset_that_was_asked_for(fed: Fed, feed: EventFeed) -> None:
    await asyncio.to_thread(fed.produce, range(1, 6))
    feed.assign(0, 2)
    await until(lambda: fed.next_offsets.get(0) == 5)
    await asyncio.to_thread(fed.produce, range(6, 8))
    await until(lambda: fed.next_offsets.get(0) == 7)
    assert fed.versions == {0: [3, 4, 5, 6, 7]}


async def test_only_what_is_assigned_is_read_and_no_more_once_it_is_not(fed: Fed, feed: EventFeed) -> None:
    await asyncio.to_thread(fed.produce, range(1, 3), 0)
    await asyncio.to_thread(fed.produce, range(1, 3), 1)
    feed.assign(0, 0)
    await until(lambda: fed.next_offsets.get(0) == 2)
    feed.unassign(0)
    feed.unassign(2)  # never was
    feed.assign(1, 0)
    await until(lambda: fed.next_offsets.get(1) == 2)
    await asyncio.to_thread(fed.produce, range(3, 5), 0)
    await asyncio.to_thread(fed.produce, range(3, 5), 1)
    await until(lambda: fed.next_offsets.get(1) == 4)
    assert fed.versions == {0: [1, 2], 1: [1, 2, 3, 4]}


async def test_a_partition_that_is_assigned_again_is_read_from_the_new_offset(fed: Fed, feed: EventFeed) -> None:
    await asyncio.to_thread(fed.produce, range(1, 4))
    feed.assign(0, 0)
    await until(lambda: fed.next_offsets.get(0) == 3)
    feed.assign(0, 1)
    await until(lambda: len(fed.versions[0]) == 5)
    assert fed.versions[0] == [1, 2, 3, 2, 3]


async def test_a_record_that_is_none_of_ours_is_passed_over(fed: Fed, feed: EventFeed) -> None:
    await asyncio.to_thread(produce_values, fed.bootstrap, fed.topics.run_events, [b"what is this"])
    nobody = run_event(UUID(int=1), 7, "run_leased") | {"runId": "nobody"}
    await asyncio.to_thread(produce_events, fed.bootstrap, fed.topics, [nobody])
    await asyncio.to_thread(fed.produce, range(1, 2))
    feed.assign(0, 0)
    await until(lambda: fed.next_offsets.get(0) == 3)
    assert fed.versions == {0: [1]}


@pytest.mark.apache_kafka(reason="tansu deletes no records")
async def test_events_that_retention_has_taken_are_reported_as_gone(fed: Fed, feed: EventFeed) -> None:
    await asyncio.to_thread(fed.produce, range(1, 4))
    admin = AdminClient({"bootstrap.servers": fed.bootstrap})
    deleted = admin.delete_records([TopicPartition(fed.topics.run_events, 0, 2)])
    for future in deleted.values():
        await asyncio.to_thread(future.result, 20)
    feed.assign(0, 0)
    await until(lambda: fed.gone == [0])
    feed.assign(0, await feed.end_offset(0))
    await asyncio.to_thread(fed.produce, range(4, 5))
    await until(lambda: fed.versions == {0: [4]})


@pytest.mark.apache_kafka(reason="tansu does not say that an offset is out of range")
async def test_an_offset_beyond_the_topic_s_end_is_reported_as_gone(fed: Fed, feed: EventFeed) -> None:
    feed.assign(0, 1_000)
    await until(lambda: fed.gone == [0])


async def test_a_delivery_that_fails_is_said_and_ends_the_feed(fed: Fed, feed: EventFeed) -> None:
    fed.failing = True
    await asyncio.to_thread(fed.produce, range(1, 2))
    feed.assign(0, 0)
    await until(lambda: [type(error) for error in fed.crashes] == [OSError])


async def test_the_end_is_where_the_next_event_will_be(fed: Fed, feed: EventFeed) -> None:
    await asyncio.to_thread(fed.produce, range(1, 4))
    assert await feed.end_offset(0) == 3


async def test_the_client_that_tells_the_end_is_there_only_while_somebody_asks(
    fed: Fed, feed: EventFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(fed.produce, range(1, 4))
    assert feed._ends._client is None
    assert [*await asyncio.gather(feed.end_offset(0), feed.end_offset(1))] == [3, 0]
    client = feed._ends._client
    monkeypatch.setattr(topic_ends, "KEPT_S", 0.0)
    assert await feed.end_offset(0) == 3
    assert client is not None
    assert feed._ends._client is client
    await until(lambda: feed._ends._client is None)
    assert await feed.end_offset(0) == 3


async def test_the_end_is_unknown_while_the_broker_is_away(fed: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_ends, "TIMEOUT_S", 0.2)
    feed = Fed("127.0.0.1:1", fed.topics).feed()
    with pytest.raises(KafkaUnavailable):
        await feed.end_offset(0)
    await feed.close()


async def test_who_asks_for_an_end_just_after_another_has_asked_in_vain_does_not_wait(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Fed("127.0.0.1:1", fed.topics).feed()
    with monkeypatch.context() as patch:
        patch.setattr(topic_ends, "AWAY_S", 3600.0)
        patch.setattr(topic_ends, "TIMEOUT_S", 0.2)
        with pytest.raises(KafkaUnavailable, match="unknown"):
            await away.end_offset(0)
    with pytest.raises(KafkaUnavailable, match="a moment ago"):
        await away.end_offset(1)
    await away.close()


async def test_a_feed_that_was_assigned_nothing_closes_at_once(fed: Fed) -> None:
    feed = fed.feed()
    feed.start()
    async with asyncio.timeout(5):
        await feed.close()


def last_known_s(feed: EventFeed) -> float:
    """When its one partition was last known to go on, on the monotonic clock."""
    return -feed.watch.longest_s(0.0)


async def test_a_feed_that_stands_still_though_the_topic_goes_on_is_known_to(
    fed: Fed, feed: EventFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "LOOK_EVERY_S", 0.0)
    looks: list[dict[int, int]] = []
    looked = feed.watch.looked

    def look(ends: dict[int, int], now_s: float) -> None:
        looked(ends, now_s)
        looks.append(ends)

    monkeypatch.setattr(feed.watch, "looked", look)
    stands_still, fetch = threading.Event(), feed._fetch
    monkeypatch.setattr(feed, "_fetch", lambda: [] if stands_still.is_set() else fetch())

    async def two_more_looks() -> None:
        seen = len(looks)
        await until(lambda: len(looks) > seen + 2)

    await asyncio.to_thread(fed.produce, range(1, 3))
    feed.assign(0, 0)
    await until(lambda: looks[-1:] == [{0: 2}] and fed.next_offsets.get(0) == 2)
    stands_still.set()
    await two_more_looks()  # no fetch of before is under way
    await asyncio.to_thread(fed.produce, range(3, 4))
    await until(lambda: looks[-1:] == [{0: 3}])
    behind_since_s = last_known_s(feed)
    await two_more_looks()
    assert last_known_s(feed) == behind_since_s
    stands_still.clear()
    await until(lambda: fed.next_offsets.get(0) == 3)
    assert last_known_s(feed) > behind_since_s
