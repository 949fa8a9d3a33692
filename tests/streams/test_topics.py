"""Creating the topics."""

from __future__ import annotations

from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from connectors.stack import KafkaBroker
from schemas.errors import KafkaUnavailable, LedgerMismatch
from streams.topics import READY_PARTITIONS, RUN_EVENTS_MAX_BYTES, Topics, create_topics


@pytest.fixture
def topics() -> Topics:
    return Topics(f"test-{uuid4().hex[:12]}")


def partition_counts(broker: KafkaBroker) -> dict[str, int]:
    metadata = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10)
    return {name: len(topic.partitions) for name, topic in metadata.topics.items()}


def test_the_names_are_under_the_prefix() -> None:
    topics = Topics("blue")
    names = (topics.commands, topics.rejected, topics.ready, topics.run_events)
    assert names == ("blue.commands", "blue.commands.rejected", "blue.ready", "blue.run-events")


def test_missing_topics_are_created_with_their_partitions(kafka_broker: KafkaBroker, topics: Topics) -> None:
    created = create_topics(kafka_broker.bootstrap, topics, 6)
    assert sorted(created) == sorted([topics.commands, topics.rejected, topics.ready, topics.run_events])
    counts = partition_counts(kafka_broker)
    assert (counts[topics.commands], counts[topics.run_events]) == (6, 6)
    assert (counts[topics.rejected], counts[topics.ready]) == (1, READY_PARTITIONS)


def test_creating_them_again_does_nothing(kafka_broker: KafkaBroker, topics: Topics) -> None:
    create_topics(kafka_broker.bootstrap, topics, 2)
    assert create_topics(kafka_broker.bootstrap, topics, 2) == []


def test_more_replicas_than_brokers_are_lowered(kafka_broker: KafkaBroker, topics: Topics) -> None:
    assert len(create_topics(kafka_broker.bootstrap, topics, 2, replication_factor=3)) == 4


def test_another_number_of_partitions_is_a_mismatch_that_creates_nothing(
    kafka_broker: KafkaBroker, topics: Topics
) -> None:
    create_topics(kafka_broker.bootstrap, topics, 2)
    with pytest.raises(LedgerMismatch) as raised:
        create_topics(kafka_broker.bootstrap, topics, 3)
    assert raised.value.problems == (
        f"topic {topics.commands} has 2 partitions, not 3",
        f"topic {topics.run_events} has 2 partitions, not 3",
    )
    assert partition_counts(kafka_broker)[topics.commands] == 2


def test_a_broker_that_is_away_is_unavailable(topics: Topics) -> None:
    with pytest.raises(KafkaUnavailable):
        create_topics("127.0.0.1:1", topics, 2, timeout_s=0.5)


@pytest.mark.apache_kafka(reason="tansu does not describe configurations")
def test_retention_and_record_sizes_are_set(kafka_broker: KafkaBroker, topics: Topics) -> None:
    create_topics(kafka_broker.bootstrap, topics, 2)
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})

    def setting(topic: str, name: str) -> str:
        [future] = admin.describe_configs([ConfigResource("topic", topic)]).values()
        return str(future.result()[name].value)

    assert setting(topics.ready, "retention.ms") == "600000"
    assert setting(topics.run_events, "retention.ms") == str(30 * 86_400_000)
    assert setting(topics.run_events, "max.message.bytes") == str(RUN_EVENTS_MAX_BYTES)
