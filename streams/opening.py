"""How an owner's memory becomes that of its epoch: as it was, with what others did meanwhile, or from the ledger.

The timing state on disk is as good as new when the epoch before this one wrote it: nobody else owned the partition
since, and what it missed is in the events after its position. When others did, what they did is in those events too,
and every fold is guarded by versions; but an owner must know all jobs of its partition before it works, or what it says
of them (decided through) is wrong. So it is gone on from when

* the ledger knows its writer and everyone since (`ledger/partitions.py: is_told_since`): no backup was restored, and
  nobody wrote without events;
* Kafka has all events of the epochs before, which have ended: the outbox is waited for, but not for long;
* the topic still has them all, and reading them costs less than to read the partition.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ledger.connection import session
from ledger.fence import Fence
from ledger.outbox import is_published, last_unpublished
from ledger.partitions import is_told_since
from ledger.zone_rules import has_other_rules
from schemas.events import Event
from schemas.zones import TZDATA_VERSION
from streams import kept_states
from streams.partition_memory import PartitionMemory
from streams.rebuild import rebuild
from streams.surroundings import Surroundings
from streams.timers import Position
from streams.zone_moves import Begin, follow_zone_rules

log = logging.getLogger(__name__)

PUBLISHED_WAIT_S = 3.0  # the relay takes milliseconds, unless it or Kafka is away
PUBLISHED_AGAIN_S = 0.02
MISSED_AT_LEAST = 1_000  # records; each has up to a thousand events, most have some
KEYS_A_RECORD = 50  # to rebuild so many costs what it costs to fold a record


class Opened(NamedTuple):
    """offset: of run-events, to go on folding from. unstamped: see streams/zone_moves.py: Followed."""

    offset: int
    unstamped: list[UUID]


class Opening:
    """Of one owner, once. begin: opens a transaction under its fence. folder: of the memory."""

    def __init__(self, memory: PartitionMemory, folder: Path, fence: Fence, around: Surroundings, begin: Begin) -> None:
        self._memory, self._folder, self._fence, self._around, self._begin = memory, folder, fence, around, begin

    async def open(self) -> Opened:
        """Make the memory that of this epoch. May be repeated when it raises TryAgain.

        Before that the jobs are made those of our tzdata, unless it is known that all of them are: then no job is
        looked at.
        """
        position = self._memory.state.position()
        is_last = position is not None and position.epoch == self._fence.epoch - 1
        is_told = position is not None and not is_last and await self._is_told_since(position)
        moved, unstamped = list[Event](), list[UUID]()
        if not await self._has_our_rules(is_last=is_last, is_told=is_told):
            self._memory.state.set_tzdata_version(None)  # first: only some of them are, while they are moved
            moved, unstamped = await follow_zone_rules(self._around.pool, self._fence.partition, self._begin)
        offset = position.offset if position is not None and is_last else None
        if position is not None and is_told:
            offset, moved = await self._bring_up_to_date(position), []  # what was moved is among the events
        if offset is None:
            offset, moved = await self._rebuild(), []
        self._memory.fold(moved, Position(self._fence.epoch, offset))
        self._memory.state.set_owner(self._fence.owner)
        kept_states.note(self._folder, self._fence.epoch)
        return Opened(offset, unstamped)

    async def _is_told_since(self, position: Position) -> bool:
        owner = self._memory.state.owner()
        if owner is None:
            return False
        async with session(self._around.pool) as conn:
            return await is_told_since(conn, self._fence, position.epoch, owner)

    async def _has_our_rules(self, *, is_last: bool, is_told: bool) -> bool:
        """Whether it is known of all cursors. What the state says of it others may have changed, unless none could."""
        if self._memory.state.tzdata_version() != TZDATA_VERSION:
            return False
        if is_told:
            async with session(self._around.pool) as conn:
                return not await has_other_rules(conn)
        return is_last

    async def _bring_up_to_date(self, position: Position) -> int | None:
        """Fold what happened since; None when it cannot be had. Until the end of it the state stays its writer's."""
        if (read_missed := self._around.missed_events) is None or not await self._are_published():
            return None

        def fold(events: list[Event], next_offset: int) -> None:
            self._memory.fold(events, Position(position.epoch, next_offset))

        limit = max(MISSED_AT_LEAST, self._memory.state.keys() // KEYS_A_RECORD)
        offset = await read_missed(self._fence.partition, position.offset, limit, fold)
        if offset is not None:
            told = self._fence.partition, position.epoch, offset - position.offset
            log.info("partition %d: the state of epoch %d was brought up to date by %d records of events", *told)
        return offset

    async def _are_published(self) -> bool:
        """Whether Kafka has all events of the epochs before. None of their transactions is open any more."""
        async with session(self._around.pool) as conn:
            last_id, began = await last_unpublished(conn), time.monotonic()
            while last_id is not None and not await is_published(conn, last_id):
                if time.monotonic() - began > PUBLISHED_WAIT_S:
                    log.warning("partition %d: events wait for Kafka, the ledger is read", self._fence.partition)
                    return False
                await asyncio.sleep(PUBLISHED_AGAIN_S)
        return True

    async def _rebuild(self) -> int:
        kept_states.forget(self._folder)
        self._memory.clear()
        # The end first: whatever happens while the ledger is read is then folded on top, guarded by its versions.
        offset = await self._around.end_offset(self._fence.partition)
        await rebuild(self._memory, self._around.pool, self._fence.partition)
        return offset
