# Generated from schemas/zones.py by connectors/client/generate_copies.py (make copies): change it there.
"""Time zones from the pinned tzdata package, the same on every node whatever its host has installed.

zoneinfo.ZoneInfo(name) prefers the host's files, so zones are loaded here from the package's bytes. Beside
the ZoneInfo, for display, there is a Timeline: the instants at which the zone's offset changes, as sorted
integers, which is what the zone rule computes with.
"""

from __future__ import annotations

import io
import struct
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from hashlib import blake2b
from importlib import resources
from itertools import accumulate, pairwise
from zoneinfo import ZoneInfo

import tzdata  # type: ignore[import-untyped]

from fencepost.schedules.errors import InvariantBroken, UnknownZone

TZDATA_VERSION: str = tzdata.IANA_VERSION
"""The IANA version that decisions are recorded with."""

WEEK_S = 7 * 86_400
DAWN_S = -(1 << 62)
"""Before everything."""
NEAR_S = int(datetime(2110, 1, 1, tzinfo=UTC).timestamp())
FAR_S = int(datetime(2500, 1, 1, tzinfo=UTC).timestamp())
EARLY_S = int(datetime(1900, 1, 1, tzinfo=UTC).timestamp())
"""Nothing fires before EARLY_S, nor from FAR_S on."""


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """The allow-list: every IANA name, links included, that stands for a place or a fixed offset."""
    listed = resources.files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
    return frozenset(listed) - {"Factory", "localtime", "posixrules"}


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """The zone of that exact IANA name. Raises UnknownZone."""
    return ZoneInfo.from_file(io.BytesIO(zone_data(name)), key=name)


class KeptZone(str):
    """A zone by the rules of another tzdata: stands wherever a zone's name does. No text that is read makes one."""

    data: bytes

    @classmethod
    def of(cls, name: str, data: bytes) -> KeptZone:
        kept = cls(f"{name}@{blake2b(data, digest_size=8).hexdigest()}")
        kept.data = data
        return kept


def zone_data(name: str) -> bytes:
    """The zone's TZif file (RFC 9636). Raises UnknownZone."""
    if isinstance(name, KeptZone):
        return name.data
    if name not in zone_names():  # also what keeps a path out of the line below
        raise UnknownZone("zone", f"unknown time zone {name[:64]!r}", _suggestion(name))
    return resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


def _suggestion(name: str) -> str:
    if len(name) <= 64:
        by_folded = {known.casefold(): known for known in zone_names()}
        near = get_close_matches(name.casefold().strip(), by_folded, n=1, cutoff=0.8)
        if near:
            return f"did you mean {by_folded[near[0]]}?"
    return "use an IANA name such as Europe/Paris or UTC"


@dataclass(frozen=True, slots=True)
class Timeline:
    """A zone as stretches of constant offset, in integer seconds; right for every instant before `reach`.

    Stretch i runs from starts[i] to starts[i + 1] at offsets[i]. peaks[i] is the latest wall-clock second
    that was read before stretch i began: where it is ahead of the clock, the clock was put back and
    readings repeat.
    """

    starts: tuple[int, ...]
    offsets: tuple[int, ...]
    peaks: tuple[int, ...]
    reach: int

    def stretch(self, instant: int) -> int:
        """The index of the stretch that holds the instant."""
        return bisect_right(self.starts, instant) - 1

    def shown(self, instant: int) -> int:
        """The latest wall-clock second that was read by the instant."""
        i = self.stretch(instant)
        return max(instant + self.offsets[i], self.peaks[i])


@lru_cache(maxsize=2048)
def timeline(name: str, reach: int = NEAR_S) -> Timeline:
    """The zone's timeline up to `reach` at least. Raises UnknownZone."""
    info = zone(name)
    changes, follows_rule = _listed_changes(zone_data(name))
    if follows_rule:
        changes += _changes_by_rule(info, changes[-1] if changes else 0, reach)
    else:
        reach = FAR_S
    starts, offsets = [DAWN_S], [_offset(info, changes[0] - 1 if changes else 0)]
    for instant in changes:
        offset = _offset(info, instant)
        if offset != offsets[-1]:
            starts.append(instant)
            offsets.append(offset)
    read_last = (start + offset - 1 for start, offset in zip(starts[1:], offsets, strict=False))
    return Timeline(tuple(starts), tuple(offsets), tuple(accumulate([DAWN_S, *read_last], max)), reach)


def _offset(info: ZoneInfo, instant: int) -> int:
    offset = datetime.fromtimestamp(instant, info).utcoffset()
    assert offset is not None
    return offset.days * 86_400 + offset.seconds


def _listed_changes(data: bytes) -> tuple[list[int], bool]:
    """The instants listed in a TZif file, and whether a yearly rule goes on after them (RFC 9636)."""
    header = struct.Struct(">4s c 15x 6L")
    _, _, utc_count, wall_count, leaps, times, types, chars = header.unpack_from(data)
    first_block = header.size + times * 5 + types * 6 + chars + leaps * 8 + wall_count + utc_count
    magic, version, _, _, _, times, _, _ = header.unpack_from(data, first_block)
    if magic != b"TZif" or version < b"2":
        raise InvariantBroken("tzdata holds a zone file that is no TZif of version 2 or later")
    instants = struct.unpack_from(f">{times}q", data, first_block + header.size)
    footer = data[data.rindex(b"\n", 0, -1) :]
    return [instant for instant in instants if instant > _YEAR_ONE_S], b"," in footer


_YEAR_ONE_S = int(datetime(1, 1, 3, tzinfo=UTC).timestamp())


def _changes_by_rule(info: ZoneInfo, after: int, reach: int) -> list[int]:
    """The changes that the zone's yearly rule makes. No rule has two of them within a week."""
    probes = [*range(after, reach, WEEK_S), reach]
    offsets = [_offset(info, probe) for probe in probes]
    steps = zip(pairwise(probes), pairwise(offsets), strict=True)
    return [_change_between(info, *span) for span, (before, later) in steps if before != later]


def _change_between(info: ZoneInfo, low: int, high: int) -> int:
    """The first second with the offset of `high`."""
    later = _offset(info, high)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(info, middle) == later:
            high = middle
        else:
            low = middle
    return high
