"""The topics: their names, and their creation. Nothing relies on the broker's auto-creation."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from schemas.errors import KafkaUnavailable, LedgerMismatch

log = logging.getLogger(__name__)

READY_PARTITIONS = 4
# Large enough for an event that carries everything a command may bring, which the broker caps at 1 MiB.
RUN_EVENTS_MAX_BYTES = 4 * 1024 * 1024
REJECTED_MAX_BYTES = 4 * 1024 * 1024
ENDS_TIMEOUT_S = 10.0
_MINUTE_MS = 60_000
_DAY_MS = 24 * 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True)
class Topics:
    """The names under one prefix, so that several installations can share a broker."""

    prefix: str = "fencepost"

    @property
    def commands(self) -> str:
        return f"{self.prefix}.commands"

    @property
    def rejected(self) -> str:
        return f"{self.prefix}.commands.rejected"

    def commands_of(self, tenant: str) -> str:
        """Of a tenant's own producers: as `commands`, under a prefix of theirs. See streams/command_gate.py."""
        return f"{self.prefix}.tenant.{tenant}.commands"

    @property
    def ready(self) -> str:
        return f"{self.prefix}.ready"

    @property
    def run_events(self) -> str:
        return f"{self.prefix}.run-events"


@dataclass(frozen=True, slots=True)
class _Layout:
    partitions: int
    config: Mapping[str, str]


def _layouts(topics: Topics, partitions: int) -> dict[str, _Layout]:
    week = {"cleanup.policy": "delete", "retention.ms": str(7 * _DAY_MS)}
    month = {"cleanup.policy": "delete", "retention.ms": str(30 * _DAY_MS)}
    return {
        # Stored as the owners' client can always read it: it lacks the codecs of lz4, snappy and zstd unless they are
        # installed beside it, and would stand still, silently, at the first such batch of any producer.
        topics.commands: _Layout(partitions, {**week, "compression.type": "gzip"}),
        # What the broker took as a command must fit with the reason around it, or its partition stands still for good.
        topics.rejected: _Layout(1, {**week, "max.message.bytes": str(REJECTED_MAX_BYTES)}),
        # A hint is worth nothing after minutes: the sweep hints again whatever is overdue.
        topics.ready: _Layout(READY_PARTITIONS, {"cleanup.policy": "delete", "retention.ms": str(10 * _MINUTE_MS)}),
        # As far back as the history goes, so that it can be read again whole.
        topics.run_events: _Layout(partitions, {**month, "max.message.bytes": str(RUN_EVENTS_MAX_BYTES)}),
    }


def create_topics(
    bootstrap: str,
    topics: Topics,
    partitions: int,
    *,
    replication_factor: int = 1,
    timeout_s: float = 30.0,
    kafka_config: Mapping[str, Any] | None = None,
) -> list[str]:
    """Create the topics that are missing and return their names; blocks until every partition of them all is led.

    replication_factor: lowered to the number of brokers where there are fewer. Idempotent, also when several processes
    do it at once. Raises LedgerMismatch when a topic exists with another number of partitions (jobs would move between
    partitions), KafkaUnavailable when the broker does not answer within `timeout_s`.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, **(kafka_config or {})})
    layouts = _layouts(topics, partitions)
    deadline = time.monotonic() + timeout_s
    existing, brokers = _describe(admin, deadline)
    _check(layouts, existing)
    return _create_missing(admin, layouts, existing, min(replication_factor, brokers), deadline)


def create_tenant_topics(
    bootstrap: str,
    topics: Topics,
    tenants: Iterable[str],
    *,
    timeout_s: float = 30.0,
    kafka_config: Mapping[str, Any] | None = None,
) -> list[str]:
    """Create the topics of tenants' own commands that are missing, each like the commands topic; returns their names.

    Idempotent. Raises LedgerMismatch when there is no commands topic, or one of theirs with another number of
    partitions, KafkaUnavailable.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, **(kafka_config or {})})
    deadline = time.monotonic() + timeout_s
    existing, _ = _describe(admin, deadline)
    if topics.commands not in existing:
        raise LedgerMismatch([f"there is no topic {topics.commands}: run `fencepostd init`"])
    partitions = existing[topics.commands]
    layout = _layouts(topics, partitions)[topics.commands]
    layouts = {topics.commands_of(tenant): layout for tenant in tenants}
    _check(layouts, existing)
    leader = admin.list_topics(topics.commands, timeout=timeout_s).topics[topics.commands].partitions[0]
    return _create_missing(admin, layouts, existing, len(leader.replicas), deadline)


def _create_missing(
    admin: AdminClient, layouts: Mapping[str, _Layout], existing: Mapping[str, int], replicas: int, deadline: float
) -> list[str]:
    """Those that were created; they can be written to and read."""
    missing = [
        NewTopic(name, layout.partitions, replicas, config=dict(layout.config))
        for name, layout in layouts.items()
        if name not in existing
    ]
    if missing:
        _create(admin, missing, deadline)
        _await_topics(admin, layouts, deadline)
        _await_leaders(admin, layouts, deadline)
    return [topic.topic for topic in missing]


def read_ends(
    bootstrap: str, topic: str, partitions: Iterable[int], *, kafka_config: Mapping[str, Any] | None = None
) -> dict[int, int]:
    """The offset that each partition's next record will have. Blocks. Raises KafkaUnavailable."""
    own = {"bootstrap.servers": bootstrap, "group.id": f"{topic}-ends", "enable.auto.commit": False}
    consumer = Consumer({**own, **(kafka_config or {})})
    try:
        asked = {each: TopicPartition(topic, each) for each in partitions}
        return {each: consumer.get_watermark_offsets(where, ENDS_TIMEOUT_S)[1] for each, where in asked.items()}
    except KafkaException as error:
        raise KafkaUnavailable(f"the broker did not tell where {topic} ends: {error}") from error
    finally:
        consumer.close()


def _describe(admin: AdminClient, deadline: float) -> tuple[dict[str, int], int]:
    """The partition count of every topic, and the number of brokers."""
    try:
        metadata = admin.list_topics(timeout=max(deadline - time.monotonic(), 0.1))
    except KafkaException as error:
        raise KafkaUnavailable(f"the broker did not list its topics: {error}") from error
    counts = {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}
    return counts, max(len(metadata.brokers), 1)


def _check(layouts: Mapping[str, _Layout], existing: Mapping[str, int]) -> None:
    problems = [
        f"topic {name} has {existing[name]} partitions, not {layout.partitions}"
        for name, layout in layouts.items()
        if name in existing and existing[name] != layout.partitions
    ]
    if problems:
        raise LedgerMismatch(problems)


def _create(admin: AdminClient, missing: list[NewTopic], deadline: float) -> None:
    wait_s = max(deadline - time.monotonic(), 0.1)
    for name, future in admin.create_topics(missing, operation_timeout=wait_s, request_timeout=wait_s).items():
        try:
            future.result()
            log.info("created topic %s", name)
        except KafkaException as error:
            # Another process of ours created it in the meantime: the check that follows judges what it made.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise KafkaUnavailable(f"topic {name} could not be created: {error}") from error


def _await_topics(admin: AdminClient, layouts: Mapping[str, _Layout], deadline: float) -> None:
    while True:
        existing, _ = _describe(admin, deadline)
        if layouts.keys() <= existing.keys():
            _check(layouts, existing)
            return
        if time.monotonic() > deadline:
            raise KafkaUnavailable(f"still missing: {', '.join(sorted(layouts.keys() - existing.keys()))}")
        time.sleep(0.1)  # metadata spreads between brokers; the admin client offers nothing to wait on


_NOT_YET_LED = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError._NOENT,  # of librdkafka, when the metadata names no leader at all yet
}


def _await_leaders(admin: AdminClient, layouts: Mapping[str, _Layout], deadline: float) -> None:
    """The metadata names a leader a moment before that one knows, and refuses whoever comes first."""
    places = [TopicPartition(name, each) for name, layout in layouts.items() for each in range(layout.partitions)]
    while places:
        wait_s = max(deadline - time.monotonic(), 0.1)
        answers = admin.list_offsets(dict.fromkeys(places, OffsetSpec.latest()), request_timeout=wait_s)
        places = []
        for place, answer in answers.items():
            try:
                answer.result(wait_s)
            except KafkaException as error:
                if error.args[0].code() not in _NOT_YET_LED or time.monotonic() > deadline:
                    raise KafkaUnavailable(f"{place.topic} {place.partition} is not served: {error}") from error
                places.append(place)
        if places:
            time.sleep(0.02)
