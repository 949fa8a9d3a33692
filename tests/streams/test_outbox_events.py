"""Outbox rows as run events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from ledger.outbox import OutboxRow
from schemas.codec import Codec, Record
from streams.outbox_events import RECORD_MAX_BYTES, RECORD_MAX_EVENTS, EventRecord, encode_events, pack_events
from tests.streams.event_samples import decoded

AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def outbox_row(row_id: int, partitions: list[int], **columns: Any) -> OutboxRow:
    count = len(partitions)
    row = OutboxRow(
        id=row_id,
        event="run_completed",
        at=AT,
        job_ids=[str(UUID(int=1))] * count,
        run_ids=[str(UUID(int=row_id * 10_000 + index)) for index in range(count)],
        partitions=partitions,
        tenants=["acme"] * count,
        queues=["mail"] * count,
        lanes=[0] * count,
        versions=[1] * count,
        attempts=None,
        lease_tokens=None,
        scheduled_for=None,
        due_at=None,
        lease_expires_at=None,
        worker_ids=None,
        reasons=None,
        results=None,
        definitions=None,
        counts=None,
        gated=None,
    )
    return row._replace(**columns)


def events_of(row: OutboxRow, shard: str) -> list[Record]:
    return decoded(encode_events(row, shard))


def wire_of(record: EventRecord) -> bytes:
    return Codec().header("RunEvents") + record.body()


def test_every_column_becomes_the_field_of_its_name() -> None:
    later = AT + timedelta(seconds=30)
    row = outbox_row(
        5,
        [3],
        attempts=[2],
        lease_tokens=[9],
        scheduled_for=[AT],
        due_at=[AT],
        lease_expires_at=[later],
        worker_ids=["worker-1"],
        reasons=["because"],
        results=["{}"],
    )
    [record] = pack_events([row], "a")
    name, fields = Codec().decode(wire_of(record))
    assert (name, fields["partition"]) == ("RunEvents", 3)
    assert fields["events"] == [
        {
            "eventId": "a-5-0",
            "type": "run_completed",
            "at": AT,
            "tenant": "acme",
            "jobId": str(UUID(int=1)),
            "runId": str(UUID(int=50_000)),
            "version": 1,
            "queue": "mail",
            "lane": "high",
            "attempt": 2,
            "leaseToken": 9,
            "scheduledFor": AT,
            "dueAt": AT,
            "leaseExpiresAt": later,
            "workerId": "worker-1",
            "reason": "because",
            "result": "{}",
            "definition": None,
            "count": None,
            "gated": False,
        }
    ]


def test_a_range_of_skipped_occurrences_tells_how_many_and_a_gated_run_that_it_is() -> None:
    [skipped] = events_of(outbox_row(5, [3], event="occurrences_skipped", run_ids=None, counts=[7]), "0")
    assert (skipped["runId"], skipped["count"], skipped["gated"]) == (None, 7, False)
    [waits] = events_of(outbox_row(6, [3], event="run_scheduled", gated=[True]), "0")
    assert (waits["count"], waits["gated"]) == (None, True)


def test_a_job_event_has_no_run() -> None:
    row = outbox_row(5, [3], event="job_created", run_ids=None, definitions=['{"queue":"mail"}'])
    [event] = events_of(row, "0")
    assert (event["runId"], event["definition"]) == (None, '{"queue":"mail"}')


def test_event_ids_tell_shard_row_and_place_and_never_change() -> None:
    row = outbox_row(5, [0, 0])
    assert [event["eventId"] for event in events_of(row, "eu")] == ["eu-5-0", "eu-5-1"]
    assert events_of(row, "eu") == events_of(row, "eu")


def test_each_record_has_one_partition_and_keeps_the_order_of_the_rows() -> None:
    records = pack_events([outbox_row(1, [0, 1, 0]), outbox_row(2, [1, 0])], "0")
    ids = {record.partition: [event["eventId"] for event in decoded(record.events)] for record in records}
    assert ids == {0: ["0-1-0", "0-1-2", "0-2-1"], 1: ["0-1-1", "0-2-0"]}


def test_a_record_is_full_at_its_number_of_events() -> None:
    records = pack_events([outbox_row(row_id, [0] * 900) for row_id in (1, 2, 3)], "0")
    assert [len(record.events) for record in records] == [RECORD_MAX_EVENTS, RECORD_MAX_EVENTS, 700]


def test_a_record_is_full_at_its_bytes_of_utf8() -> None:
    snowman = "☃" * (RECORD_MAX_BYTES // 9)  # three bytes each: a third of a record
    records = pack_events([outbox_row(1, [0] * 5, results=[snowman] * 5)], "0")
    assert [len(record.events) for record in records] == [2, 2, 1]
    assert all(record.size_bytes <= RECORD_MAX_BYTES for record in records)


def test_an_event_larger_than_a_record_has_one_of_its_own() -> None:
    large = "x" * (2 * RECORD_MAX_BYTES)
    records = pack_events([outbox_row(1, [0, 0, 0], results=[None, large, None])], "0")
    assert [len(record.events) for record in records] == [1, 1, 1]


def test_the_size_of_a_record_is_not_underestimated() -> None:
    columns = {
        "attempts": [1] * 50,
        "lease_tokens": [2**40] * 50,
        "scheduled_for": [AT] * 50,
        "due_at": [AT] * 50,
        "lease_expires_at": [AT] * 50,
        "worker_ids": ["worker-0123456789"] * 50,
        "results": ['{"é":1}'] * 50,
    }
    [record] = pack_events([outbox_row(1, [0] * 50, **columns)], "0")
    assert len(record.body()) <= len(wire_of(record)) <= record.size_bytes
