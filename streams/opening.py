"""How an owner's memory becomes that of its epoch: as it was, with what others did meanwhile, or from the ledger.

What the timing state on disk has missed is in the events after its position: what others did who owned the partition
since, and what its own process committed and did not live to fold. Every fold is guarded by versions; but an owner must
know all jobs of its partition before it works, or what it says of them (decided through) is wrong. So it is gone on
from when

* the ledger knows its writer and everyone since (`ledger/partitions.py: is_told_since`): no backup was restored, and
  nobody wrote without events;
* Kafka has all events of the epochs before, which have ended: they are waited for while the outbox has nothing old;
* the topic still has them all, reading them costs less than to read the partition, and Kafka goes on to answer.

Else the ledger is read. Nothing is waited for twice: what is old in the outbox is so for all openings of the shard.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ledger.connection import session
from ledger.fence import Fence
from ledger.outbox import last_unpublished, oldest_unpublished
from ledger.partitions import is_told_since
from ledger.zone_rules import has_other_rules
from schemas.errors import KafkaUnavailable
from schemas.events import Event
from schemas.zones import TZDATA_VERSION
from streams import kept_states
from streams.partition_memory import PartitionMemory
from streams.rebuild import rebuild
from streams.surroundings import Surroundings
from streams.timers import Position
from streams.zone_moves import Begin, follow_zone_rules

log = logging.getLogger(__name__)

OLD_S = 3.0  # of a row in the outbox: the relay takes milliseconds, unless it or Kafka is away
PUBLISHED_AGAIN_S = 0.02
PUBLISHED_LOOKS = 150  # in no less than that time, whatever the clock does
MISSED_AT_LEAST = 20_000  # events, in a sixth of a second
EVENTS_A_RECORD = 20  # some; it has up to a thousand


class Opened(NamedTuple):
    """offset: of run-events, to go on folding from. unstamped: see streams/zone_moves.py: follow_zone_rules."""

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
        if position is not None and not await self._is_told_since(position):
            position = None  # of no use
        unstamped = list[UUID]()
        if position is None or not await self._has_our_rules(position):
            self._memory.state.set_tzdata_version(None)  # first: only some of them are, while they are moved
            unstamped = await self._follow_zone_rules()  # the events of what it moves are among what is read now
        offset = await self._take_in_missed(position)
        self._memory.fold([], Position(self._fence.epoch, offset))
        self._memory.state.set_owner(self._fence.owner)
        kept_states.note(self._folder, self._fence.epoch)
        return Opened(offset, unstamped)

    async def _follow_zone_rules(self) -> list[UUID]:
        return await follow_zone_rules(self._around.pool, self._fence.partition, self._begin)

    async def _is_told_since(self, position: Position) -> bool:
        if (owner := self._memory.state.owner()) is None:  # an older build wrote the state
            return position.epoch == self._fence.epoch - 1
        async with session(self._around.pool) as conn:
            return await is_told_since(conn, self._fence, position.epoch, owner)

    async def _has_our_rules(self, position: Position) -> bool:
        """Whether it is known of all cursors. What the state says of it others may have changed, unless none could."""
        if self._memory.state.tzdata_version() != TZDATA_VERSION:
            return False
        if position.epoch == self._fence.epoch - 1:
            return True
        async with session(self._around.pool) as conn:
            return not await has_other_rules(conn)

    async def _take_in_missed(self, position: Position | None) -> int:
        """Bring the state up to date, or rebuild it; returns the offset to go on from. position: of a state of use."""
        is_published = position is not None and await self._are_published()
        try:
            # Before the ledger is read: whatever happens meanwhile is then folded on top, guarded by its versions.
            end = await self._around.end_offset(self._fence.partition)
        except KafkaUnavailable as error:
            if position is None:
                raise  # it is not known where the events go on
            log.warning("partition %d: %s, the ledger is read", self._fence.partition, error)
            return await self._rebuild(position.offset)  # what has happened since comes once more
        reached = await self._bring_up_to_date(position, end) if position is not None and is_published else None
        return await self._rebuild(end) if reached is None else reached

    async def _are_published(self) -> bool:
        """Whether Kafka has all events of the epochs before. None of their transactions is open any more.

        Waits for what came a moment ago. What is old already would be waited for in vain: then the relay or Kafka is
        away, or behind, which other openings of the shard see by the same row, until it is published.
        """
        async with session(self._around.pool) as conn:
            last_id = await last_unpublished(conn)
            for _ in range(PUBLISHED_LOOKS):
                oldest = await oldest_unpublished(conn)
                if last_id is None or oldest is None or oldest.id > last_id:
                    return True
                if oldest.age_s > OLD_S:
                    break
                await self._pause()
        log.warning("partition %d: events wait for Kafka, the ledger is read", self._fence.partition)
        return False

    async def _pause(self) -> None:
        await asyncio.sleep(PUBLISHED_AGAIN_S)

    async def _bring_up_to_date(self, position: Position, end: int) -> int | None:
        """Fold what happened since; None when it cannot be had. Until the end of it the state stays its writer's."""
        # An event costs what a key costs to rebuild: if there turn out to be more, the half was in vain, but no more.
        limit = max(MISSED_AT_LEAST, self._memory.state.keys())
        missed = end - position.offset
        if missed == 0:
            return end
        if self._around.missed_events is None or not 0 < missed <= limit // EVENTS_A_RECORD:
            return None

        def fold(events: list[Event], next_offset: int) -> None:
            self._memory.fold(events, Position(position.epoch, next_offset))

        reached = await self._around.missed_events(self._fence.partition, position.offset, end, limit, fold)
        if reached is not None:
            told = self._fence.partition, position.epoch, missed
            log.info("partition %d: the state of epoch %d was brought up to date by %d records of events", *told)
        return reached

    async def _rebuild(self, offset: int) -> int:
        """Read the ledger, which tells all that was before the offset, where to go on."""
        kept_states.forget(self._folder)
        self._memory.clear()
        await rebuild(self._memory, self._around.pool, self._fence.partition)
        return offset
