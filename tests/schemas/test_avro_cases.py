"""The public cases about Avro (tests/cases.py), each with its expected value."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest

from schemas import codec as codecs
from schemas.codec import AVRO_FOLDER, BUILT_IN_IDS, NAMESPACE, Codec, reader_schema
from schemas.commands import PauseJob, ResumeJob, command_record, decode_commands, encode_command
from schemas.errors import CommandRejected, KafkaUnavailable, Undecodable
from tests.cases import given

Schema = dict[str, Any]
CODEC = Codec()
ID = UUID("0197a5f0-0000-7000-8000-000000000001")
PAUSE = PauseJob(command_id=ID, tenant="acme", job_id=ID, issued_at=datetime(2026, 3, 1, 12, tzinfo=UTC))
RESUME = ResumeJob(command_id=ID, tenant="acme", job_id=ID, issued_at=PAUSE.issued_at)
MAX_EXTRA_BYTES = 10_000_000


def sample(**types: Any) -> Schema:
    """A record with these fields, in this order."""
    fields = [
        {"name": name, "type": kind} | ({"default": None} if "null" in kind else {}) for name, kind in types.items()
    ]
    return {"type": "record", "name": "Sample", "namespace": NAMESPACE, "fields": fields}


class OneWriter:
    """A registry in which everything was written with one schema, or which cannot say with which."""

    def __init__(self, writer: Schema | Exception) -> None:
        self._writer = writer

    def id_of(self, _name: str) -> int:
        return 1

    def writer_schema(self, _schema_id: int) -> tuple[str, Any]:
        if isinstance(self._writer, Exception):
            raise self._writer
        return "Sample", fastavro.parse_schema(self._writer)


@pytest.fixture
def this_build_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Schema], None]]:
    """Makes a schema the one that this build has for a `Sample`."""
    monkeypatch.setattr(codecs, "AVRO_FOLDER", tmp_path)

    def read_with(schema: Schema) -> None:
        (tmp_path / f"{NAMESPACE}.Sample.avsc").write_text(json.dumps(schema))

    yield read_with
    reader_schema.cache_clear()


def wire(schema_id: int, body: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + body


def body_of(schema: Schema, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


def test_avr_001_a_record_is_read_by_the_schema_that_wrote_it(this_build_reads: Callable[[Schema], None]) -> None:
    asked, expected = given("avr-001")
    old, new = sample(id="string", n="int"), sample(id="string", n="int", lane=["null", "string"])
    this_build_reads(new)
    body = body_of(old, asked["bytes_of"])
    assert Codec(OneWriter(old)).decode(wire(1, body)) == ("Sample", expected["decode(writer=v1,reader=v2)"])
    with pytest.raises(Undecodable, match="EOFError"):
        Codec(OneWriter(new)).decode(wire(1, body))


def test_avr_003_fields_in_another_order_are_undecodable(this_build_reads: Callable[[Schema], None]) -> None:
    this_build_reads(sample(n="int", id="string"))
    body = body_of(sample(id="string", n="int"), {"id": "a", "n": 1})
    with pytest.raises(Undecodable):
        Codec(OneWriter(sample(n="int", id="string"))).decode(wire(1, body))


def test_avr_004_a_command_of_a_batch_is_the_one_that_was_meant() -> None:
    """To pause and to resume have the same fields: only the branch that is named tells them apart."""
    meant = [RESUME, PAUSE, RESUME]
    members = [(f"{NAMESPACE}.{type(each).__name__}", command_record(each)) for each in meant]
    assert list(decode_commands(CODEC, CODEC.encode("CommandBatch", {"commands": members}))) == meant


def fields_in(schema: Any) -> Iterator[Schema]:
    """All fields of a schema's records."""
    for inner in schema if isinstance(schema, list) else schema.values() if isinstance(schema, dict) else ():
        yield from fields_in(inner)
    if isinstance(schema, dict):
        yield from schema.get("fields", ())


def has_a_foreign_default(field: Schema) -> bool:
    """Whether the default of a field that may be null is not of its union's first branch."""
    union = field["type"]
    return isinstance(union, list) and "default" in field and (union[0] == "null") != (field["default"] is None)


def test_avr_006_every_default_is_of_the_first_branch_of_its_union() -> None:
    asked, _ = given("avr-006")
    assert has_a_foreign_default(asked["field"])
    ours = [field for path in AVRO_FOLDER.rglob("*.avsc") for field in fields_in(json.loads(path.read_text()))]
    assert len(ours) > len(BUILT_IN_IDS)
    assert [field["name"] for field in ours if has_a_foreign_default(field)] == []


def test_avr_009_a_time_of_2243_comes_back_as_it_went() -> None:
    asked, _ = given("avr-009")
    then = datetime.fromisoformat(asked["timestamp-millis"])
    name, record = CODEC.decode(CODEC.encode("PauseJob", command_record(PAUSE) | {"issuedAt": then}))
    assert (name, record["issuedAt"]) == ("PauseJob", then)


def test_avr_010_a_time_beyond_every_calendar_is_undecodable() -> None:
    asked, _ = given("avr-010")
    micros = asked["timestamp-millis"] * 1_000
    command = CODEC.encode("PauseJob", command_record(PAUSE) | {"issuedAt": micros})
    with pytest.raises(Undecodable, match="OverflowError"):
        list(decode_commands(CODEC, command))


def test_avr_014_an_id_that_is_none_is_rejected_with_its_field() -> None:
    asked, _ = given("avr-014")
    [rejected] = decode_commands(CODEC, CODEC.encode("PauseJob", command_record(PAUSE) | {"jobId": asked["value"]}))
    assert isinstance(rejected, CommandRejected)
    assert rejected.field == "jobId"


@pytest.mark.parametrize("value", [b"", b"\x00", b"\x01\x00\x00\x00\x01body", wire(42, b"body")])
def test_avr_016_what_has_no_header_that_we_know_is_undecodable(value: bytes) -> None:
    with pytest.raises(Undecodable):
        CODEC.decode(value)


def test_avr_016_a_registry_that_does_not_answer_is_asked_again_and_condemns_nothing() -> None:
    """KafkaUnavailable has the owner apply the same records again, and the partition waits."""
    with pytest.raises(KafkaUnavailable):
        Codec(OneWriter(KafkaUnavailable("503"))).decode(wire(42, b"body"))


@pytest.mark.parametrize("case_id", ["avr-017", "avr-018"])
def test_avr_017_and_018_a_hostile_length_and_text_that_is_none_are_undecodable_and_cost_nothing(case_id: str) -> None:
    asked, _ = given(case_id)
    text = bytes.fromhex(asked["bytes_hex"]) if case_id == "avr-017" else b"\x04" + bytes.fromhex(asked["string_bytes"])
    tracemalloc.start()
    try:
        with pytest.raises(Undecodable):
            list(decode_commands(CODEC, wire(BUILT_IN_IDS["PauseJob"], text)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MAX_EXTRA_BYTES


def test_avr_007_the_case_s_time_has_no_zone_and_is_not_encoded() -> None:
    asked, _ = given("avr-007")
    naive = datetime.fromisoformat(asked["timestamp-millis"].removeprefix("naive "))
    with pytest.raises(CommandRejected, match="no zone"):
        encode_command(CODEC, PauseJob(command_id=ID, tenant="acme", job_id=ID, issued_at=naive))
