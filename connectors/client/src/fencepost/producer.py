"""Sends job commands by Kafka: the way in that needs no API and takes tens of thousands of jobs a second."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any
from uuid import UUID

import confluent_kafka
from confluent_kafka import KafkaException

from fencepost.commands import (
    Record,
    backfill_command,
    create_command,
    job_command,
    replay_command,
    run_command,
    trigger_command,
    update_command,
)
from fencepost.errors import InvalidInput, KafkaUnreachable, TopicMissing
from fencepost.ids import idempotent_id, new_id, partition_of_job
from fencepost.job_spec import JobSpec, Name, convert
from fencepost.sealing import PayloadCodec, sealed, sealed_spec
from fencepost.wire import BUILT_IN_IDS, EncodedCommand, encode_command, record_of

log = logging.getLogger("fencepost.producer")
# librdkafka repeats itself while a broker is away; who has not set up logging gets it once, in the exception.
kafka_log = logging.getLogger("fencepost.kafka")
kafka_log.addHandler(logging.NullHandler())

_BATCH_MAX_BYTES = 512 * 1024  # well under the broker's default record limit of 1 MiB
_METADATA_TIMEOUT_S = 5.0
_TOPIC_PATIENCE_S = 2.0  # a topic that was just created is not on every broker at once


class CommandProducer:
    """Packs the commands of one partition into batch records and keeps their order. Safe to share between threads.

    Calls return as soon as the command is buffered; `flush` (or leaving the `with` block) waits for the broker's
    acknowledgements and raises for what it did not take.

    tenant: whom the jobs belong to. partitions: of the commands topic, asked of the broker unless given.
    linger_ms, batch_commands: a batch goes out when its first command is that old or it has that many.
    delivery_timeout_s: how long the broker may be away before a command counts as lost.
    kafka_config: librdkafka settings beside ours, for instance TLS and SASL.
    schema_ids: of a schema registry; those of the server's built-in one unless given.
    payload_codec: encrypts the payloads of jobs, see `fencepost.sealing`.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        tenant: str,
        topic_prefix: str = "fencepost",
        partitions: int | None = None,
        linger_ms: float = 20,
        batch_commands: int = 500,
        delivery_timeout_s: float = 30,
        kafka_config: Mapping[str, Any] | None = None,
        schema_ids: Mapping[str, int] = BUILT_IN_IDS,
        payload_codec: PayloadCodec | None = None,
    ) -> None:
        self._tenant = convert(tenant, Name)
        self._bootstrap = bootstrap
        self._topic = f"{topic_prefix}.commands"
        self._partitions = partitions
        self._linger_s = linger_ms / 1000
        self._batch_commands = batch_commands
        self._schema_ids = schema_ids
        self._payload_codec = payload_codec
        self._settings = {
            **(kafka_config or {}),
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",
            "acks": "all",
            "enable.idempotence": True,
            "delivery.timeout.ms": int(delivery_timeout_s * 1000),
            "error_cb": self._note_error,
        }
        self._kafka = self._connected()
        self._broken: confluent_kafka.Producer | None = None
        self._last_error = ""
        self._lost: deque[tuple[str, list[UUID]]] = deque()
        self._batches: dict[int, _Batch] = {}
        self._lock = threading.RLock()  # held from buffering to produce(), so that a job's commands keep their order
        self._closed = threading.Event()
        self._linger_thread = threading.Thread(target=self._linger, name="fencepost-linger", daemon=True)
        self._linger_thread.start()

    def _connected(self) -> confluent_kafka.Producer:
        try:
            return confluent_kafka.Producer(self._settings, logger=kafka_log)
        except KafkaException as error:
            raise InvalidInput(error.args[0].str(), field="kafka_config") from error

    def create_job(self, spec: JobSpec, *, idempotency_key: str | None = None) -> UUID:
        """Create a job; the same key gives the same job id, and nothing is created twice. Returns the job id."""
        job_id = idempotent_id(self._tenant, idempotency_key) if idempotency_key else new_id()
        spec = sealed_spec(spec, self._payload_codec)
        self._send("CreateJob", job_id, create_command(self._tenant, job_id, spec))
        return job_id

    def update(
        self,
        job_id: UUID,
        spec: JobSpec,
        *,
        effective_from: datetime | None = None,
        idempotency_key: str | None = None,
    ) -> UUID:
        """Give a job another definition, which is `spec` as a whole.

        effective_from: the new schedule fires only after this aware instant; it never fires for the past.
        """
        command_id = self._command_id(idempotency_key, "update", job_id)
        spec = sealed_spec(spec, self._payload_codec)
        self._send("UpdateJob", job_id, update_command(self._tenant, job_id, spec, effective_from, command_id))
        return job_id

    def pause(self, job_id: UUID, *, idempotency_key: str | None = None) -> UUID:
        """Put a job's pending runs aside."""
        return self._send_plain("PauseJob", job_id, idempotency_key)

    def resume(self, job_id: UUID, *, idempotency_key: str | None = None) -> UUID:
        """Let a paused job go on."""
        return self._send_plain("ResumeJob", job_id, idempotency_key)

    def delete(self, job_id: UUID, *, idempotency_key: str | None = None) -> UUID:
        """End a job and drop its pending runs."""
        return self._send_plain("DeleteJob", job_id, idempotency_key)

    def trigger(self, job_id: UUID, payload: Any = None, *, idempotency_key: str | None = None) -> UUID:
        """Run a job now, beside its schedule, with its own payload unless one is given."""
        payload = sealed(payload, self._payload_codec)
        command = trigger_command(self._tenant, job_id, payload, self._command_id(idempotency_key, "trigger", job_id))
        self._send("TriggerJob", job_id, command)
        return job_id

    def backfill(
        self,
        job_id: UUID,
        after: datetime,
        through: datetime,
        payload: Any = None,
        *,
        idempotency_key: str | None = None,
    ) -> UUID:
        """Run the occurrences after `after` up to and with `through` beside the schedule, at most 1,000."""
        command_id = self._command_id(idempotency_key, "backfill", job_id)
        payload = sealed(payload, self._payload_codec)
        command = backfill_command(self._tenant, job_id, after, through, payload, command_id)
        self._send("BackfillJob", job_id, command)
        return job_id

    def cancel(self, job_id: UUID, run_id: UUID, *, idempotency_key: str | None = None) -> UUID:
        """Cancel a run of the job: at once, or when a worker has it with its next heartbeat. Returns the run id."""
        command = run_command(self._tenant, job_id, run_id, self._command_id(idempotency_key, "cancel", run_id))
        self._send("CancelRun", job_id, command)
        return run_id

    def replay(
        self, job_id: UUID, run_id: UUID, *, due_at: datetime | None = None, idempotency_key: str | None = None
    ) -> UUID:
        """Give a dead run of the job all its attempts again, due at once or at an aware instant. Returns the run id."""
        command_id = self._command_id(idempotency_key, "replay", run_id)
        self._send("ReplayRun", job_id, replay_command(self._tenant, job_id, run_id, due_at, command_id))
        return run_id

    def flush(self, timeout_s: float | None = None) -> None:
        """Send what is buffered and wait until the broker has all of it, or the delivery timeout has passed.

        Raises KafkaUnreachable with the job ids of the commands that were lost since the last flush, or when
        timeout_s has passed before.
        """
        with self._lock:
            self._send_batches(list(self._batches))
        waiting = self._kafka.flush(-1 if timeout_s is None else timeout_s)
        if waiting:
            raise KafkaUnreachable(self._away(f"{waiting} records wait after {timeout_s:g} s"))
        self._raise_lost()

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then end the linger thread. A closed producer takes no commands."""
        self._closed.set()
        self._linger_thread.join()
        self.flush(timeout_s)

    def __enter__(self) -> CommandProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _send_plain(self, name: str, job_id: UUID, idempotency_key: str | None) -> UUID:
        verb = name.removesuffix("Job").lower()
        self._send(name, job_id, job_command(self._tenant, job_id, self._command_id(idempotency_key, verb, job_id)))
        return job_id

    def _command_id(self, key: str | None, verb: str, about: UUID) -> UUID | None:
        """As the API makes it: a key has its effect once for each verb and job or run."""
        return idempotent_id(self._tenant, f"{key}\x00{verb} {about}") if key else None

    def _send(self, name: str, job_id: UUID, fields: Record) -> None:
        if self._closed.is_set():
            raise InvalidInput("the producer is closed")
        command = encode_command(name, fields)
        with self._lock:
            partition = partition_of_job(job_id, self.partitions)
            batch = self._batches.get(partition)
            if batch and batch.size_bytes + len(command.body) > _BATCH_MAX_BYTES:
                self._send_batches([partition])
                batch = None
            if batch is None:
                batch = self._batches[partition] = _Batch(time.monotonic())
            batch.add(job_id, command)
            if len(batch.commands) >= self._batch_commands:
                self._send_batches([partition])

    @property
    def partitions(self) -> int:
        """How many the commands topic has. Raises KafkaUnreachable or TopicMissing."""
        if self._partitions is None:
            self._partitions = self._ask_partitions()
        return self._partitions

    def _ask_partitions(self) -> int:
        give_up_at = time.monotonic() + _TOPIC_PATIENCE_S
        while self._topic not in (topics := self._ask_topics()):
            if time.monotonic() >= give_up_at:
                raise TopicMissing(
                    f"{self._bootstrap} has no topic {self._topic}: is that the right broker and prefix?"
                )
            time.sleep(0.1)
        return len(topics[self._topic].partitions)

    def _ask_topics(self) -> Mapping[str, Any]:
        try:
            # All topics: a request that names a missing topic would create it on many brokers.
            topics: Mapping[str, Any] = self._kafka.list_topics(timeout=_METADATA_TIMEOUT_S).topics
        except KafkaException as error:
            raise KafkaUnreachable(self._away(error.args[0].str()), sent=False) from error
        return topics

    def _send_batches(self, partitions: list[int]) -> None:
        for partition in partitions:
            batch = self._batches.pop(partition)
            value = record_of(batch.commands, self._schema_ids)
            # The key of any command of the batch leads librdkafka's partitioner to the batch's partition.
            self._produce(str(batch.job_ids[0]).encode(), value, batch.job_ids)
        self._kafka.poll(0)

    def _produce(self, key: bytes, value: bytes, job_ids: list[UUID]) -> None:
        if self._broken is self._kafka:
            self._replace()
        kafka = self._kafka
        while True:
            try:
                kafka.produce(self._topic, value, key, on_delivery=self._on_delivery(kafka, job_ids))
                return
            except BufferError:  # the local queue is full: let the broker catch up
                kafka.poll(0.1)
            except KafkaException as error:
                self._note_lost(kafka, error.args[0], job_ids)
                return

    def _on_delivery(self, kafka: confluent_kafka.Producer, job_ids: list[UUID]) -> Any:
        def note(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
            if error is not None:
                self._note_lost(kafka, error, job_ids)

        return note

    def _note_lost(
        self, kafka: confluent_kafka.Producer, error: confluent_kafka.KafkaError, job_ids: list[UUID]
    ) -> None:
        log.error("%d commands were not delivered: %s", len(job_ids), error.str())
        self._lost.append((error.str(), job_ids))
        if error.fatal():
            self._broken = kafka

    def _replace(self) -> None:
        """After a fatal error a producer takes nothing any more; what it still had is told as lost."""
        broken, self._kafka = self._kafka, self._connected()
        broken.purge()
        broken.poll(0)

    def _raise_lost(self) -> None:
        lost = [self._lost.popleft() for _ in range(len(self._lost))]
        if lost:
            job_ids = [job_id for _, ids in lost for job_id in ids]
            message = self._away(f"{len(job_ids)} commands were not delivered: {lost[0][0]}")
            raise KafkaUnreachable(message, job_ids=job_ids)

    def _away(self, reason: str) -> str:
        return f"Kafka at {self._bootstrap}: {reason}" + (f" ({self._last_error})" if self._last_error else "")

    def _note_error(self, error: confluent_kafka.KafkaError) -> None:
        self._last_error = error.str()

    def _linger(self) -> None:
        while not self._closed.wait(self._linger_s):
            old = time.monotonic() - self._linger_s
            with self._lock:
                self._send_batches([key for key, batch in self._batches.items() if batch.since <= old])


class _Batch:
    """Commands of one partition that wait to be sent. since: when the first came (monotonic)."""

    __slots__ = ("commands", "job_ids", "since", "size_bytes")

    def __init__(self, since: float) -> None:
        self.since = since
        self.size_bytes = 0
        self.commands: list[EncodedCommand] = []
        self.job_ids: list[UUID] = []

    def add(self, job_id: UUID, command: EncodedCommand) -> None:
        self.commands.append(command)
        self.job_ids.append(job_id)
        self.size_bytes += len(command.body)
