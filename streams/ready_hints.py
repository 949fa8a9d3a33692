"""Ready hints: the owner's shout that runs are due, or will be in a moment, so that its way is over by then.

One may be lost, late or doubled, so nothing waits for an ack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from confluent_kafka import KafkaException, Producer

from ledger.fence import Fence
from schemas.codec import Codec
from streams.metrics import HINTS_DROPPED, HINTS_SENT
from streams.timers import Waiting

# At most this many run ids a record: 16 kB, far below any broker's limit.
_RUNS_A_RECORD = 1_000
# Runs that are due within a millisecond go together, and wait for the last of them: a record each would cost more. An
# owner who is behind finds many at once, and must not say each millisecond by itself.
_TOGETHER_US = 1_000
_RECORDS_AT_ONCE = 4


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

    def send(
        self,
        fence: Fence,
        due: Mapping[Waiting, Sequence[bytes]],
        soon: Mapping[Waiting, Sequence[tuple[int, bytes]]] = {},
    ) -> None:
        """Say of runs, by where they wait and in due order, that they are due, or when they will be.

        soon: with the instants, microseconds since 1970 by the ledger's clock.
        """
        for waiting, ids in due.items():
            self._send(fence, waiting, ids, None)
        for waiting, timers in soon.items():
            for last_us, ids in _together(timers):
                self._send(fence, waiting, ids, last_us)
        self._producer.poll(0)

    def _send(self, fence: Fence, waiting: Waiting, ids: Sequence[bytes], due_us: int | None) -> None:
        for start in range(0, len(ids), _RUNS_A_RECORD):
            self._send_one(fence, waiting, ids[start : start + _RUNS_A_RECORD], due_us)

    def _send_one(self, fence: Fence, waiting: Waiting, ids: Sequence[bytes], due_us: int | None) -> None:
        record = {
            "tenant": waiting.tenant,
            "queue": waiting.queue,
            "lane": waiting.lane,
            "partition": fence.partition,
            "epoch": fence.epoch,
            "runIds": b"".join(ids),
            "dueAt": due_us,
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


def _together(timers: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Runs that go in one record, and when the last of them is due."""
    first_us, last_us = timers[0][0], timers[-1][0]
    width_us = max(_TOGETHER_US, (last_us - first_us) // _RECORDS_AT_ONCE + 1)
    for _, together in groupby(timers, lambda timer: (timer[0] - first_us) // width_us):
        instants, ids = zip(*together, strict=True)
        yield instants[-1], ids
