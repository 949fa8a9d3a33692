"""Rows decoded straight from the bytes: fastavro's values, and Undecodable for whatever is no array of records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.codec import Codec, reader_schema
from schemas.errors import Undecodable
from schemas.row_decoder import RowDecoder, long_at
from schemas.row_encoder import array, long
from tests.schemas.avro_records import records
from tests.schemas.test_row_encoder import EVENT, FIELDS, by_fastavro, schema_of

DECODER = RowDecoder(EVENT, FIELDS)
SPARSE = RowDecoder(EVENT, ["version"])


def rows_of(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """By fastavro, there and back."""
    codec = Codec()
    wire = codec.encode("RunEvents", {"partition": 0, "events": events})
    return [tuple(event[name] for name in FIELDS) for event in codec.decode(wire, micros=True)[1]["events"]]


@given(st.lists(records(EVENT), max_size=4))
def test_rows_are_what_fastavro_reads(events: list[dict[str, Any]]) -> None:
    wire = array([by_fastavro(EVENT, event) for event in events])
    assert DECODER.array(wire, 0) == (rows_of(events), len(wire))
    assert DECODER.array(b"before" + wire + b"after", 6) == (rows_of(events), 6 + len(wire))


@given(st.lists(records(EVENT), min_size=2, max_size=4))
def test_blocks_are_one_array_whether_they_tell_their_size_or_not(events: list[dict[str, Any]]) -> None:
    first, *rest = [by_fastavro(EVENT, event) for event in events]
    wire = long(-1) + long(len(first)) + first + array(rest)
    assert DECODER.array(wire, 0) == (rows_of(events), len(wire))


def test_a_row_has_the_fields_that_were_asked_for_in_their_order() -> None:
    decoder = RowDecoder(schema_of("string", "boolean", ["null", "int"]), ["x2", "x0"])
    assert decoder.array(array([b"\x02a\x01\x00", b"\x02b\x00\x02\x09"]), 0)[0] == [(None, "a"), (-5, "b")]


@given(st.lists(records(EVENT), max_size=4), st.lists(st.sampled_from(FIELDS), min_size=1, unique=True))
def test_fields_that_nobody_asks_for_are_passed_over(events: list[dict[str, Any]], fields: list[str]) -> None:
    wire = array([by_fastavro(EVENT, event) for event in events])
    rows = [tuple(row[FIELDS.index(field)] for field in fields) for row in rows_of(events)]
    assert RowDecoder(EVENT, fields).array(wire, 0) == (rows, len(wire))


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_long_is_read_as_it_was_written(number: int) -> None:
    assert long_at(b"x" + long(number) + b"\x80", 1) == (number, 1 + len(long(number)))


@pytest.mark.parametrize("wire", [b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"])
def test_a_number_of_more_than_64_bits_is_none(wire: bytes) -> None:
    with pytest.raises(IndexError):
        long_at(wire, 0)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_record_that_is_cut_off_anywhere_is_undecodable(data: st.DataObject) -> None:
    wire = array([by_fastavro(EVENT, data.draw(records(EVENT)))])
    cut = wire[: data.draw(st.integers(0, len(wire) - 1))]
    for decoder in (DECODER, SPARSE):
        with pytest.raises(Undecodable):
            decoder.array(cut, 0)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_bytes_are_rows_or_undecodable_but_never_another_error(data: st.DataObject) -> None:
    wire = bytearray(array([by_fastavro(EVENT, data.draw(records(EVENT)))]))
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    for decoder, width in ((DECODER, len(FIELDS)), (SPARSE, 1)):
        try:
            rows, end = decoder.array(bytes(wire), 0)
        except Undecodable:
            continue
        assert all(len(row) == width for row in rows)
        assert end <= len(wire)


@given(st.binary(max_size=200))
def test_any_bytes_are_rows_or_undecodable(wire: bytes) -> None:
    try:
        _, end = DECODER.array(wire, 0)
    except Undecodable:
        return
    assert end <= len(wire)


@pytest.mark.parametrize("kind", ["double", ["string", "null"], ["null", "string", "long"]])
def test_a_schema_that_it_cannot_read_is_refused(kind: Any) -> None:
    with pytest.raises(NotImplementedError):
        RowDecoder(schema_of(kind), ["x0"])


def test_the_schema_of_run_events_is_one_that_it_can_read() -> None:
    assert RowDecoder(reader_schema("RunEvent"), ["eventId"])
