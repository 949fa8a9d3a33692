"""Outbox rows as run events, encoded and packed into records, and audits as theirs: pure translation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ledger.audits import AuditRow
from ledger.outbox import OutboxRow
from schemas.audits import AuditEvent
from schemas.codec import reader_schema
from schemas.commands import LANES
from schemas.row_encoder import RowEncoder, array, long

RECORD_MAX_EVENTS = 1000
# Well under the broker's usual 1 MiB a record; a single event may be larger and then has a record of its own.
RECORD_MAX_BYTES = 512 * 1024
_FRAME_BYTES = 16  # header, partition, number of events, end

_ENCODER = RowEncoder(
    reader_schema("RunEvent"),
    (
        "eventId", "type", "at", "tenant", "jobId", "runId", "version", "queue", "lane", "attempt", "leaseToken",
        "scheduledFor", "dueAt", "leaseExpiresAt", "workerId", "reason", "result", "definition", "count", "gated",
    ),
)  # fmt: skip


@dataclass(slots=True)
class EventRecord:
    """The encoded events of one `RunEvents` record, and how large it is at most."""

    partition: int
    events: list[bytes] = field(default_factory=list)
    size_bytes: int = _FRAME_BYTES

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether another event of that size still fits; the first always does."""
        return not self.events or (
            len(self.events) < RECORD_MAX_EVENTS and self.size_bytes + size_bytes <= RECORD_MAX_BYTES
        )

    def body(self) -> bytes:
        """The record as Avro, for after its header."""
        return long(self.partition) + array(self.events)


def pack_events(rows: Iterable[OutboxRow], shard: str) -> list[EventRecord]:
    """The rows' events as records, each of one partition; in a partition the events keep the order of the rows."""
    records: list[EventRecord] = []
    open_records: dict[int, EventRecord] = {}
    for row in rows:
        for partition, event in zip(row.partitions, encode_events(row, shard), strict=True):
            record = open_records.get(partition)
            if record is None or not record.has_room_for(len(event)):
                record = open_records[partition] = EventRecord(partition)
                records.append(record)
            record.events.append(event)
            record.size_bytes += len(event)
    return records


def encode_events(row: OutboxRow, shard: str) -> list[bytes]:
    """The events of one row as Avro. The id of each is the same however often the row is read."""
    prefix, count = f"{shard}-{row.id}-", len(row.job_ids)
    return _ENCODER.encode(
        count,
        (
            [f"{prefix}{index}" for index in range(count)], [row.event], [row.at], row.tenants, row.job_ids,
            row.run_ids, row.versions, row.queues, [LANES[lane] for lane in row.lanes], row.attempts, row.lease_tokens,
            row.scheduled_for, row.due_at, row.lease_expires_at, row.worker_ids, row.reasons, row.results,
            row.definitions, row.counts, [bool(gated) for gated in row.gated or (False,)],
        ),
    )  # fmt: skip


def audit_events(row: AuditRow, shard: str) -> list[AuditEvent]:
    """The audit events of one row. The id of each is the same however often the row is read."""
    changes = zip(row.tenants, row.actors, row.actions, row.subjects, row.details, strict=True)
    return [AuditEvent(f"audit-{shard}-{row.id}-{index}", row.at_us, *change) for index, change in enumerate(changes)]
