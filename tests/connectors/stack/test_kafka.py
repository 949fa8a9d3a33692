"""The broker keeps its records and its address, and says so when it is only the fallback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.stack import ApacheKafkaUnavailable, KafkaBroker, default_cache_dir
from connectors.stack.kafka import BROKER_VARIABLE
from connectors.stack.kafka_jars import find_java
from connectors.stack.register import Register

TOPIC = "kept"
QUIET = {"log_level": 0}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """One of the test's own."""
    broker = KafkaBroker(tmp_path, default_cache_dir())
    broker.start()
    yield broker
    broker.stop()


def produce(broker: KafkaBroker, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", **QUIET})
    for value in values:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(30) == 0


def read(broker: KafkaBroker, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", **QUIET})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        return [value for message in consumer.consume(count, timeout=30) if (value := message.value()) is not None]
    finally:
        consumer.close()


def create_topic(broker: KafkaBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)


@pytest.mark.apache_kafka(reason="the fallback broker keeps records in memory only")
def test_records_and_address_survive_a_stop_a_kill_and_a_move(broker: KafkaBroker, tmp_path: Path) -> None:
    address = broker.bootstrap
    create_topic(broker)
    produce(broker, b"one")
    broker.stop()
    assert broker.pid is None
    broker.start()
    produce(broker, b"two")
    broker.kill()
    assert broker.pid is None
    # Its ports are taken by somebody else meanwhile, so it comes back on others.
    controller_port = Register(tmp_path).port("kafka-controller")
    with socket.create_server(("127.0.0.1", broker.port)), socket.create_server(("127.0.0.1", controller_port)):
        broker.start()
        assert broker.bootstrap != address
        assert read(broker, 2) == [b"one", b"two"]


@pytest.mark.apache_kafka(reason="the fallback broker leaves out a topic that it does not have")
def test_a_topic_must_be_created_before_it_is_used(kafka_broker: KafkaBroker) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap, **QUIET})
    answer = admin.list_topics("never-made", timeout=10).topics["never-made"]
    assert answer.error is not None
    assert answer.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_start_of_a_running_broker_changes_nothing(kafka_broker: KafkaBroker, stack_dir: Path) -> None:
    again = KafkaBroker(stack_dir, default_cache_dir())
    again.start()
    assert (again.pid, again.bootstrap, again.flavour) == (
        kafka_broker.pid,
        kafka_broker.bootstrap,
        kafka_broker.flavour,
    )


# --- where Apache Kafka cannot be had ---


class Heard:
    """Collects what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(BROKER_VARIABLE, raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))


@pytest.fixture
def offline_maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A java that is new enough, and a Maven that cannot reach its registry."""
    monkeypatch.delenv(BROKER_VARIABLE, raising=False)
    script(tmp_path / "bin" / "java", """echo 'openjdk version "21.0.1" 2023-10-17' >&2""")
    script(tmp_path / "bin" / "mvn", "echo '[ERROR] Unknown host'; exit 1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")


def script(path: Path, body: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.usefixtures("no_java")
def test_without_java_it_warns_and_runs_tansu(tmp_path: Path) -> None:
    heard = Heard()
    broker = KafkaBroker(tmp_path / "state", tmp_path / "cache", say=heard)
    try:
        broker.start()
        assert broker.flavour == "tansu"
        assert "WARNING: there is no java" in heard.text
        assert "memory only" in heard.text
        create_topic(broker)
        produce(broker, b"one")
        assert read(broker, 1) == [b"one"]
    finally:
        broker.stop()
    assert broker.pid is None


@pytest.mark.usefixtures("offline_maven")
def test_without_the_registry_it_tells_what_maven_said(tmp_path: Path) -> None:
    heard = Heard()
    broker = KafkaBroker(tmp_path / "state", tmp_path / "cache", say=heard)
    try:
        broker.start()
        assert broker.flavour == "tansu"
        assert "Unknown host" in heard.text
    finally:
        broker.stop()
    assert not list((tmp_path / "cache").glob("kafka-*"))


@pytest.mark.usefixtures("no_java")
def test_it_does_not_fall_back_over_the_records_of_an_apache_kafka(tmp_path: Path) -> None:
    (tmp_path / "kafka" / "data").mkdir(parents=True)
    with pytest.raises(ApacheKafkaUnavailable):
        KafkaBroker(tmp_path, tmp_path / "cache").start()


@pytest.mark.usefixtures("no_java")
def test_it_does_not_fall_back_when_apache_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROKER_VARIABLE, "apache")
    with pytest.raises(ApacheKafkaUnavailable):
        KafkaBroker(tmp_path, tmp_path / "cache").start()


def test_a_java_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "bin" / "java", """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ApacheKafkaUnavailable, match="not Java 17"):
        find_java()
