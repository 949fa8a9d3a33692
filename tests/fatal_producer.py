"""Producers of which the first has had a fatal error, as after a lost sequence: no broker makes one on request."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer


def fatal_at_first() -> type[Producer]:
    """Real producers; the first one that is made takes nothing, as librdkafka's do after such an error."""
    made: list[Producer] = []

    class FatalAtFirst(Producer):  # type: ignore[misc]
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            made.append(self)

        def produce(self, *args: Any, **settings: Any) -> None:
            if self is made[0]:
                raise KafkaException(KafkaError(KafkaError._FATAL, "out of sequence", True))
            super().produce(*args, **settings)

    return FatalAtFirst
