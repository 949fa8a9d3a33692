"""Ready hints: the owner's shout that runs are due. One may be lost, late or doubled, so nothing waits for an ack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

from ledger.fence import Fence
from schemas.codec import Codec
from streams.metrics import HINTS_DROPPED, HINTS_SENT
from streams.timers import Waiting

# At most this many run ids a record: 16 kB, far below any broker's limit.
_RUNS_A_RECORD = 1_000


class ReadyHints:
    """Sends hints to the ready topic. Never blocks and never raises: what does not go out is found by the sweeps."""

    def __init__(self, bootstrap: str, topic: str, codec: Codec, kafka_config: Mapping[str, Any] | None = None) -> None:
        self._topic, self._codec = topic, codec
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": 1,
                "linger.ms": 0,
                "message.timeout.ms": 5_000,  # an older hint is worth nothing
                "queue.buffering.max.messages": 10_000,
                **(kafka_config or {}),
            }
        )

    def send(self, fence: Fence, run_ids: Mapping[Waiting, list[bytes]]) -> None:
        """Say that these runs are due, by where they wait and in due order."""
        for waiting, ids in run_ids.items():
            for start in range(0, len(ids), _RUNS_A_RECORD):
                self._send_one(fence, waiting, ids[start : start + _RUNS_A_RECORD])
        self._producer.poll(0)

    def _send_one(self, fence: Fence, waiting: Waiting, ids: list[bytes]) -> None:
        record = {
            "tenant": waiting.tenant,
            "queue": waiting.queue,
            "lane": waiting.lane,
            "partition": fence.partition,
            "epoch": fence.epoch,
            "runIds": b"".join(ids),
        }
        try:
            self._producer.produce(self._topic, self._codec.encode("ReadyHints", record), key=waiting.queue)
            HINTS_SENT.inc(len(ids))
        except (BufferError, KafkaException):
            HINTS_DROPPED.inc(len(ids))

    def close(self) -> None:
        """Send what waits, for a moment."""
        self._producer.flush(1.0)
        self._producer.purge()
        self._producer.close()
