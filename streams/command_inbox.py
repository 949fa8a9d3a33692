"""Commands on their way from the topic to a partition's owner: in offset order, each once, none left out.

They come through Faust, which may still hold records from before a seek, and may lose some in a rebalance. So a
record that leaves a gap is not believed at once: what is missing is read again. If the topic then brings the same
record first, the gap is real (a transaction's marker, records that retention took) and the record is the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from streams.rejections import RawCommand

CAPACITY = 5_000
CAPACITY_BYTES = 16 << 20


class CommandInbox:
    """A bounded queue of records, filled by Faust and emptied by the owner.

    hold(): read no more of the partition. read_from(offset): read it from there on, also after a hold. Neither blocks.
    """

    def __init__(self, next_offset: int, hold: Callable[[], None], read_from: Callable[[int], None]) -> None:
        self.next_offset = next_offset
        self._hold, self._read_from = hold, read_from
        self._records: deque[RawCommand] = deque()
        self._size_bytes = 0
        self._arrived = asyncio.Event()
        self._full = False
        self._trusted = False  # records have come in sequence since the last seek: a gap is real
        self._seeking = True
        self._beyond_gap: int | None = None  # the first record that we did not believe

    def offer(self, record: RawCommand) -> None:
        """Take a record in, unless it was seen before, comes too early, or does not fit; then it is read again."""
        if record.offset < self.next_offset:
            return
        if self._full:
            self._hold()
        elif self._is_next(record.offset):
            self._accept(record)
        elif self._beyond_gap is None:
            self._beyond_gap = record.offset
            self._read_from(self.next_offset)

    def doubt(self) -> None:
        """A rebalance has begun: records may be lost on their way until `sought`."""
        self._seeking, self._trusted, self._beyond_gap = True, False, None

    def sought(self) -> None:
        """The partition is read from the next offset on, by the seek that was asked for."""
        self._seeking = False

    @property
    def full(self) -> bool:
        """It reads no more until it was emptied."""
        return self._full

    async def arrival(self) -> None:
        """Until there is something to take."""
        await self._arrived.wait()

    async def take(self, limit: int, limit_bytes: int) -> list[RawCommand]:
        """At least one record, at most `limit` and (but for the first) `limit_bytes` of them, oldest first."""
        await self._arrived.wait()
        taken = [self._pop()]
        size_bytes = _size(taken[0])
        while self._records and len(taken) < limit:
            size_bytes += _size(self._records[0])
            if size_bytes > limit_bytes:
                break
            taken.append(self._pop())
        if not self._records:
            self._arrived.clear()
        self._make_room()
        return taken

    def close(self) -> None:
        """Nobody takes any more, and nothing is taken in."""
        self.next_offset = 1 << 62
        self._records.clear()

    def _is_next(self, offset: int) -> bool:
        """Records from before a seek come in ascending order, so one that is not beyond the gap's was read again."""
        return (
            offset == self.next_offset or self._trusted or (self._beyond_gap is not None and offset <= self._beyond_gap)
        )

    def _accept(self, record: RawCommand) -> None:
        self.next_offset = record.offset + 1
        self._trusted, self._beyond_gap = not self._seeking, None
        self._records.append(record)
        self._size_bytes += _size(record)
        self._arrived.set()
        if len(self._records) >= CAPACITY or self._size_bytes >= CAPACITY_BYTES:
            self._full = True
            self._hold()

    def _pop(self) -> RawCommand:
        record = self._records.popleft()
        self._size_bytes -= _size(record)
        return record

    def _make_room(self) -> None:
        if self._full and len(self._records) <= CAPACITY // 2 and self._size_bytes <= CAPACITY_BYTES // 2:
            self._full = False
            self.doubt()
            self._read_from(self.next_offset)


def _size(record: RawCommand) -> int:
    return len(record.value or b"")
