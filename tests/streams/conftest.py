"""What the tests of owners share: topics of their own, and what surrounds an owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from connectors.stack import KafkaBroker
from ledger.clock import LedgerClock
from ledger.connection import Pool
from ledger.fence import owners_transaction
from schemas.codec import Codec
from schemas.errors import KafkaUnavailable
from streams.decision_rounds import DecisionRounds
from streams.event_feed import EventFeed
from streams.rejections import CommandReturns
from streams.surroundings import Surroundings
from streams.topics import Topics, create_topics
from tests.ledger_fixtures import PARTITIONS
from tests.streams.hint_log import HintLog
from tests.streams.scene import Scene
from tests.streams.simulated_owner import simulating
from tests.streams.waiting import until


@dataclass
class OwnerSetting:
    """A ledger, a broker and topics for owners, and what they did."""

    pool: Pool
    bootstrap: str
    topics: Topics
    around: Surroundings
    hints: HintLog
    feed: EventFeed
    folder: Path
    crashes: list[Exception] = field(default_factory=list)

    async def rejected(self, count: int) -> list[dict[str, Any]]:
        """The first `count` records of the rejected topic."""
        return await asyncio.to_thread(self._read, self.topics.rejected, 0, count)

    async def forwarded(self, partition: int, count: int) -> list[bytes]:
        """The first records of a partition of the commands topic."""
        return await asyncio.to_thread(self._read_raw, self.topics.commands, partition, count)

    async def forwarded_headers(self, partition: int, count: int) -> list[list[tuple[str, bytes]]]:
        """Those of the same records."""
        records = await asyncio.to_thread(self._read_records, self.topics.commands, partition, count)
        return [record.headers() or [] for record in records]

    def _read(self, topic: str, partition: int, count: int) -> list[dict[str, Any]]:
        return [Codec().decode(value)[1] for value in self._read_raw(topic, partition, count)]

    def _read_raw(self, topic: str, partition: int, count: int) -> list[bytes]:
        return [record.value() for record in self._read_records(topic, partition, count)]

    def _read_records(self, topic: str, partition: int, count: int) -> list[Message]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": uuid4().hex})
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        records: list[Message] = []
        for _ in range(100):
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                records.append(message)
            if len(records) == count:
                break
        consumer.close()
        assert len(records) == count
        return records


@pytest_asyncio.fixture
async def setting(ledger_pool: Pool, kafka_broker: KafkaBroker, tmp_path: Path) -> AsyncIterator[OwnerSetting]:
    topics, codec, hints, clock = Topics(f"test-{uuid4().hex[:12]}"), Codec(), HintLog(), LedgerClock()
    await asyncio.to_thread(create_topics, kafka_broker.bootstrap, topics, PARTITIONS)
    await clock.sample(ledger_pool)
    returns = CommandReturns(kafka_broker.bootstrap, topics.commands, topics.rejected, codec)
    crashes: list[Exception] = []
    feed = EventFeed(kafka_broker.bootstrap, topics.run_events, codec, lambda *_: None, lambda _: None, crashes.append)
    around = Surroundings(
        ledger_pool,
        codec,
        hints,
        returns,
        clock,
        PARTITIONS,
        tmp_path / "state",
        DecisionRounds(partial(owners_transaction, ledger_pool)),
        lambda _: None,
        feed.end_offset,
        crashes.append,
    )
    bootstrap = kafka_broker.bootstrap
    for partition in range(PARTITIONS):
        await until(partial(_is_led, feed, partition))
    yield OwnerSetting(ledger_pool, bootstrap, topics, around, hints, feed, tmp_path / "state", crashes)
    await feed.close()
    returns.close()


async def _is_led(feed: EventFeed, partition: int) -> bool:
    """A new topic's partitions have their leaders a moment after it is there."""
    try:
        return await feed.end_offset(partition) == 0
    except KafkaUnavailable:
        return False


@pytest_asyncio.fixture
async def scene(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async with simulating(ledger_pool, tmp_path, datetime(2017, 1, 1, tzinfo=UTC), monkeypatch) as simulation:
        yield Scene(simulation)
