"""Commands as bytes: Avro in Confluent's wire format (a zero byte, the schema id in 4 bytes big-endian, the record).

The .avsc files beside this module are copies of the server's; a test keeps them equal.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import fastavro.schema

AVRO_FOLDER = Path(__file__).parent / "avro"
NAMESPACE = "io.fencepost"

# The server's built-in registry. A schema registry's ids can be given to the producer instead.
BUILT_IN_IDS: Mapping[str, int] = {
    "PauseJob": 3,
    "ResumeJob": 4,
    "DeleteJob": 5,
    "TriggerJob": 6,
    "CancelRun": 7,
    "ReplayRun": 8,
    "BackfillJob": 13,
    "CreateJob": 16,
    "UpdateJob": 17,
    "CommandBatch": 18,
}

_HEADER = struct.Struct(">bI")


class EncodedCommand(NamedTuple):
    """A command's record name and its Avro body, without a header, so that it can be packed into a batch as it is."""

    name: str
    body: bytes


def encode_command(name: str, fields: Mapping[str, Any]) -> EncodedCommand:
    """The Avro body of a command. Raises what fastavro raises when the fields do not fit the schema."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _schema(name), fields)
    return EncodedCommand(name, out.getvalue())


def record_of(commands: Sequence[EncodedCommand], ids: Mapping[str, int] = BUILT_IN_IDS) -> bytes:
    """The value of one Kafka record: a single command as itself, several as a CommandBatch."""
    if len(commands) == 1:
        return _HEADER.pack(0, ids[commands[0].name]) + commands[0].body
    return b"".join(_batch_parts(commands, ids["CommandBatch"]))


def _batch_parts(commands: Sequence[EncodedCommand], schema_id: int) -> Iterable[bytes]:
    # An Avro array is a block count, that many items and a zero; an item of a union is its branch, then the record.
    # So bodies are encoded once, when their size is needed, and only joined here.
    branches = _batch_branches()
    yield _HEADER.pack(0, schema_id)
    yield _zigzag(len(commands))
    for command in commands:
        yield branches[command.name]
        yield command.body
    yield b"\x00"


@cache
def _schema(name: str) -> Any:
    return fastavro.schema.load_schema(AVRO_FOLDER / f"{NAMESPACE}.{name}.avsc")


@cache
def _batch_branches() -> dict[str, bytes]:
    branches = _schema("CommandBatch")["fields"][0]["type"]["items"]
    return {_short_name(branch): _zigzag(index) for index, branch in enumerate(branches)}


def _short_name(branch: Any) -> str:
    full_name: str = branch["name"] if isinstance(branch, dict) else branch
    return full_name.rpartition(".")[2]


def _zigzag(count: int) -> bytes:
    """A non-negative number as an Avro long."""
    value, out = count << 1, bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
