"""Outbox rows as run events, packed into records: pure translation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from ledger.outbox import OutboxRow
from schemas.codec import Record
from schemas.commands import LANES

RECORD_MAX_EVENTS = 1000
# Well under the broker's usual 1 MiB a record; a single event may be larger and then has a record of its own.
RECORD_MAX_BYTES = 512 * 1024
_BARE_EVENT_BYTES = 250


@dataclass(slots=True)
class EventRecord:
    """The fields of one `RunEvents` record and about how large they are."""

    partition: int
    events: list[Record] = field(default_factory=list)
    size_bytes: int = 0

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether another event of that size still fits; the first always does."""
        return not self.events or (
            len(self.events) < RECORD_MAX_EVENTS and self.size_bytes + size_bytes <= RECORD_MAX_BYTES
        )


def pack_events(rows: Iterable[OutboxRow], shard: str) -> list[EventRecord]:
    """The rows' events as records, each of one partition; in a partition the events keep the order of the rows."""
    records: list[EventRecord] = []
    open_records: dict[int, EventRecord] = {}
    for row in rows:
        for partition, event, size_bytes in zip(row.partitions, events_of(row, shard), _sizes(row), strict=True):
            record = open_records.get(partition)
            if record is None or not record.has_room_for(size_bytes):
                record = open_records[partition] = EventRecord(partition)
                records.append(record)
            record.events.append(event)
            record.size_bytes += size_bytes
    return records


def events_of(row: OutboxRow, shard: str) -> list[Record]:
    """The events of one row as Avro fields. The id is the same however often the row is read."""
    prefix = f"{shard}-{row.id}-"
    return [
        {
            "eventId": f"{prefix}{index}",
            "type": row.event,
            "at": row.at,
            "tenant": tenant,
            "jobId": job_id,
            "runId": run_id,
            "version": version,
            "queue": queue,
            "lane": LANES[lane],
            "attempt": attempt,
            "leaseToken": lease_token,
            "scheduledFor": scheduled_for,
            "dueAt": due_at,
            "leaseExpiresAt": lease_expires_at,
            "workerId": worker_id,
            "reason": reason,
            "result": result,
            "definition": definition,
            "count": count,
            "gated": gated or False,
        }
        for index, (
            tenant, job_id, run_id, version, queue, lane, attempt, lease_token, scheduled_for, due_at,
            lease_expires_at, worker_id, reason, result, definition, count, gated,
        ) in enumerate(_events_side_by_side(row))
    ]  # fmt: skip


def _events_side_by_side(row: OutboxRow) -> Iterator[tuple[Any, ...]]:
    return zip(
        row.tenants,
        row.job_ids,
        _or_none(row.run_ids),
        row.versions,
        row.queues,
        row.lanes,
        _or_none(row.attempts),
        _or_none(row.lease_tokens),
        _or_none(row.scheduled_for),
        _or_none(row.due_at),
        _or_none(row.lease_expires_at),
        _or_none(row.worker_ids),
        _or_none(row.reasons),
        _or_none(row.results),
        _or_none(row.definitions),
        _or_none(row.counts),
        _or_none(row.gated),
        strict=False,  # an absent field repeats None for ever
    )


def _or_none(values: Sequence[Any] | None) -> Iterable[Any]:
    return repeat(None) if values is None else values


def _sizes(row: OutboxRow) -> Iterable[int]:
    """About how many bytes each event takes; only these texts can be long."""
    texts = [column for column in (row.reasons, row.results, row.definitions) if column is not None]
    if not texts:
        return [_BARE_EVENT_BYTES] * len(row.job_ids)
    return [_BARE_EVENT_BYTES + sum(map(_utf8_bytes, long)) for long in zip(*texts, strict=True)]


def _utf8_bytes(text: str | None) -> int:
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode())
