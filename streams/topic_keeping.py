"""How long Kafka keeps what a restored ledger will need, and how safely; asked once, by `fencepostd backup-check`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from schemas.errors import KafkaUnavailable

TIMEOUT_S = 10.0

T = TypeVar("T")


class TopicKeeping(NamedTuple):
    """retention_s, retention_bytes: of a partition; None when it has no such bound. replicas: of the worst partition.

    begins, ends: the offsets of each partition's first record, and of its next one.
    """

    topic: str
    retention_s: float | None
    retention_bytes: int | None
    replicas: int
    begins: dict[int, int]
    ends: dict[int, int]


def read_topic_keeping(bootstrap: str, topic: str, kafka_config: Mapping[str, Any] | None = None) -> TopicKeeping:
    """Blocks. Raises KafkaUnavailable when the broker does not answer, or has no such topic."""
    # What it has to say of connections that fail is said once, by the error.
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2, **(kafka_config or {})})
    try:
        metadata = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if metadata.error is not None:
            raise KafkaUnavailable(f"topic {topic} is not there: run `fencepostd init`")
        resource = ConfigResource(ResourceType.TOPIC, topic)
        config = _answer(admin.describe_configs([resource], request_timeout=TIMEOUT_S)[resource])
        begins, ends = (_offsets(admin, topic, list(metadata.partitions), spec) for spec in _ENDS)
    except (KafkaException, TimeoutError) as error:
        raise KafkaUnavailable(f"the broker did not tell of {topic}: {error}") from error
    retention_ms, retention_bytes = (int(config[name].value) for name in ("retention.ms", "retention.bytes"))
    return TopicKeeping(
        topic,
        None if retention_ms < 0 else retention_ms / 1_000,
        None if retention_bytes < 0 else retention_bytes,
        min(len(partition.replicas) for partition in metadata.partitions.values()),
        begins,
        ends,
    )


_ENDS = (OffsetSpec.earliest(), OffsetSpec.latest())


def _offsets(admin: AdminClient, topic: str, partitions: list[int], spec: OffsetSpec) -> dict[int, int]:
    asked = {TopicPartition(topic, partition): spec for partition in partitions}
    give_up_at = time.monotonic() + TIMEOUT_S
    while True:
        found = admin.list_offsets(asked, request_timeout=TIMEOUT_S)
        try:
            return {each.partition: _answer(answer).offset for each, answer in found.items()}
        except KafkaException as error:
            # A leader has just moved, or its topic was just made; the client asks no second time by itself.
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > give_up_at:
                raise
        time.sleep(0.2)


def _answer(future: Future[T]) -> T:
    return future.result(TIMEOUT_S)
