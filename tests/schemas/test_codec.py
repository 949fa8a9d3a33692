"""The wire format: a zero byte, the schema id, the record. What is anything else is undecodable, and says why."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.codec import ARCHIVED_IDS, AVRO_FOLDER, BUILT_IN_IDS, NAMESPACE, BuiltInRegistry, Codec, reader_schema
from schemas.errors import Undecodable
from tests.schemas.avro_records import records

HINTS = {"tenant": "t", "queue": "q", "lane": "low", "partition": 1, "epoch": 2, "runIds": b"\x01" * 16, "dueAt": None}
HINTS_WIRE = bytes([0, 0, 0, 0, 14, 2, ord("t"), 2, ord("q"), 4, 2, 4, 32, *[1] * 16, 0])


def test_the_wire_bytes_are_a_zero_the_id_and_the_avro_body() -> None:
    assert Codec().encode("ReadyHints", HINTS) == HINTS_WIRE
    assert Codec().decode(HINTS_WIRE) == ("ReadyHints", HINTS)


def test_the_built_in_ids_are_never_renumbered() -> None:
    """They are in every record that was ever written: this table may only grow."""
    assert BUILT_IN_IDS == {
        "PauseJob": 3,
        "ResumeJob": 4,
        "DeleteJob": 5,
        "TriggerJob": 6,
        "CancelRun": 7,
        "ReplayRun": 8,
        "RejectedCommand": 10,
        "RunEvents": 12,
        "BackfillJob": 13,
        "ReadyHints": 14,
        "AuditEvents": 15,
        "CreateJob": 16,
        "UpdateJob": 17,
        "CommandBatch": 18,
    }
    assert ARCHIVED_IDS == {1: "CreateJob", 2: "UpdateJob", 9: "CommandBatch", 11: "ReadyHints"}
    assert ARCHIVED_IDS.keys().isdisjoint(BUILT_IN_IDS.values())


def test_hints_of_builds_that_told_no_due_time_are_read() -> None:
    old = HINTS_WIRE[:4] + b"\x0b" + HINTS_WIRE[5:-1]
    assert Codec().decode(old) == ("ReadyHints", HINTS)
    assert Codec().body_of("ReadyHints", old) is None


def carries(read: Any, written: Any) -> bool:
    """Whether what was read is what was written, but for fields that are new since."""
    if isinstance(written, dict):
        return all(carries(read[key], value) for key, value in written.items())
    if isinstance(written, (list, tuple)):
        return len(read) == len(written) and all(map(carries, read, written))
    return bool(read == written)


@pytest.mark.parametrize(("schema_id", "name"), ARCHIVED_IDS.items())
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_was_written_with_an_archived_schema_is_read_and_the_other_way_round(
    schema_id: int, name: str, data: st.DataObject
) -> None:
    _, archived = BuiltInRegistry().writer_schema(schema_id)
    record = data.draw(records(archived))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, archived, record)
    _, read = Codec().decode(struct.pack(">bI", 0, schema_id) + out.getvalue())
    assert carries(read, record)
    body = io.BytesIO(Codec().encode(name, read)[5:])
    assert fastavro.schemaless_reader(body, reader_schema(name), archived, return_record_name=True) == record


@pytest.mark.parametrize("name", BUILT_IN_IDS)
def test_the_built_in_registry_knows_each_id_by_its_name(name: str) -> None:
    registry = BuiltInRegistry()
    assert registry.writer_schema(registry.id_of(name)) == (name, reader_schema(name))


@pytest.mark.parametrize("path", sorted(AVRO_FOLDER.glob("*.avsc")), ids=lambda path: path.stem)
def test_every_schema_parses_under_the_name_of_its_file(path: Any) -> None:
    parsed = fastavro.schema.load_schema(path)
    assert parsed["name"] == path.stem
    assert path.stem.startswith(f"{NAMESPACE}.")


@pytest.mark.parametrize("name", BUILT_IN_IDS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_record_comes_back_as_it_went(name: str, data: st.DataObject) -> None:
    record = data.draw(records(reader_schema(name)))
    assert Codec().decode(Codec().encode(name, record)) == (name, record)


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (None, "0 bytes are too few"),
        (b"", "0 bytes are too few"),
        (HINTS_WIRE[:4], "4 bytes are too few"),
        (b"\x01" + HINTS_WIRE[1:], "magic byte 1 is not 0"),
        (b"\xff" + HINTS_WIRE[1:], "magic byte -1 is not 0"),
        (b'{"tenant": "acme"}', "magic byte 123 is not 0"),
        (b"\x00\x00\x00\x00\x00" + HINTS_WIRE[5:], "unknown schema id 0"),
        (b"\x00\xff\xff\xff\xff" + HINTS_WIRE[5:], "unknown schema id 4294967295"),
        (HINTS_WIRE[:5], "the body is no ReadyHints"),
        (HINTS_WIRE[:-1], "the body is no ReadyHints"),
        (HINTS_WIRE + b"\x00", "1 bytes are left over after the ReadyHints"),
        (HINTS_WIRE[:9] + b"\x06" + HINTS_WIRE[10:], "the body is no ReadyHints"),
        (HINTS_WIRE[:6] + b"\xff" + HINTS_WIRE[7:], "the body is no ReadyHints"),
        (HINTS_WIRE[:5] + b"\x01" + HINTS_WIRE[6:], "the body is no ReadyHints"),
    ],
    ids=[
        "no value at all",
        "nothing",
        "half a header",
        "another magic byte",
        "a negative magic byte",
        "JSON",
        "schema id 0",
        "the greatest schema id",
        "no body",
        "a truncated body",
        "a trailing byte",
        "a symbol that is none",
        "text that is no UTF-8",
        "a negative length",
    ],
)
def test_what_is_no_record_is_undecodable_and_says_why(wire: bytes | None, reason: str) -> None:
    with pytest.raises(Undecodable, match=reason) as raised:
        Codec().decode(wire)
    assert (raised.value.code, raised.value.field) == ("undecodable", None)


@pytest.mark.parametrize("name", BUILT_IN_IDS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_bytes_are_a_record_or_undecodable_but_never_another_error(name: str, data: st.DataObject) -> None:
    wire = bytearray(Codec().encode(name, data.draw(records(reader_schema(name)))))
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(wire)))
    for damaged in (bytes(wire), bytes(wire[:cut]), bytes(wire[cut:])):
        try:
            decoded, record = Codec().decode(damaged)
        except Undecodable:
            continue
        assert decoded in BUILT_IN_IDS
        assert isinstance(record, dict)


@pytest.mark.parametrize("name", BUILT_IN_IDS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_record_that_is_cut_off_anywhere_is_undecodable(name: str, data: st.DataObject) -> None:
    wire = Codec().encode(name, data.draw(records(reader_schema(name))))
    with pytest.raises(Undecodable):
        Codec().decode(wire[: data.draw(st.integers(0, len(wire) - 1))])


@given(st.sampled_from([*BUILT_IN_IDS.values(), *ARCHIVED_IDS]), st.binary(max_size=200))
def test_any_bytes_are_a_record_or_undecodable(schema_id: int, body: bytes) -> None:
    with suppress(Undecodable):
        name, _ = Codec().decode(struct.pack(">bI", 0, schema_id) + body)
        assert name == ARCHIVED_IDS.get(schema_id) or BUILT_IN_IDS[name] == schema_id


class CountingRegistry(BuiltInRegistry):
    """Counts its calls: a registry server is asked once a schema and process."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str | int] = []

    def id_of(self, name: str) -> int:
        self.calls.append(name)
        return super().id_of(name)

    def writer_schema(self, schema_id: int) -> tuple[str, Any]:
        self.calls.append(schema_id)
        return super().writer_schema(schema_id)


def test_the_registry_is_asked_once_for_a_schema() -> None:
    registry = CountingRegistry()
    codec = Codec(registry)
    for _ in range(3):
        codec.decode(codec.encode("ReadyHints", HINTS))
    assert registry.calls == ["ReadyHints", 14]


def test_an_id_that_the_registry_did_not_know_is_asked_for_again() -> None:
    """It may have been registered meanwhile."""
    registry = CountingRegistry()
    codec = Codec(registry)
    for _ in range(2):
        with pytest.raises(Undecodable):
            codec.decode(b"\x00\x00\x00\x00\x63")
    assert registry.calls == [99, 99]


@pytest.mark.parametrize(
    "change",
    [lambda hints: hints.pop("tenant"), lambda hints: hints.update(lane="slow")],
    ids=["no tenant", "slow lane"],
)
def test_a_record_that_does_not_fit_its_schema_is_not_encoded(change: Callable[[dict], object]) -> None:
    hints: dict[str, Any] = dict(HINTS)
    change(hints)
    with pytest.raises((ValueError, TypeError, KeyError)):
        Codec().encode("ReadyHints", hints)


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (HINTS_WIRE, 5),
        (HINTS_WIRE[:5], 5),
        (HINTS_WIRE[:4], None),
        (b"", None),
        (b"\x01" + HINTS_WIRE[1:], None),
        (b"\x00\x00\x00\x00\x0c" + HINTS_WIRE[5:], None),
        (b"\x00\x00\x00\x00\x63" + HINTS_WIRE[5:], None),
    ],
    ids=["hints", "no body", "half a header", "nothing", "another magic byte", "another name", "an unknown id"],
)
def test_where_a_record_of_this_build_begins(wire: bytes, body: int | None) -> None:
    assert Codec().body_of("ReadyHints", wire) == body
