"""Avro in Confluent's wire format: a zero byte, the schema id (4 bytes, big-endian), the record.

A registry tells which id is which schema. The built-in one has fixed ids, so a small installation needs no registry
server; a configured one (see `Registry`) takes its place with the ids it gives.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import fastavro
import fastavro.schema

from schemas.errors import Undecodable

AVRO_FOLDER = Path(__file__).parent / "avro"
NAMESPACE = "io.fencepost"

# Never renumber and never reuse: ids are in every record that was ever written. A changed schema gets a new id, and
# the old one stays readable as avro/archive/<id>.avsc, which has the named types that it refers to in it.
BUILT_IN_IDS: Mapping[str, int] = {
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
ARCHIVED_IDS: Mapping[int, str] = {1: "CreateJob", 2: "UpdateJob", 9: "CommandBatch", 11: "ReadyHints"}

Record = dict[str, Any]
ParsedSchema = Any  # fastavro's own, opaque to us

_HEADER = struct.Struct(">bI")


@cache
def reader_schema(name: str) -> ParsedSchema:
    """The schema of this build for a record name, parsed, with the named types it refers to."""
    return fastavro.schema.load_schema(AVRO_FOLDER / f"{NAMESPACE}.{name}.avsc")


@cache
def _archived_schema(schema_id: int) -> ParsedSchema:
    return fastavro.schema.load_schema(AVRO_FOLDER / "archive" / f"{schema_id}.avsc")


@cache
def _numbers_for_times(name: str) -> ParsedSchema:
    return _plain(reader_schema(name))


def _plain(schema: ParsedSchema) -> ParsedSchema:
    """The same schema for the same bytes, with its times as the numbers they are written as."""
    return fastavro.schema.parse_schema(_without_marks(schema))


def _without_marks(schema: ParsedSchema) -> ParsedSchema:
    """Without logical types, and without the marks by which fastavro knows what it has parsed."""
    if isinstance(schema, list):
        return [_without_marks(each) for each in schema]
    if isinstance(schema, dict):
        marks = ("logicalType", "__fastavro_parsed__", "__named_schemas")
        return {key: _without_marks(value) for key, value in schema.items() if key not in marks}
    return schema


class Registry(Protocol):
    """Who knows the ids. Both calls are made once a schema and process, and may block."""

    def id_of(self, name: str) -> int:
        """The id to write records called `name` with."""

    def writer_schema(self, schema_id: int) -> tuple[str, ParsedSchema]:
        """The record name and schema that an id was written with. Raises KeyError for an unknown id."""


class BuiltInRegistry:
    """Fixed ids, no server."""

    def __init__(self) -> None:
        self._names = {schema_id: name for name, schema_id in BUILT_IN_IDS.items()} | dict(ARCHIVED_IDS)

    def id_of(self, name: str) -> int:
        return BUILT_IN_IDS[name]

    def writer_schema(self, schema_id: int) -> tuple[str, ParsedSchema]:
        name = self._names[schema_id]
        return name, _archived_schema(schema_id) if schema_id in ARCHIVED_IDS else reader_schema(name)


class Codec:
    """Encodes and decodes our records. Safe to share between threads."""

    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = registry or BuiltInRegistry()
        self._headers: dict[str, bytes] = {}
        self._writers: dict[int, tuple[str, ParsedSchema]] = {}
        self._plain_writers: dict[int, ParsedSchema] = {}

    def encode(self, name: str, record: Mapping[str, Any]) -> bytes:
        """The wire bytes of a record. Members of a union of records are `(full name, record)` pairs."""
        out = io.BytesIO()
        out.write(self.header(name))
        fastavro.schemaless_writer(out, reader_schema(name), record)
        return out.getvalue()

    def header(self, name: str) -> bytes:
        """What comes before the bytes of a record that is called `name` and encoded with this build's schema."""
        known = self._headers.get(name)
        if known is None:
            known = self._headers[name] = _HEADER.pack(0, self._registry.id_of(name))
        return known

    def decode(self, wire: bytes | None, *, micros: bool = False) -> tuple[str, Record]:
        """The record's name and fields, read with this build's schema whatever version wrote it.

        micros: times come as whole microseconds since 1970, as they are on the wire; that takes two thirds of the time.
        Members of a union of records come as `(full name, record)` pairs. Raises Undecodable.
        """
        if wire is None or len(wire) < _HEADER.size:
            raise Undecodable(f"{0 if wire is None else len(wire)} bytes are too few for a record")
        magic, schema_id = _HEADER.unpack_from(wire)
        if magic != 0:
            raise Undecodable(f"magic byte {magic} is not 0: not Confluent's wire format")
        name, writer = self._writer(schema_id)
        reader = reader_schema(name)
        as_written = writer is reader
        if micros:
            writer, reader = self._without_times(schema_id, writer), _numbers_for_times(name)
        body = io.BytesIO(wire)
        body.seek(_HEADER.size)
        try:
            record = fastavro.schemaless_reader(body, writer, None if as_written else reader, return_record_name=True)
        except Exception as error:  # fastavro raises whatever the bytes lead it to: EOFError, IndexError, …
            raise Undecodable(f"the body is no {name}: {type(error).__name__}: {error}") from error
        if body.tell() != len(wire):
            raise Undecodable(f"{len(wire) - body.tell()} bytes are left over after the {name}")
        return name, record

    def body_of(self, name: str, wire: bytes) -> int | None:
        """Where the record begins, if it is a `name` as this build writes it; None for any other, and for none."""
        return _HEADER.size if self.name_of(wire) == name else None

    def name_of(self, wire: bytes) -> str | None:
        """The name of a record that is as this build writes it; None for any other, and for none."""
        try:
            magic, schema_id = _HEADER.unpack_from(wire)
            written, writer = self._writer(schema_id)
        except (struct.error, Undecodable):
            return None
        return written if magic == 0 and writer is reader_schema(written) else None

    def _without_times(self, schema_id: int, writer: ParsedSchema) -> ParsedSchema:
        known = self._plain_writers.get(schema_id)
        if known is None:
            known = self._plain_writers[schema_id] = _plain(writer)
        return known

    def _writer(self, schema_id: int) -> tuple[str, ParsedSchema]:
        known = self._writers.get(schema_id)
        if known is None:
            try:
                name, writer = self._registry.writer_schema(schema_id)
            except KeyError:
                raise Undecodable(f"unknown schema id {schema_id}") from None
            reader = reader_schema(name)
            known = self._writers[schema_id] = (name, reader if writer == reader else writer)
        return known
