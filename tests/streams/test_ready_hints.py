"""What owners say on the ready topic, as it is read from a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from connectors.stack import KafkaBroker
from ledger.fence import Fence
from schemas.codec import Codec
from streams.ready_hints import ReadyHints
from streams.timers import Waiting, from_us
from streams.topics import Topics, create_topics
from tests.ledger_fixtures import PARTITIONS
from tests.streams.timing_events import START_US

FENCE = Fence(3, 7, "owner")
MAIL, SMS = Waiting("acme", "mail", "high"), Waiting("acme", "sms", "low")
ID = [bytes([number]) * 16 for number in range(9)]


class Said:
    """Hints, and what came of them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.hints = ReadyHints(bootstrap, topic, Codec())
        self._bootstrap, self._topic = bootstrap, topic

    def records(self, count: int) -> list[dict[str, Any]]:
        """The first `count` records of the topic, each queue's in their order."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": uuid4().hex})
        partitions = consumer.list_topics(self._topic, timeout=10).topics[self._topic].partitions
        consumer.assign([TopicPartition(self._topic, each, OFFSET_BEGINNING) for each in partitions])
        found = consumer.consume(count, timeout=20)
        consumer.close()
        assert len(found) == count
        return [Codec().decode(record.value())[1] for record in found]


@pytest.fixture
def said(kafka_broker: KafkaBroker) -> Iterator[Said]:
    topics = Topics(f"test-{uuid4().hex[:12]}")
    create_topics(kafka_broker.bootstrap, topics, PARTITIONS)
    said = Said(kafka_broker.bootstrap, topics.ready)
    yield said
    said.hints.close()


def test_due_runs_are_told_without_a_time_those_that_will_be_with_theirs(said: Said) -> None:
    said.hints.send(FENCE, {MAIL: ID[:2]}, {MAIL: [(START_US, ID[2])]})
    due, soon = said.records(2)
    where = {"tenant": "acme", "queue": "mail", "lane": "high", "partition": 3, "epoch": 7}
    assert due == where | {"runIds": ID[0] + ID[1], "dueAt": None}
    assert soon == where | {"runIds": ID[2], "dueAt": from_us(START_US)}


def test_runs_of_one_millisecond_are_told_together_and_for_the_last_of_them(said: Said) -> None:
    soon = [(START_US + us, ID[number]) for number, us in enumerate((0, 0, 999, 1_000, 2_300, 2_900))]
    said.hints.send(FENCE, {}, {MAIL: soon, SMS: soon[:1]})
    found = [record for record in said.records(4) if record["queue"] == "mail"]
    assert [us_after_start(record) for record in found] == [999, 1_000, 2_900]
    assert [record["runIds"] for record in found] == [b"".join(ID[:3]), ID[3], ID[4] + ID[5]]


def test_an_owner_who_is_behind_tells_of_many_in_few_records(said: Said) -> None:
    soon = [(START_US + 100 * number, bytes([number]) * 16) for number in range(100)]
    said.hints.send(FENCE, {}, {MAIL: soon})
    found = said.records(4)
    assert b"".join(record["runIds"] for record in found) == b"".join(run_id for _, run_id in soon)
    for record in found:
        last = record["runIds"][-1]
        assert us_after_start(record) == 100 * last


def us_after_start(record: dict[str, Any]) -> int:
    return int((record["dueAt"] - from_us(START_US)) / timedelta(microseconds=1))
