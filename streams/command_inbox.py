"""Commands on their way from the topic to a partition's owner, in offset order, each at most once."""

from __future__ import annotations

import asyncio
from collections import deque

from streams.rejections import RawCommand

CAPACITY = 5_000


class CommandInbox:
    """A bounded queue of records. Offsets that were seen already are dropped: a rebalance rereads from the ledger's."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self._records: deque[RawCommand] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, record: RawCommand) -> None:
        """Take a record in; waits while the inbox is full, which holds the topic back."""
        await self._room.wait()
        if record.offset < self.next_offset:
            return
        self.next_offset = record.offset + 1
        self._records.append(record)
        self._arrived.set()
        if len(self._records) >= CAPACITY:
            self._room.clear()

    async def take(self, limit: int) -> list[RawCommand]:
        """At least one record, at most `limit`, oldest first."""
        await self._arrived.wait()
        records = [self._records.popleft() for _ in range(min(limit, len(self._records)))]
        if not self._records:
            self._arrived.clear()
        self._room.set()
        return records

    def close(self) -> None:
        """Nobody takes any more: let whoever waits with a record go."""
        self.next_offset = 1 << 62
        self._records.clear()
        self._room.set()
