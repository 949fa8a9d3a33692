"""Avro of many records of one schema as tuples: fastavro's values, in a third of its time. The way back of RowEncoder.

The history reads every event of every run, and fastavro asks a file object for each byte of each number. Here the
fields of the schema become the body of one loop, in which the usual case of a field is a comparison and a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from textwrap import indent
from typing import Any

from schemas.codec import ParsedSchema
from schemas.errors import Undecodable

Row = tuple[Any, ...]
_Loop = Callable[[bytes, int, int, Callable[[Row], None]], int]  # (wire, place, count, add) -> the place after them

# A number of one byte, which neither goes on (0x80) nor is negative (0x01), is read on the spot.
_LONG = """
value = wire[place]
place += 1
if value & 0x81:
    value, place = long_at(wire, place - 1)
else:
    value >>= 1
"""
_TIME = """
value = time_of(wire[place : place + 8])
if value is None:
    value, place = long_at(wire, place)
else:
    place += 8
"""
# A slice beyond the end is short without an error, which the next byte raises, at the latest that of the array's end.
_PASSED_TEXT = f"""{_LONG}
start, place = place, place + value
if value < 0:
    raise IndexError
"""
_TEXT = f"""{_PASSED_TEXT}
value = str(wire[start:place], "utf-8")
"""
_BOOLEAN = """
value = wire[place] != 0
place += 1
"""
_OR_NULL = """
branch = wire[place]
place += 1
if branch == 0:
    value = None
elif branch == 2:
{inner}
else:
    raise IndexError
"""
_LOOP = """
def loop(wire, place, count, add):
    for _ in range(count):
{fields}
        add(({names}))
    return place
"""


class RowDecoder:
    """Knows the fields that RowEncoder does: text, numbers, times, booleans, enums, and each of them or null.

    Raises NotImplementedError for a schema with anything else.
    """

    def __init__(self, schema: ParsedSchema, fields: Sequence[str]) -> None:
        """fields: what a row has of a record, in this order. Times are microseconds since 1970."""
        self._loop = _compiled(schema, fields)

    def array(self, wire: bytes, place: int) -> tuple[list[Row], int]:
        """The rows of the array of records at that place, and where it ends. Raises Undecodable."""
        rows: list[Row] = []
        try:
            count, place = long_at(wire, place)
            while count:
                if count < 0:  # a block that tells its size, for those who skip it
                    count, (_, place) = -count, long_at(wire, place)
                place = self._loop(wire, place, count, rows.append)
                count, place = long_at(wire, place)
        except (LookupError, UnicodeDecodeError) as error:
            raise Undecodable(f"row {len(rows)} is none: {type(error).__name__}: {error}") from error
        return rows, place


def long_at(wire: bytes, place: int) -> tuple[int, int]:
    """An int or a long: zigzag, seven bits a byte, the lowest first; and where it ends. Raises IndexError."""
    number = shift = 0
    while (byte := wire[place]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
        place += 1
        if shift > 63:
            raise IndexError("a number of more than ten bytes")
    number |= byte << shift
    if number >> 64:
        raise IndexError("a number of more than 64 bits")
    return number >> 1 ^ -(number & 1), place + 1


@lru_cache(maxsize=65_536)
def _time_of(wire: bytes) -> int | None:
    """Microseconds that take eight bytes, as all from 1979 to 3111 do; None when these are not such."""
    try:
        micros, end = long_at(wire, 0)
    except IndexError:
        return None
    return micros if end == 8 else None


def _compiled(schema: ParsedSchema, fields: Sequence[str]) -> _Loop:
    known: dict[str, Any] = {"long_at": long_at, "time_of": _time_of}
    lines, names = [], {}
    for number, field in enumerate(schema["fields"]):
        names[field["name"]] = name = f"field_{number}"
        lines.append(f"{_code(field['type'], name, known, field['name'] in fields)}\n{name} = value")
    row = "".join(f"{names[field]}, " for field in fields)
    exec(_LOOP.format(fields=indent("\n".join(lines), " " * 8), names=row), known)
    loop: _Loop = known["loop"]
    return loop


def _code(schema: ParsedSchema, name: str, known: dict[str, Any], is_asked: bool) -> str:
    """The lines that read `value`. known: what they may use by name; an enum adds its symbols.

    is_asked: whether anybody wants it; else texts are only passed over.
    """
    if isinstance(schema, list):
        if len(schema) != 2 or schema[0] != "null":
            raise NotImplementedError(f"no rows of {schema}")
        return _OR_NULL.format(inner=indent(_code(schema[1], name, known, is_asked), " " * 4))
    match schema["type"] if isinstance(schema, dict) else schema:
        case "string":
            return _TEXT if is_asked else _PASSED_TEXT
        case "long" if isinstance(schema, dict) and schema.get("logicalType") == "timestamp-micros":
            return _TIME
        case "int" | "long":
            return _LONG
        case "boolean":
            return _BOOLEAN
        case "enum":
            known[f"{name}_symbols"] = dict(enumerate(schema["symbols"]))
            return f"{_LONG}\nvalue = {name}_symbols[value]"
    raise NotImplementedError(f"no rows of {schema}")
