"""What cannot be applied: the record goes to the rejected topic, with the reason, before its offset is consumed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from schemas.codec import Codec
from schemas.errors import CommandRejected, KafkaUnavailable
from streams.metrics import COMMANDS_FORWARDED, COMMANDS_REJECTED

# A fenced transaction is open meanwhile: within its time, and a takeover waits for it.
PUBLISH_TIMEOUT_S = 7.0


Headers = Sequence[tuple[str, bytes]]


class RawCommand(NamedTuple):
    """A record of the commands topic as it came."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Stray(NamedTuple):
    """A record of commands on its way to where it belongs. partition: of the commands topic."""

    partition: int
    key: bytes | None
    value: bytes
    headers: Headers = ()


class Rejection(NamedTuple):
    """Why a command was not applied. place: its index in a batch record, or None for a whole record."""

    raw: RawCommand
    error: CommandRejected
    place: int | None = None
    command_id: str | None = None


class CommandReturns:
    """Puts records back into Kafka: rejected ones on the rejected topic, stray ones on their own partition."""

    def __init__(
        self, bootstrap: str, commands: str, rejected: str, codec: Codec, kafka_config: Mapping[str, Any] | None = None
    ) -> None:
        self._commands, self._rejected, self._codec = commands, rejected, codec
        self._config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 1,
            "message.timeout.ms": int(PUBLISH_TIMEOUT_S * 1000),
            "message.max.bytes": 8 << 20,
            **(kafka_config or {}),
        }

    @cached_property
    def _producer(self) -> Producer:
        """Made for the first record, which rarely comes: threads of one that has nothing to do wake each second."""
        return Producer(self._config)

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        """Publish rejections; returns once Kafka has them all. Raises KafkaUnavailable, and some may be published.

        The first rejection of a record carries its bytes, for all of them: a batch may hold thousands of bad commands.
        """
        records, told = [], set[tuple[int, int]]()
        for rejection in rejections:
            where = rejection.raw[:2]
            value = self._codec.encode("RejectedCommand", _record(rejection, with_bytes=where not in told))
            records.append((self._rejected, -1, rejection.raw.key, value, ()))
            told.add(where)
        await self._publish(records)
        for rejection in rejections:
            COMMANDS_REJECTED.labels(rejection.error.code).inc()

    async def forward(self, commands: Sequence[Stray]) -> None:
        """Publish stray commands where they belong. Raises KafkaUnavailable."""
        await self._publish([(self._commands, *stray) for stray in commands])
        COMMANDS_FORWARDED.inc(len(commands))

    async def let_through(self, records: Sequence[Stray]) -> None:
        """Publish records of tenants' own topics on the commands topic. Raises KafkaUnavailable."""
        await self._publish([(self._commands, *record) for record in records])

    async def _publish(self, records: Sequence[tuple[str, int, bytes | None, bytes, Headers]]) -> None:
        producer = self._producer
        answers: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            answers.append(error)

        try:
            for topic, partition, key, value, headers in records:
                producer.produce(topic, value, key, partition, headers=list(headers), on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            self._drop_if_fatal(producer, [error.args[0]])
            raise KafkaUnavailable(str(error)) from error
        # Our own answers only, not a flush: owners share the producer, and one that waits must not hold up the others.
        deadline = time.monotonic() + PUBLISH_TIMEOUT_S + 1.0
        while len(answers) < len(records) and time.monotonic() < deadline:
            if not producer.poll(0):
                await asyncio.sleep(0.002)
        failures = [error for error in answers if error is not None]
        self._drop_if_fatal(producer, failures)
        if failures or len(answers) < len(records):
            raise KafkaUnavailable(
                f"Kafka took {len(answers) - len(failures)} of {len(records)} records: {failures[:1]}"
            )

    def _drop_if_fatal(self, producer: Producer, errors: Sequence[object]) -> None:
        """After a fatal error it takes nothing any more: the next try makes another. Who waits for this one is told."""
        is_fatal = any(isinstance(error, KafkaError) and error.fatal() for error in errors)
        if is_fatal and "_producer" in vars(self) and self._producer is producer:
            del self._producer
            producer.purge()

    def close(self) -> None:
        """What is still on its way was given up by its caller."""
        if "_producer" in vars(self):
            self._producer.purge()
            self._producer.close()


def _record(rejection: Rejection, *, with_bytes: bool) -> dict[str, Any]:
    raw, error = rejection.raw, rejection.error
    return {
        "code": error.code,
        "reason": error.message,
        "field": error.field,
        "partition": raw.partition,
        "offset": raw.offset,
        "index": rejection.place,
        "commandId": rejection.command_id,
        "rejectedAt": datetime.now(UTC),
        "key": raw.key,
        "value": raw.value if with_bytes else None,
    }
