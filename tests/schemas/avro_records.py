"""Strategies for records of a parsed Avro schema, whatever it is, and changes to schemas as time will bring them."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

Schema = Any  # as fastavro parses it

_INSTANTS = st.datetimes(datetime(1900, 1, 1), datetime(2500, 1, 1), timezones=st.just(UTC))
_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "string": st.text(st.characters(codec="utf-8"), max_size=20),
    "bytes": st.binary(max_size=40),
}


def records(schema: Schema) -> st.SearchStrategy[Any]:
    """Records of a schema, as the codec takes and gives them."""
    return _values(schema, named_types(schema))


def named_types(schema: Schema) -> dict[str, Schema]:
    """The records and enums defined anywhere in a schema, by their full names."""
    found: dict[str, Schema] = {}
    if isinstance(schema, list):
        for member in schema:
            found |= named_types(member)
    elif isinstance(schema, dict):
        if schema["type"] in ("record", "enum"):
            found[schema["name"]] = schema
        for inner in (field["type"] for field in schema.get("fields", [])):
            found |= named_types(inner)
        if "items" in schema:
            found |= named_types(schema["items"])
    return found


def _values(schema: Schema, named: dict[str, Schema]) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of([_member(member, named) for member in schema])
    if isinstance(schema, str):
        return _PRIMITIVES[schema] if schema in _PRIMITIVES else _values(named[schema], named)
    match schema["type"]:
        case "record":
            return st.fixed_dictionaries({each["name"]: _values(each["type"], named) for each in schema["fields"]})
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "array":
            return st.lists(_values(schema["items"], named), max_size=3)
        case "long" if schema.get("logicalType") == "timestamp-micros":
            return _INSTANTS
    return _values(schema["type"], named)


def _member(schema: Schema, named: dict[str, Schema]) -> st.SearchStrategy[Any]:
    """A member of a union: records come with their names."""
    resolved = named.get(schema, schema) if isinstance(schema, str) else schema
    values = _values(schema, named)
    if isinstance(resolved, dict) and resolved["type"] == "record":
        return values.map(lambda value: (resolved["name"], value))
    return values


ADDED = {"name": "addedLater", "type": "string", "default": "by default"}
ADDED_SYMBOL = "added_later"


def evolved(schema: Schema) -> Schema:
    """The schema of a later version: every record has one more field, every enum one more symbol."""
    later = copy.deepcopy(schema)
    for definition in named_types(later).values():
        if definition["type"] == "enum":
            definition["symbols"] = [*definition["symbols"], ADDED_SYMBOL]
        else:
            definition["fields"] = [*definition["fields"], dict(ADDED)]
    return later
