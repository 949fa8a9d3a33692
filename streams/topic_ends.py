"""Where a topic's partitions end, asked of Kafka by a client that is there only while somebody asks.

Whoever reads the topic has a client already, but a call to that one waits for the read under way; and a client that has
nothing to do wakes a process several times a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from schemas.errors import KafkaUnavailable

TIMEOUT_S = 5.0
AWAY_S = 1.0  # after somebody has waited in vain others need not: so many partitions are not asked about one by one
KEPT_S = 10.0  # longer than an answer takes, be it that nobody waits for it any more


class TopicEnds:
    """Belongs to one event loop. config: of the client."""

    def __init__(self, topic: str, config: Mapping[str, Any]) -> None:
        self._topic, self._config = topic, config
        self._client: Consumer | None = None
        self._asked = 0
        self._away_until = 0.0
        self._closing: asyncio.TimerHandle | None = None

    async def of(self, partition: int) -> int:
        """The offset that the partition's next record will have. Raises KafkaUnavailable."""
        if time.monotonic() < self._away_until:
            raise KafkaUnavailable(f"the end of {self._topic} is unknown: nobody answered a moment ago")
        client = self._begin()
        try:
            _, high = await asyncio.to_thread(
                client.get_watermark_offsets, TopicPartition(self._topic, partition), TIMEOUT_S
            )
        except KafkaException as error:
            self._away_until = time.monotonic() + AWAY_S
            raise KafkaUnavailable(f"the end of {self._topic} is unknown: {error}") from error
        finally:
            self._end()
        return int(high)

    async def close(self) -> None:
        """Nobody will ask any more."""
        self._keep()
        if self._client is not None:
            client, self._client = self._client, None
            await asyncio.to_thread(client.close)

    def _begin(self) -> Consumer:
        self._asked += 1
        self._keep()
        if self._client is None:
            self._client = Consumer(dict(self._config))
        return self._client

    def _end(self) -> None:
        self._asked -= 1
        if not self._asked:
            self._closing = asyncio.get_running_loop().call_later(KEPT_S, self._close_idle)

    def _keep(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _close_idle(self) -> None:
        client, self._client, self._closing = self._client, None, None
        if client is not None:
            asyncio.get_running_loop().run_in_executor(None, client.close)
