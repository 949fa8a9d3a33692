"""Old readers on new records and new readers on old ones: what a rolling upgrade needs, for every record.

A new version adds a field with a default to every record, and a symbol to every enum.
"""

from __future__ import annotations

import copy
import io
import struct
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import fastavro
import fastavro.schema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import schemas.codec
from schemas.codec import BUILT_IN_IDS, Codec, reader_schema
from schemas.errors import Undecodable
from tests.schemas.avro_records import ADDED, ADDED_SYMBOL, Schema, evolved, named_types, records

OLD_ID, NEW_ID = 501, 502


class TwoVersions:
    """A registry that has two versions of one record: this build's and a later one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.schemas = {
            OLD_ID: reader_schema(name),
            NEW_ID: later_schema(name),
        }

    def id_of(self, name: str) -> int:
        assert name == self.name
        return OLD_ID

    def writer_schema(self, schema_id: int) -> tuple[str, Schema]:
        return self.name, self.schemas[schema_id]

    def written(self, schema_id: int, record: Any) -> bytes:
        out = io.BytesIO(struct.pack(">bI", 0, schema_id))
        out.seek(5)
        fastavro.schemaless_writer(out, self.schemas[schema_id], record)
        return out.getvalue()


@cache
def later_schema(name: str) -> Schema:
    return fastavro.schema.parse_schema(strip(evolved(reader_schema(name))))


def strip(schema: Schema) -> Schema:
    """Without the marks by which fastavro knows what it has parsed."""
    plain = copy.deepcopy(schema)
    for mark in ("__fastavro_parsed__", "__named_schemas"):
        plain.pop(mark, None)
    return plain


def without_what_is_new(value: Any) -> Any:
    """A record of the later version as this build should read it; an unknown symbol is its enum's default."""
    if isinstance(value, dict):
        return {key: without_what_is_new(inner) for key, inner in value.items() if key != ADDED["name"]}
    if isinstance(value, list):
        return [without_what_is_new(inner) for inner in value]
    if isinstance(value, tuple):
        return (value[0], without_what_is_new(value[1]))
    return value


def with_defaults(value: Any) -> Any:
    """A record of this build as the later version should read it."""
    if isinstance(value, dict):
        return {key: with_defaults(inner) for key, inner in value.items()} | {ADDED["name"]: ADDED["default"]}
    if isinstance(value, list):
        return [with_defaults(inner) for inner in value]
    if isinstance(value, tuple):
        return (value[0], with_defaults(value[1]))
    return value


def with_micros(value: Any) -> Any:
    """A record with its times as microseconds since 1970."""
    if isinstance(value, dict):
        return {key: with_micros(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_micros(inner) for inner in value]
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return value


every_record = pytest.mark.parametrize("name", BUILT_IN_IDS)


@every_record
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_this_build_reads_what_a_later_one_writes(name: str, data: st.DataObject) -> None:
    registry = TwoVersions(name)
    record = data.draw(records(registry.schemas[NEW_ID]).filter(lambda value: ADDED_SYMBOL not in symbols_in(value)))
    assert Codec(registry).decode(registry.written(NEW_ID, record)) == (name, without_what_is_new(record))


@every_record
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_later_build_reads_what_this_one_writes(name: str, data: st.DataObject) -> None:
    registry = TwoVersions(name)
    record = data.draw(records(registry.schemas[OLD_ID]))
    wire = Codec(registry).encode(name, record)
    with pytest.MonkeyPatch.context() as later_build:
        later_build.setattr(schemas.codec, "reader_schema", lambda _: registry.schemas[NEW_ID])
        assert Codec(registry).decode(wire) == (name, with_defaults(record))


@every_record
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_both_versions_are_read_side_by_side(name: str, data: st.DataObject) -> None:
    """A topic has records of both while the fleet is upgraded."""
    registry = TwoVersions(name)
    codec = Codec(registry)
    old = data.draw(records(registry.schemas[OLD_ID]))
    new = with_defaults(old)
    for _ in range(2):
        assert codec.decode(registry.written(OLD_ID, old)) == (name, old)
        assert codec.decode(registry.written(NEW_ID, new)) == (name, old)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_times_as_numbers_are_read_from_either_version(data: st.DataObject) -> None:
    registry = TwoVersions("RunEvents")
    codec = Codec(registry)
    old = data.draw(records(registry.schemas[OLD_ID]))
    for _ in range(2):
        for wire in (registry.written(OLD_ID, old), registry.written(NEW_ID, with_defaults(old))):
            assert codec.decode(wire, micros=True) == ("RunEvents", with_micros(old))
            assert codec.decode(wire) == ("RunEvents", old)


def test_only_what_is_written_as_this_build_writes_it_is_read_the_short_way() -> None:
    registry = TwoVersions("RunEvents")
    record = {"partition": 3, "events": []}
    codec = Codec(registry)
    assert codec.body_of("RunEvents", registry.written(OLD_ID, record)) == 5
    assert codec.body_of("RunEvents", registry.written(NEW_ID, with_defaults(record))) is None
    registry.schemas[OLD_ID] = copy.deepcopy(registry.schemas[OLD_ID])  # as it comes from a registry server
    assert Codec(registry).body_of("RunEvents", registry.written(OLD_ID, record)) == 5


@every_record
def test_every_enum_says_what_an_unknown_symbol_is_read_as(name: str) -> None:
    for definition in named_types(reader_schema(name)).values():
        if definition["type"] == "enum":
            assert definition["default"] in definition["symbols"]


@pytest.mark.parametrize(
    ("name", "field", "default"),
    [
        ("ReadyHints", "lane", "normal"),
        ("CreateJob", "overlap", "allow"),
        ("CreateJob", "catchUp", "latest"),
        ("CreateJob", "retryBackoff", "exponential"),
    ],
)
def test_a_symbol_that_this_build_does_not_know_is_read_as_the_default(name: str, field: str, default: str) -> None:
    registry = TwoVersions(name)
    record = minimal(registry.schemas[NEW_ID]) | {field: ADDED_SYMBOL}
    _, decoded = Codec(registry).decode(registry.written(NEW_ID, record))
    assert decoded[field] == default


def test_an_event_of_a_later_build_is_read_as_unknown() -> None:
    registry = TwoVersions("RunEvents")
    record = minimal(registry.schemas[NEW_ID])
    event = minimal(named_types(registry.schemas[NEW_ID])["io.fencepost.RunEvent"]) | {"type": ADDED_SYMBOL}
    _, decoded = Codec(registry).decode(registry.written(NEW_ID, record | {"events": [event]}))
    assert [each["type"] for each in decoded["events"]] == ["unknown"]


@every_record
def test_every_field_that_came_after_the_first_version_could_be_left_out_by_an_older_writer(name: str) -> None:
    """A field without a default can never be read from records that were written before it was."""
    first = {field["name"] for field in reader_schema(name)["fields"] if "default" not in field}
    assert first == FIRST_FIELDS[name]


_COMMAND = {"commandId", "tenant", "jobId", "issuedAt"}
FIRST_FIELDS = {
    "CreateJob": _COMMAND | {"queue", "schedule"},
    "UpdateJob": _COMMAND | {"queue", "schedule"},
    "PauseJob": _COMMAND,
    "ResumeJob": _COMMAND,
    "DeleteJob": _COMMAND,
    "TriggerJob": _COMMAND,
    "CancelRun": _COMMAND | {"runId"},
    "ReplayRun": _COMMAND | {"runId"},
    "BackfillJob": _COMMAND | {"from", "to"},
    "CommandBatch": {"commands"},
    "RejectedCommand": {"code", "reason", "partition", "offset", "rejectedAt"},
    "ReadyHints": {"tenant", "queue", "lane", "partition", "epoch", "runIds"},
    "RunEvents": {"partition", "events"},
    "AuditEvents": {"events"},
}


def test_a_later_version_that_drops_a_field_without_a_default_is_not_read_wrongly() -> None:
    registry = TwoVersions("ReadyHints")
    broken = strip(registry.schemas[OLD_ID])
    broken["fields"] = [field for field in broken["fields"] if field["name"] != "epoch"]
    registry.schemas[NEW_ID] = fastavro.schema.parse_schema(broken)
    with pytest.raises(Undecodable, match="epoch"):
        Codec(registry).decode(registry.written(NEW_ID, minimal(registry.schemas[NEW_ID])))


def symbols_in(value: Any) -> set[str]:
    """All text in a record, enum symbols among it."""
    if isinstance(value, dict):
        return set().union(*(symbols_in(inner) for inner in value.values()))
    if isinstance(value, (list, tuple)):
        return set().union(*(symbols_in(inner) for inner in value))
    return {value} if isinstance(value, str) else set()


def minimal(schema: Schema) -> dict[str, Any]:
    """A record of the schema with as little in it as there can be."""
    empty: dict[str, Any] = {"string": "", "int": 0, "long": 0, "double": 0.0, "bytes": b"", "boolean": False}
    named = named_types(schema)

    def value_of(kind: Schema) -> Any:
        if isinstance(kind, list):
            return None
        kind = named.get(kind, kind) if isinstance(kind, str) else kind
        if isinstance(kind, str):
            return empty[kind]
        match kind["type"]:
            case "record":
                return {field["name"]: value_of(field["type"]) for field in kind["fields"]}
            case "enum":
                return kind["symbols"][0]
            case "array":
                return []
        return empty[kind["type"]]

    record: dict[str, Any] = value_of(schema)
    return record
