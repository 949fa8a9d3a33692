"""The gate: from a tenant's own topic to the commands topic, and no command that names another tenant.

Kafka tells a consumer nothing of who has produced a record. But it lets only those write to a topic whom its ACLs
name. So where producers are not to be trusted with each other's jobs, each tenant's have a topic of their own, and the
commands topic is written by Fencepost alone: whose command it is, is then told by where it came from.

Records go through as they came, each to the partition of its number, in order, and their offsets are committed once
Kafka has them: after a crash some go through twice, under the same command ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from schemas.codec import Codec
from schemas.commands import tenants_named
from schemas.errors import CommandRejected, ForeignTenant, KafkaUnavailable
from streams.metrics import GATE_LAG_RECORDS, GATE_RECORDS, GATE_REJECTED
from streams.rejections import CommandReturns, RawCommand, Rejection, Stray
from streams.topics import Topics

log = logging.getLogger(__name__)

BATCH = 500  # records; each has up to hundreds of commands
POLL_S = 0.5
_RETRY_S = 1.0


class CommandGate:
    """Of some tenants. Any number may run, of the same ones: Kafka shares their partitions out.

    is_open: set while it reads, or waits for its share.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: Topics,
        tenants: Sequence[str],
        codec: Codec,
        *,
        kafka_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._tenant_of = {topics.commands_of(tenant): tenant for tenant in tenants}
        self._codec = codec
        self._returns = CommandReturns(bootstrap, topics.commands, topics.rejected, codec, kafka_config)
        self._config = {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topics.prefix}-gate",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            **(kafka_config or {}),
        }
        self.is_open = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Let through until `stop`, over every failure of Kafka that time can mend."""
        try:
            while not stop.is_set():
                try:
                    async with self._consumer() as consumer:
                        await self._let_through(consumer, stop)
                except (KafkaUnavailable, KafkaException) as error:
                    log.warning("the gate starts over: %s", error)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_RETRY_S):
                            await stop.wait()
        finally:
            await asyncio.to_thread(self._returns.close)

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[Consumer]:
        consumer = Consumer(self._config, logger=log)
        try:
            consumer.subscribe(list(self._tenant_of))
            self.is_open.set()
            yield consumer
        finally:
            self.is_open.clear()
            await asyncio.to_thread(consumer.close)

    async def _let_through(self, consumer: Consumer, stop: asyncio.Event) -> None:
        while not stop.is_set():
            messages = await asyncio.to_thread(consumer.consume, BATCH, POLL_S)
            records = [message for message in messages if _is_record(message)]
            self._tell_lag(consumer, records)
            if records:
                await self._pass(records)
                await asyncio.to_thread(consumer.commit, asynchronous=False)
                self._tell_lag(consumer, [])

    def _tell_lag(self, consumer: Consumer, in_hand: Sequence[Message]) -> None:
        """By what librdkafka knows of the ends, which its fetches tell: nobody is asked."""
        lags = dict.fromkeys(self._tenant_of.values(), 0)
        for record in in_hand:
            lags[self._tenant_of[record.topic()]] += 1
        for at in consumer.position(consumer.assignment()):
            lags[self._tenant_of[at.topic]] += _unread(consumer, at)
        for tenant, lag in lags.items():
            GATE_LAG_RECORDS.labels(tenant).set(lag)

    async def _pass(self, records: Sequence[Message]) -> None:
        """Each where it belongs, for good. Raises KafkaUnavailable, and some may be there."""
        passed: list[Stray] = []
        rejected: list[Rejection] = []
        refused: list[str] = []
        for record in records:
            raw = RawCommand(record.partition(), record.offset(), record.key(), record.value())
            tenant = self._tenant_of[record.topic()]
            try:
                self._check(tenant, raw.value)
            except CommandRejected as error:
                rejected.append(Rejection(raw, error))
                refused.append(tenant)
            else:
                # Without its headers: what they say of who asked is no word of ours.
                passed.append(Stray(raw.partition, raw.key, raw.value or b""))
        await self._returns.reject(rejected)
        await self._returns.let_through(passed)
        for record in records:
            GATE_RECORDS.labels(self._tenant_of[record.topic()]).inc()
        for tenant in refused:
            GATE_REJECTED.labels(tenant).inc()

    def _check(self, tenant: str, wire: bytes | None) -> None:
        """Raises CommandRejected for a record with a command that is not the tenant's: all of it is left out."""
        if others := tenants_named(self._codec, wire) - {tenant}:
            raise ForeignTenant(f"a producer of {tenant} names tenant {min(others)}", field="tenant")


def _unread(consumer: Consumer, at: TopicPartition) -> int:
    """Beyond a position, as far as is known; 0 of a partition that was just assigned and has not been read."""
    _, end = consumer.get_watermark_offsets(at, cached=True)
    return max(0, end - at.offset) if at.offset >= 0 else 0


def _is_record(message: Message) -> bool:
    """Whether it is one; librdkafka's news come as messages too. Raises KafkaException."""
    if (error := message.error()) is None:
        return True
    if error.fatal() or not error.retriable():
        raise KafkaException(error)
    log.info("reading tenants' commands: %s", error)
    return False
