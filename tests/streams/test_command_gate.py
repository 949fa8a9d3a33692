"""The gate lets a tenant's own commands through, in order, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from prometheus_client import REGISTRY

from connectors.stack import KafkaBroker
from schemas.commands import ISSUER_HEADER
from schemas.errors import LedgerMismatch
from streams.command_gate import CommandGate
from streams.topics import Topics, create_tenant_topics, create_topics
from tests.streams.commands import CODEC, batch, create, job_on, pause, wire

PARTITIONS = 4
DEADLINE_S = 30.0

pytestmark = pytest.mark.apache_kafka(reason="tansu lets a group wait for half its session")

Gate = Callable[[], AbstractAsyncContextManager[None]]


@pytest.fixture
def topics(kafka_broker: KafkaBroker) -> Topics:
    topics = Topics(f"gate-{uuid4().hex[:8]}")
    create_topics(kafka_broker.bootstrap, topics, PARTITIONS)
    assert create_tenant_topics(kafka_broker.bootstrap, topics, ["acme"]) == [f"{topics.prefix}.tenant.acme.commands"]
    return topics


@pytest.fixture
def gate(kafka_broker: KafkaBroker, topics: Topics) -> Gate:
    """Runs one for the length of a `with` block."""

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        stop = asyncio.Event()
        task = asyncio.create_task(CommandGate(kafka_broker.bootstrap, topics, ["acme"], CODEC).run(stop))
        yield
        stop.set()
        await task

    return running


def send(broker: KafkaBroker, topics: Topics, values: Sequence[bytes | None], partition: int = 2) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topics.commands_of("acme"), value, b"key", partition, headers=[(ISSUER_HEADER, b"somebody")])
    assert producer.flush(DEADLINE_S) == 0


async def read(broker: KafkaBroker, topic: str, partition: int, count: int) -> list[Message]:
    """The first records of a partition."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": uuid4().hex})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    records = await asyncio.to_thread(consumer.consume, count, DEADLINE_S)
    consumer.close()
    assert len(records) == count
    return list(records)


COUNTED = ("fencepost_gate_records_total", "fencepost_gate_rejected_total")


def metric(name: str) -> float:
    return REGISTRY.get_sample_value(name, {"tenant": "acme"}) or 0.0


async def test_a_tenants_own_records_go_through_as_they_came_but_for_what_their_headers_claim(
    kafka_broker: KafkaBroker, topics: Topics, gate: Gate
) -> None:
    job_id = job_on(2)
    values = [wire(create(job_id)), batch([pause(job_id), create(job_on(2), {"cron": "never"})]), wire(pause(job_id))]
    async with gate():
        send(kafka_broker, topics, values)
        passed = await read(kafka_broker, topics.commands, 2, 3)
    assert [record.value() for record in passed] == values
    assert [(record.key(), record.headers()) for record in passed] == [(b"key", None)] * 3


async def test_a_record_that_names_another_tenant_or_nobody_knows_whom_is_rejected_and_the_rest_goes_on(
    kafka_broker: KafkaBroker, topics: Topics, gate: Gate
) -> None:
    own, foreign = wire(create(job_on(2))), create(job_on(2), tenant="zoo")
    unlikely = create(job_on(2), {"cron": "never"}, tenant="zoo")
    hidden, invalid = batch([create(job_on(2)), foreign]), wire(unlikely)
    before = [metric(each) for each in COUNTED]
    async with gate():
        send(kafka_broker, topics, [wire(foreign), b"garbage", None, hidden, invalid, own])
        [passed] = await read(kafka_broker, topics.commands, 2, 1)
        rejected = await read(kafka_broker, topics.rejected, 0, 5)
    assert passed.value() == own
    assert [metric(each) - each_before for each, each_before in zip(COUNTED, before, strict=True)] == [6, 5]
    assert metric("fencepost_gate_lag_records") == 0
    told: list[dict[str, Any]] = [CODEC.decode(record.value())[1] for record in rejected]
    assert [(each["code"], each["partition"], each["offset"]) for each in told] == [
        ("tenant_forbidden", 2, 0),
        ("undecodable", 2, 1),
        ("undecodable", 2, 2),
        ("tenant_forbidden", 2, 3),
        ("tenant_forbidden", 2, 4),
    ]


async def test_a_gate_goes_on_where_the_one_before_has_come_to(
    kafka_broker: KafkaBroker, topics: Topics, gate: Gate
) -> None:
    values = [wire(create(job_on(2))) for _ in range(6)]
    for part in (values[:3], values[3:]):
        send(kafka_broker, topics, part)
        async with gate():
            count = values.index(part[-1]) + 1
            passed = await read(kafka_broker, topics.commands, 2, count)
    assert [record.value() for record in passed] == values


def test_topics_of_tenants_are_made_once_and_like_the_commands_topic(kafka_broker: KafkaBroker, topics: Topics) -> None:
    assert create_tenant_topics(kafka_broker.bootstrap, topics, ["acme"]) == []
    with pytest.raises(LedgerMismatch, match="fencepostd init"):
        create_tenant_topics(kafka_broker.bootstrap, Topics("nobody"), ["acme"])
