"""Commands to test with, and how they get onto the topic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from confluent_kafka import Producer

from schemas.codec import NAMESPACE, Codec
from schemas.commands import (
    BackfillJob,
    CancelRun,
    Command,
    CreateJob,
    DeleteJob,
    JobSpec,
    PauseJob,
    ReplayRun,
    ResumeJob,
    TriggerJob,
    UpdateJob,
    command_record,
    encode_command,
    issuer_headers,
    tenant_of,
)
from schemas.ids import new_id, partition_of_job
from streams.command_inbox import CommandInbox
from streams.rejections import RawCommand
from tests.ledger_fixtures import PARTITIONS

CODEC = Codec()
LATER = {"runAt": "2100-01-01T00:00:00Z"}


def job_on(partition: int) -> UUID:
    """A new job id that belongs to the partition."""
    while partition_of_job(job_id := new_id(), PARTITIONS) != partition:
        pass
    return job_id


def _head(job_id: UUID, issued_at: datetime | None, tenant: str) -> dict[str, Any]:
    return {
        "command_id": new_id(),
        "tenant": tenant,
        "job_id": job_id,
        "issued_at": issued_at or datetime.now(UTC),
    }


def create(
    job_id: UUID,
    schedule: dict[str, Any] | None = None,
    *,
    issued_at: datetime | None = None,
    tenant: str = "acme",
    queue: str = "mail",
    **spec: Any,
) -> CreateJob:
    job = JobSpec(queue=queue, schedule=schedule or LATER, **spec)
    return CreateJob(**_head(job_id, issued_at, tenant), spec=job)


def pause(job_id: UUID, *, tenant: str = "acme") -> PauseJob:
    return PauseJob(**_head(job_id, None, tenant))


def resume(job_id: UUID, *, tenant: str = "acme") -> ResumeJob:
    return ResumeJob(**_head(job_id, None, tenant))


def delete(job_id: UUID, *, tenant: str = "acme") -> DeleteJob:
    return DeleteJob(**_head(job_id, None, tenant))


def update(
    job_id: UUID, schedule: dict[str, Any] | None = None, *, effective_from: datetime | None = None, **spec: Any
) -> UpdateJob:
    job = JobSpec(**{"queue": "mail", "schedule": schedule or LATER, **spec})
    return UpdateJob(**_head(job_id, None, "acme"), spec=job, effective_from=effective_from)


def cancel(job_id: UUID, run_id: UUID, *, tenant: str = "acme") -> CancelRun:
    return CancelRun(**_head(job_id, None, tenant), run_id=run_id)


def replay(job_id: UUID, run_id: UUID, *, due_at: datetime | None = None) -> ReplayRun:
    return ReplayRun(**_head(job_id, None, "acme"), run_id=run_id, due_at=due_at)


def backfill(job_id: UUID, after: datetime, through: datetime, payload: str | None = None) -> BackfillJob:
    return BackfillJob(**_head(job_id, None, "acme"), after=after, through=through, payload=payload)


def trigger(job_id: UUID, payload: str | None = None, *, issued_at: datetime | None = None) -> TriggerJob:
    return TriggerJob(**_head(job_id, issued_at, "acme"), payload=payload)


def batch(commands: Sequence[Command]) -> bytes:
    """One record of them all."""
    members = [(f"{NAMESPACE}.{type(command).__name__}", command_record(command)) for command in commands]
    return CODEC.encode("CommandBatch", {"commands": members})


def wire(command: Command | bytes) -> bytes:
    return command if isinstance(command, bytes) else encode_command(CODEC, command)


def raw(partition: int, commands: Sequence[Command | bytes | None], *, first_offset: int = 0) -> list[RawCommand]:
    """Records as they would come from the topic."""
    return [
        RawCommand(partition, offset, b"key", None if command is None else wire(command), headers(command))
        for offset, command in enumerate(commands, first_offset)
    ]


def inbox_at(next_offset: int) -> CommandInbox:
    """An inbox of a topic that nobody reads."""
    later = asyncio.get_running_loop().call_later
    return CommandInbox(next_offset, lambda: None, lambda _: None, partial(tenant_of, CODEC), {}, later)


def headers(command: Command | bytes | None) -> list[tuple[str, bytes]]:
    return issuer_headers(command) if isinstance(command, Command) else []


def produce(bootstrap: str, topic: str, commands: Sequence[Command]) -> None:
    """Send commands, one a record, each to its own partition, in order."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
    for command in commands:
        partition = partition_of_job(command.job_id, PARTITIONS)
        producer.produce(topic, wire(command), key=str(command.job_id).encode(), partition=partition)
        producer.poll(0)
    assert producer.flush(20) == 0
