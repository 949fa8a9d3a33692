"""The command producer on a real broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.stack import KafkaBroker
from fencepost import CommandProducer, InvalidInput, JobSpec, KafkaUnreachable, TopicMissing, every
from fencepost.ids import idempotent_id, partition_of_job
from schemas.codec import Codec
from schemas.commands import Command, CreateJob, decode_commands
from tests.fatal_producer import fatal_at_first

PARTITIONS = 12
SPEC = JobSpec(queue="q", schedule=every(60))


class ReadRecord(NamedTuple):
    partition: int
    key: str
    commands: list[Command]


@pytest.fixture
def prefix(kafka_broker: KafkaBroker) -> str:
    """A topic prefix of this test alone, whose commands topic exists."""
    prefix = f"producer-{uuid4().hex[:8]}"
    create_topic(kafka_broker, f"{prefix}.commands")
    return prefix


def create_topic(broker: KafkaBroker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        created.result(timeout=20)


@pytest.fixture
def producing(kafka_broker: KafkaBroker, prefix: str) -> Callable[..., CommandProducer]:
    def make(**options: Any) -> CommandProducer:
        return CommandProducer(kafka_broker.bootstrap, tenant="acme", topic_prefix=prefix, **options)

    return make


@pytest.fixture
def read(kafka_broker: KafkaBroker, prefix: str) -> Callable[[int], list[ReadRecord]]:
    """Reads the test's topic from its start until it has seen so many commands."""

    def read_commands(count: int) -> list[ReadRecord]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": prefix})
        topic = f"{prefix}.commands"
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        records: list[ReadRecord] = []
        try:
            while sum(len(record.commands) for record in records) < count:
                message = consumer.poll(20)
                assert message is not None, f"only {records} came"
                assert message.error() is None
                records.append(_record_of(message))
        finally:
            consumer.close()
        return records

    return read_commands


def _record_of(message: Any) -> ReadRecord:
    commands = [command for command in decode_commands(Codec(), message.value()) if isinstance(command, Command)]
    return ReadRecord(message.partition(), message.key().decode(), commands)


def test_commands_of_one_partition_travel_in_batches_that_land_there(producing: Any, read: Any) -> None:
    with producing(linger_ms=60_000) as producer:
        job_ids = {producer.create_job(SPEC) for _ in range(500)}
    records = read(500)
    assert len(records) <= PARTITIONS
    assert {command.job_id for record in records for command in record.commands} == job_ids
    for record in records:
        assert record.key == str(record.commands[0].job_id)
        assert {partition_of_job(command.job_id, PARTITIONS) for command in record.commands} == {record.partition}


def test_commands_of_one_job_keep_their_order_over_batches(producing: Any, read: Any) -> None:
    with producing(batch_commands=2) as producer:
        job_id = producer.create_job(SPEC)
        for call in (producer.pause, producer.resume, producer.trigger, producer.delete):
            assert call(job_id) == job_id
    names = [type(command).__name__ for record in read(5) for command in record.commands]
    assert names == ["CreateJob", "PauseJob", "ResumeJob", "TriggerJob", "DeleteJob"]


def test_lone_command_leaves_by_itself_after_the_linger_time(producing: Any, read: Any) -> None:
    producer = producing(linger_ms=10)
    job_id = producer.create_job(SPEC)
    [record] = read(1)  # nobody flushed
    assert isinstance(record.commands[0], CreateJob)
    assert record.key == str(job_id)
    producer.close()


def test_batches_stay_below_the_broker_s_record_limit(producing: Any, read: Any) -> None:
    large = JobSpec(queue="q", schedule=every(60), payload="x" * 60_000)
    with producing(linger_ms=60_000) as producer:
        job_id = producer.create_job(large, idempotency_key="first")
        for _ in range(30):
            producer.trigger(job_id, "y" * 60_000)
    assert len(read(31)) >= 4


def test_same_idempotency_key_gives_the_same_job_and_command(producing: Any, read: Any) -> None:
    with producing() as producer:
        first = producer.create_job(SPEC, idempotency_key="daily")
        assert producer.create_job(SPEC, idempotency_key="daily") == first == idempotent_id("acme", "daily")
        producer.trigger(first, idempotency_key="once")
        producer.trigger(first, idempotency_key="once")
        producer.pause(first, idempotency_key="once")  # another verb, another effect
    commands = [command for record in read(5) for command in record.commands]
    assert commands[2].command_id == commands[3].command_id == idempotent_id("acme", f"once\x00trigger {first}")
    assert commands[4].command_id == idempotent_id("acme", f"once\x00pause {first}")
    assert commands[0].command_id != commands[1].command_id  # a create is known by its job id


def test_missing_topic_is_named(kafka_broker: KafkaBroker) -> None:
    with (
        CommandProducer(kafka_broker.bootstrap, tenant="acme", topic_prefix="nobody") as producer,
        pytest.raises(TopicMissing, match=r"no topic nobody\.commands"),
    ):
        producer.create_job(SPEC)


def test_closed_producer_takes_no_commands(producing: Any) -> None:
    producer = producing()
    producer.close()
    with pytest.raises(InvalidInput, match="closed"):
        producer.create_job(SPEC)


def test_invalid_spec_is_refused_and_the_next_good_one_is_sent(producing: Any, read: Any) -> None:
    with producing() as producer:
        with pytest.raises(InvalidInput, match="queue"):
            producer.create_job(JobSpec(queue="", schedule=every(60)))
        job_id = producer.create_job(SPEC)
    assert [command.job_id for record in read(1) for command in record.commands] == [job_id]


def test_absent_broker_is_told_when_partitions_are_asked_of_it() -> None:
    with (
        CommandProducer("127.0.0.1:1", tenant="acme") as producer,
        pytest.raises(KafkaUnreachable, match=r"127\.0\.0\.1:1") as caught,
    ):
        producer.create_job(SPEC)
    assert not caught.value.sent


def test_commands_that_the_broker_did_not_take_are_told_by_job_id() -> None:
    producer = CommandProducer("127.0.0.1:1", tenant="acme", partitions=PARTITIONS, delivery_timeout_s=1)
    job_ids = {producer.create_job(SPEC) for _ in range(3)}
    with pytest.raises(KafkaUnreachable, match="3 commands were not delivered") as caught:
        producer.flush()
    assert set(caught.value.job_ids) == job_ids
    producer.close()  # told once


def test_flush_that_may_not_wait_says_what_waits() -> None:
    producer = CommandProducer("127.0.0.1:1", tenant="acme", partitions=PARTITIONS, delivery_timeout_s=1)
    producer.create_job(SPEC)
    with pytest.raises(KafkaUnreachable, match=r"1 records wait after 0\.1 s"):
        producer.flush(timeout_s=0.1)
    with pytest.raises(KafkaUnreachable, match="not delivered"):
        producer.close()


def test_setting_that_librdkafka_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidInput, match="acksies"):
        CommandProducer("127.0.0.1:1", tenant="acme", kafka_config={"acksies": "all"})


@pytest.fixture(scope="module")
def partitioner(kafka_broker: KafkaBroker) -> Iterator[Callable[[list[str]], list[int]]]:
    """Which partitions librdkafka puts keys on."""
    topic = f"partitioner-{uuid4().hex[:8]}"
    create_topic(kafka_broker, topic)
    settings = {"bootstrap.servers": kafka_broker.bootstrap, "partitioner": "murmur2_random"}
    kafka = confluent_kafka.Producer(settings, logger=logging.getLogger("fencepost.kafka"))

    def partitions_of(keys: list[str]) -> list[int]:
        chosen: dict[str, int] = {}
        for key in keys:
            kafka.produce(
                topic, b"", key, on_delivery=lambda _, message: chosen.update({_text(message): message.partition()})
            )
        assert kafka.flush(20) == 0
        return [chosen[key] for key in keys]

    yield partitions_of
    kafka.flush(20)


def _text(message: Any) -> str:
    key: bytes = message.key()
    return key.decode()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(job_ids=st.lists(st.uuids(), min_size=1, max_size=200, unique=True))
def test_partition_of_a_job_is_the_one_librdkafka_chooses(
    partitioner: Callable[[list[str]], list[int]], job_ids: list[UUID]
) -> None:
    ours = [partition_of_job(job_id, PARTITIONS) for job_id in job_ids]
    assert partitioner([str(job_id) for job_id in job_ids]) == ours


def test_after_a_fatal_error_what_is_lost_is_told_and_the_next_goes_out_by_another_producer(
    producing: Callable[..., CommandProducer],
    read: Callable[[int], list[ReadRecord]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confluent_kafka, "Producer", fatal_at_first())
    with producing() as producer:
        lost = producer.create_job(SPEC)
        with pytest.raises(KafkaUnreachable, match="out of sequence") as raised:
            producer.flush()
        assert raised.value.job_ids == [lost]
        taken = producer.create_job(SPEC)
        producer.flush()
    assert [command.job_id for record in read(1) for command in record.commands] == [taken]
