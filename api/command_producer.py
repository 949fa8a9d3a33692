"""Commands of HTTP callers go through Kafka like anybody else's; the caller waits for the broker's ack."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from schemas.codec import Codec
from schemas.commands import Command, encode_command, issuer_headers
from schemas.errors import KafkaUnavailable

log = logging.getLogger(__name__)

LOGS_POLL_S = 10.0  # what the library has to say while nothing is sent


class CommandProducer:
    """Writes single commands, keyed by job id, with the Java client's partitioner. Belongs to one event loop.

    idle_s: how long its thread waits for an ack at a time; a stop may take as long.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        codec: Codec,
        *,
        idle_s: float,
        ack_within_s: float = 3.0,
        kafka_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._topic, self._codec, self._ack_within_s = topic, codec, ack_within_s
        self._idle_s = idle_s
        self._config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 1,
            "message.timeout.ms": int(ack_within_s * 1000),
            **(kafka_config or {}),
        }
        self._producer = Producer(self._config, logger=log)
        self._stopping = False
        self._sent = threading.Event()
        self._thread = threading.Thread(target=self._serve_acks, name="command-acks", daemon=True)
        self._thread.start()

    async def send(self, command: Command) -> None:
        """Return once the broker has the command for good.

        Raises KafkaUnavailable: then it may or may not have it, and the same command id may be sent again.
        """
        loop, producer = asyncio.get_running_loop(), self._producer
        acked: asyncio.Future[None] = loop.create_future()

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            loop.call_soon_threadsafe(_settle, acked, error)

        try:
            producer.produce(
                self._topic,
                encode_command(self._codec, command),
                key=str(command.job_id).encode(),
                headers=issuer_headers(command),
                on_delivery=on_delivery,
            )
            self._sent.set()
            async with asyncio.timeout(self._ack_within_s + 1.0):
                await acked
        except TimeoutError as error:
            raise KafkaUnavailable("Kafka did not take the command in time") from error
        except (BufferError, KafkaException) as error:
            self._renew_if_fatal(producer, error.args[0])
            raise KafkaUnavailable(f"Kafka did not take the command: {error}") from error

    def _renew_if_fatal(self, producer: Producer, error: object) -> None:
        """After a fatal error a producer takes nothing any more: another takes its place, and who waits is told."""
        if producer is self._producer and isinstance(error, KafkaError) and error.fatal():
            log.error("commands go out by another producer after a fatal error: %s", error)
            self._producer = Producer(self._config, logger=log)
            producer.purge()
            producer.poll(0)

    def reachable(self, timeout_s: float) -> bool:
        """Whether a broker knows the commands topic. Blocks: call it from a thread."""
        try:
            topic = self._producer.list_topics(self._topic, timeout=timeout_s).topics[self._topic]
        except KafkaException:
            return False
        return topic.error is None

    async def stop(self) -> None:
        """Wait for the acks that are due."""
        await asyncio.to_thread(self._producer.flush, self._ack_within_s)
        self._stopping = True
        self._sent.set()
        await asyncio.to_thread(self._thread.join)

    def _serve_acks(self) -> None:
        while not self._stopping:
            self._sent.wait(LOGS_POLL_S)
            self._sent.clear()
            self._producer.poll(0)
            while len(self._producer) and not self._stopping:
                self._producer.poll(self._idle_s)


def _settle(acked: asyncio.Future[None], error: KafkaError | None) -> None:
    if acked.done():
        return
    if error is None:
        acked.set_result(None)
    else:
        acked.set_exception(KafkaException(error))
