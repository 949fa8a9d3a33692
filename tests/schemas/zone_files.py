"""Zones with made-up rules, as TZif files (RFC 9636)."""

from __future__ import annotations

import struct
from datetime import datetime

_HEADER = struct.Struct(">4s c 15x 6L")
_TYPE = struct.Struct(">l B B")


def tzif(offset_s: int, *changes: tuple[datetime, int]) -> bytes:
    """A zone that is `offset_s` east of UTC at first, and from each of the instants on another number of seconds."""
    offsets = [offset_s, *(offset for _, offset in changes)]
    first = _HEADER.pack(b"TZif", b"2", 0, 0, 0, 0, 1, 4) + _TYPE.pack(0, 0, 0) + b"XXX\0"
    counts = (0, 0, 0, len(changes), len(offsets), 4)
    instants = [int(instant.timestamp()) for instant, _ in changes]
    return b"".join(
        (
            first,
            _HEADER.pack(b"TZif", b"2", *counts),
            struct.pack(f">{len(changes)}q", *instants),
            bytes(range(1, len(offsets))),
            *(_TYPE.pack(offset, 0, 0) for offset in offsets),
            b"XXX\0\n\n",
        )
    )
