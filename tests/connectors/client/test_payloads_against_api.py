"""What becomes of payloads between producer and worker, on the real API, with its real ledger and broker."""

from __future__ import annotations

from typing import Any

import msgspec
from confluent_kafka import Consumer, TopicPartition
from cryptography.fernet import Fernet

from connectors.stack import KafkaBroker
from fencepost import (
    CommandProducer,
    FencepostClient,
    JobSpec,
    RunContext,
    after,
    every,
)
from ledger.connection import Pool, session
from streams.topics import Topics
from tests.api.owner import Owner
from tests.connectors.client.api_clients import TENANT, Clients
from tests.connectors.client.worker_bench import eventually
from tests.ledger_fixtures import PARTITIONS


async def test_what_a_codec_seals_nobody_between_producer_and_worker_can_read(
    clients: Clients, owner: Owner, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    codec, card, charged = Fernet(Fernet.generate_key()), "4111-card", "4242-charged"
    spec = JobSpec(queue="mail", schedule=after(0), payload={"card": card})
    seen: list[Any] = []

    async def charge(ctx: RunContext) -> dict[str, str]:
        seen.append(ctx.payload)
        return {"receipt": charged}

    async with owner.applying_commands():
        async with FencepostClient(clients.url, await clients.token(), payload_codec=codec) as client:
            job = await client.create_job(spec)
            await client.update_job(job.job_id, msgspec.structs.replace(spec, schedule=every(3600)))
            await client.trigger_job(job.job_id, {"card": card})
        with CommandProducer(
            kafka_broker.bootstrap, tenant=TENANT, topic_prefix=topics.prefix, payload_codec=codec
        ) as producer:
            producer.create_job(spec)
        async with clients.working(charge, payload_codec=codec) as worker:
            await eventually(lambda: worker.stats.completed == 2)
    assert seen == [{"card": card}] * 2
    commands = b"".join(_commands_in(kafka_broker, topics))
    async with session(ledger_pool) as conn:
        tables = [
            str(row)
            for table in ("jobs", "runs", "outbox")
            for row in await (await conn.execute(f"SELECT t::text FROM {table} AS t")).fetchall()
        ]
    assert commands.count(b"encrypted") == 4  # no other test of this module encrypts
    assert any("encrypted" in row or b"encrypted".hex() in row for row in tables)
    for secret in (card, charged):
        assert secret.encode() not in commands
        assert not any(secret in row or secret.encode().hex() in row for row in tables)


def _commands_in(broker: KafkaBroker, topics: Topics) -> list[bytes]:
    """The commands topic's records."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "fetch.wait.max.ms": 10})
    partitions = [TopicPartition(topics.commands, partition, 0) for partition in range(PARTITIONS)]
    found: list[bytes] = []
    try:
        ends = [consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions]
        consumer.assign(partitions)
        while len(found) < sum(ends):
            [message] = consumer.consume(1, timeout=10)
            found.append(message.value())
    finally:
        consumer.close()
    return found


async def test_a_reference_to_a_secret_comes_to_the_handler_as_it_was_given(clients: Clients, owner: Owner) -> None:
    """Nothing of ours resolves it: what the secrets manager says to the handler stays between the two."""
    payload = {"to": "ops", "password": {"secretRef": "vault://mail/smtp#password"}}
    seen: list[Any] = []
    async with owner.applying_commands(), clients.client() as client:
        job = await client.create_job(JobSpec(queue="mail", schedule=after(0), payload=payload))
        assert (await client.job(job.job_id)).payload == payload
        async with clients.working(lambda ctx: seen.append(ctx.payload)) as worker:
            await eventually(lambda: worker.stats.completed == 1)
    assert seen == [payload]
