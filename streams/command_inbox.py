"""Commands on their way from the topic to a partition's owner: each once, none left out, a tenant's in offset order.

They come through Faust, which may still hold records from before a seek, and may lose some in a rebalance. So a
record that leaves a gap is not believed at once: what is missing is read again. If the topic then brings the same
record first, the gap is real (a transaction's marker, records that retention took) and the record is the next one.

As long as few wait they are taken as they came. When more do, tenants take turns: see FairBacklog, which also says
where in the topic to read on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from streams.fair_backlog import Batch, FairBacklog
from streams.rejections import RawCommand

FAIR_FROM_RECORDS = 100
FAIR_FROM_BYTES = 64 << 10  # some 400 packed commands, 30 ms
CAPACITY_BYTES = 8 << 20  # some 50,000 packed commands
SHARED_BATCH_BYTES = 64 << 10  # while tenants take turns in several partitions, so that each comes soon
LOOK_S = 0.2  # at the topic's end, between two refills

TenantOf = Callable[[bytes | None], str]


class CommandInbox:
    """A bounded queue of records, filled by Faust and emptied by the owner.

    hold(): read no more of the partition. read_from(offset): read it from there on, also after a hold. Neither blocks.
    tenant_of(value): whose a record is. ahead: of the ledger, for the next owner of a partition whose tenants are not
    all at one offset. later(s, do): have something done in a while.
    """

    def __init__(
        self,
        next_offset: int,
        hold: Callable[[], None],
        read_from: Callable[[int], None],
        tenant_of: TenantOf,
        ahead: Mapping[str, int],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.next_offset = next_offset
        self._hold, self._read_from, self._tenant_of, self._later = hold, read_from, tenant_of, later
        self._records: deque[RawCommand] = deque()
        self._size_bytes = 0
        self._backlog: FairBacklog | None = FairBacklog(next_offset, ahead, CAPACITY_BYTES) if ahead else None
        self._arrived = asyncio.Event()
        self._full = False
        self._trusted = False  # records have come in sequence since the last seek: a gap is real
        self._seeking = True
        self._beyond_gap: int | None = None  # the first record that we did not believe
        self._closed = False

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
        self._steer()

    @property
    def full(self) -> bool:
        """It reads no more until it was emptied."""
        return self._full

    @property
    def is_empty(self) -> bool:
        """There is nothing to take."""
        return not self._arrived.is_set()

    def is_urgent(self) -> bool:
        """Whether somebody waits here who has not sent much: all but a flood of one tenant."""
        return self._backlog is None or self._backlog.is_shared

    async def arrival(self) -> None:
        """Until there is something to take."""
        await self._arrived.wait()

    async def take(self, limit: int, limit_bytes: int) -> Batch:
        """At least one record, at most `limit` and (but for the first) `limit_bytes` of them, oldest first.

        Where tenants take turns these are about as many, and the oldest of each.
        """
        await self._arrived.wait()
        if self._backlog is not None:
            return self._take_fairly(self._backlog, limit, limit_bytes)
        taken = [self._pop()]
        size_bytes = _size(taken[0])
        while self._records and len(taken) < limit:
            size_bytes += _size(self._records[0])
            if size_bytes > limit_bytes:
                break
            taken.append(self._pop())
        if not self._records:
            self._arrived.clear()
        return Batch.of(taken)

    def close(self) -> None:
        """Nobody takes any more, and nothing is taken in."""
        self.next_offset, self._closed = 1 << 62, True
        self._records.clear()
        self._backlog = None
        self._arrived.clear()

    def _is_next(self, offset: int) -> bool:
        """Records from before a seek come in ascending order, so one that is not beyond the gap's was read again."""
        return (
            offset == self.next_offset or self._trusted or (self._beyond_gap is not None and offset <= self._beyond_gap)
        )

    def _accept(self, record: RawCommand) -> None:
        if self._backlog is None:
            self.next_offset = record.offset + 1
            self._records.append(record)
            self._size_bytes += _size(record)
            self._arrived.set()
            if len(self._records) > FAIR_FROM_RECORDS or self._size_bytes > FAIR_FROM_BYTES:
                self._begin_turns()
        elif not self._add(self._backlog, record):
            return
        self._trusted, self._beyond_gap = not self._seeking, None
        self._end_refill()

    def _begin_turns(self) -> None:
        self._backlog = FairBacklog(self._records[0].offset, {}, CAPACITY_BYTES)
        while self._records:
            self._add(self._backlog, self._pop())

    def _add(self, backlog: FairBacklog, record: RawCommand) -> bool:
        tenant = self._tenant_of(record.value)
        if not backlog.has_place(tenant):
            self._full = True
            self._hold()
            return False
        backlog.add(tenant, record)
        self.next_offset = backlog.read_at
        if not backlog.is_empty:
            self._arrived.set()
        return True

    def _end_refill(self) -> bool:
        """Whether reading goes on where it was, after enough was read again."""
        backlog = self._backlog
        if backlog is None or self._seeking or self._closed:
            return False
        is_over = backlog.is_refill_over()
        if not backlog.is_empty:
            self._arrived.set()
        if is_over:
            self._read_on(backlog.read_at)
            self._later(LOOK_S, partial(self._looked, backlog))
        return is_over

    def _take_fairly(self, backlog: FairBacklog, limit: int, limit_bytes: int) -> Batch:
        batch = backlog.take(limit, min(limit_bytes, SHARED_BATCH_BYTES) if backlog.is_shared else limit_bytes)
        if backlog.is_empty:
            self._arrived.clear()
        if backlog.is_over:
            self._backlog = None
        self._steer()
        return batch

    def _steer(self) -> None:
        """Have the topic read elsewhere if that is better; one seek after the other, lest an older one come last."""
        if self._seeking or self._closed or self._end_refill():
            return
        backlog = self._backlog
        if backlog is not None and backlog.begin_refill():
            self._read_on(backlog.read_at)
        elif self._full and (backlog is None or not backlog.is_full):
            self._read_on(self.next_offset)

    def _read_on(self, offset: int) -> None:
        self.next_offset, self._full = offset, False
        self.doubt()
        self._read_from(offset)

    def _looked(self, backlog: FairBacklog) -> None:
        backlog.looked()
        self._steer()

    def _pop(self) -> RawCommand:
        record = self._records.popleft()
        self._size_bytes -= _size(record)
        return record


def _size(record: RawCommand) -> int:
    return len(record.value or b"")
