"""Rows encoded by columns: byte for byte what fastavro makes of the same records."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import fastavro
import fastavro.schema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import Codec, reader_schema
from schemas.row_encoder import RowEncoder, array, long
from tests.schemas.avro_records import records

EVENT = reader_schema("RunEvent")
FIELDS = [field["name"] for field in EVENT["fields"]]
ENCODER = RowEncoder(EVENT, FIELDS)


def by_fastavro(schema: Any, record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def columns_of(events: list[dict[str, Any]]) -> list[list[Any]]:
    return [[event[name] for event in events] for name in FIELDS]


@given(st.lists(records(EVENT), min_size=1, max_size=4))
def test_rows_are_what_fastavro_writes(events: list[dict[str, Any]]) -> None:
    assert ENCODER.encode(len(events), columns_of(events)) == [by_fastavro(EVENT, event) for event in events]


@given(records(EVENT), st.integers(1, 3))
def test_what_is_alike_in_all_rows_may_be_given_once_or_not_at_all(event: dict[str, Any], count: int) -> None:
    columns = [None if event[name] is None else [event[name]] for name in FIELDS]
    assert ENCODER.encode(count, columns) == [by_fastavro(EVENT, event)] * count


@given(records(EVENT))
def test_times_may_be_microseconds(event: dict[str, Any]) -> None:
    plain = {name: _micros(value) if isinstance(value, datetime) else value for name, value in event.items()}
    assert ENCODER.encode(1, columns_of([plain])) == [by_fastavro(EVENT, event)]


def _micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_long_is_zigzag(number: int) -> None:
    assert long(number) == by_fastavro("long", number)


@given(st.integers(0, 300), st.lists(records(EVENT), max_size=3))
def test_encoded_rows_make_a_record_that_the_codec_reads(partition: int, events: list[dict[str, Any]]) -> None:
    rows = ENCODER.encode(len(events), columns_of(events)) if events else []
    codec = Codec()
    wire = codec.header("RunEvents") + long(partition) + array(rows)
    assert wire == codec.encode("RunEvents", {"partition": partition, "events": events})
    assert codec.decode(wire) == ("RunEvents", {"partition": partition, "events": events})


def test_a_field_without_a_column_gets_its_default() -> None:
    first = [field["name"] for field in EVENT["fields"] if "default" not in field]
    event = {"eventId": "1", "type": "run_leased", "at": 7, "tenant": "t", "jobId": "j", "version": 1, "queue": "q"}
    [row] = RowEncoder(EVENT, first).encode(1, [[event[name]] for name in first])
    assert row == by_fastavro(EVENT, event)


def test_a_field_with_neither_column_nor_default_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        RowEncoder(EVENT, FIELDS[1:])


def test_columns_of_unequal_length_are_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        RowEncoder(schema_of("string", "string"), ["x0", "x1"]).encode(2, [["a", "b"], ["a", "b", "c"]])


@pytest.mark.parametrize("kind", ["double", ["string", "null"], ["null", "string", "long"]])
def test_a_schema_that_it_cannot_write_is_refused(kind: Any) -> None:
    with pytest.raises(NotImplementedError):
        RowEncoder(schema_of(kind), ["x0"])


def schema_of(*kinds: Any) -> Any:
    return {"type": "record", "name": "X", "fields": [{"name": f"x{n}", "type": kind} for n, kind in enumerate(kinds)]}
