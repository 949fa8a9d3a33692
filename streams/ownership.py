"""Which partitions this process owns: Kafka's group says who should, the ledger's epoch says who does.

Partitions that stay with us through a rebalance go on undisturbed: Faust revokes everything before it assigns anew,
so nothing is given up before the new assignment is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from uuid import uuid4

from ledger.fence import take_over
from schemas.errors import EpochLost, TryAgain
from schemas.events import Event
from streams.event_feed import EventFeed
from streams.metrics import PARTITIONS_OWNED
from streams.partition_owner import PartitionOwner, Surroundings
from streams.rejections import RawCommand

log = logging.getLogger(__name__)

TAKE_OVER_AGAIN_S = 0.5


class Ownership:
    """The owners of a process. `around` and `feed` are set before the first assignment."""

    around: Surroundings
    feed: EventFeed

    def __init__(self, name: str, membership_known_s: float) -> None:
        self._membership_known_s = membership_known_s
        self.nonce = f"{name}/{uuid4()}"  # never reused: a restarted process is another owner
        self.on_owned: Callable[[int, int], None] = lambda *_: None  # (partition, next command's offset)
        self._wanted: set[int] = set()
        self._owners: dict[int, PartitionOwner] = {}
        self._taking: dict[int, asyncio.Task[None]] = {}
        self._closing: dict[int, asyncio.Task[None]] = {}

    def owners(self) -> list[PartitionOwner]:
        """Who works now."""
        return list(self._owners.values())

    def partitions(self) -> list[int]:
        """What is owned now, ascending."""
        return sorted(self._owners)

    def assign(self, partitions: Iterable[int]) -> None:
        """Own exactly these: let go of the others, begin to take over the new ones, keep the rest."""
        self._wanted = set(partitions)
        for partition in set(self._taking) - self._wanted:
            self._taking.pop(partition).cancel()
        for partition in set(self._owners) - self._wanted:
            self._let_go(partition, release=True)
        for partition in self._wanted & set(self._owners):
            self._owners[partition].check()
        for partition in self._wanted - set(self._owners) - set(self._taking):
            self._taking[partition] = asyncio.create_task(self._take_over(partition), name=f"take over {partition}")

    async def next_offsets(self, wait_s: float) -> dict[int, int]:
        """The next command of each partition that is owned by then; the others are not ready to be read."""
        if self._taking:
            await asyncio.wait(self._taking.values(), timeout=wait_s)
        return {partition: owner.inbox.next_offset for partition, owner in self._owners.items()}

    async def receive(self, record: RawCommand) -> None:
        """Hand a record of the commands topic to its owner; dropped when there is none, to be read again later."""
        owner = self._owners.get(record.partition)
        if owner is not None:
            await owner.inbox.put(record)

    def fold(self, partition: int, events: list[Event], next_offset: int) -> None:
        """Hand events of the feed to their owner."""
        owner = self._owners.get(partition)
        if owner is not None:
            owner.fold(events, next_offset)

    def events_gone(self, partition: int) -> None:
        """The feed lost its place: the owner starts over from the ledger, by being taken over anew."""
        log.warning("partition %d: its run events are gone from the topic, rebuilding from the ledger", partition)
        if partition in self._owners:
            self._let_go(partition, release=True)
            self.assign(self._wanted)

    async def close(self) -> None:
        """Let go of everything, releasing it in the ledger, so that the next owner need not wait."""
        self.assign(())
        await asyncio.gather(*self._closing.values(), return_exceptions=True)

    async def _take_over(self, partition: int) -> None:
        """Until it works or the partition is assigned elsewhere."""
        while True:
            try:
                await self._become_owner(partition)
                break
            except (TryAgain, EpochLost) as error:
                log.warning("partition %d cannot be taken over yet: %s", partition, error)
                await asyncio.sleep(TAKE_OVER_AGAIN_S)
            except Exception as error:
                log.exception("partition %d cannot be taken over", partition)
                self.around.crash(error)
                break
        self._taking.pop(partition, None)

    async def _become_owner(self, partition: int) -> None:
        if partition in self._closing:  # its state folder is still open
            await asyncio.wait([self._closing[partition]])
        takeover = await take_over(self.around.pool, partition, self.nonce)
        owner = PartitionOwner(takeover, self.around, self._on_lost)
        try:
            offset = await owner.open()
        except BaseException:
            await owner.close(release=False)
            raise
        self._owners[partition] = owner
        PARTITIONS_OWNED.set(len(self._owners))
        self.feed.assign(partition, offset)
        owner.start()
        self.around.wake_timekeeper()
        log.info("partition %d: owned under epoch %d", partition, takeover.fence.epoch)
        self.on_owned(partition, owner.inbox.next_offset)

    def _on_lost(self, owner: PartitionOwner) -> None:
        """Its memory is dropped. Whoever took it over may be in the right: a process that was frozen does not know yet
        that the group has gone on without it. So it is taken back only if it is still ours when we would know."""
        partition = owner.fence.partition
        if self._owners.get(partition) is owner:
            self._let_go(partition, release=False)
            asyncio.get_running_loop().call_later(self._membership_known_s, self._take_back, partition)

    def _take_back(self, partition: int) -> None:
        if partition in self._wanted:
            self.assign(self._wanted)

    def _let_go(self, partition: int, *, release: bool) -> None:
        owner = self._owners.pop(partition)
        PARTITIONS_OWNED.set(len(self._owners))
        self.feed.unassign(partition)
        self._closing[partition] = asyncio.create_task(self._close(partition, owner, release))

    async def _close(self, partition: int, owner: PartitionOwner, release: bool) -> None:
        try:
            await owner.close(release=release)
        except TryAgain as error:
            log.warning("partition %d could not be released: %s", partition, error)
        finally:
            self._closing.pop(partition, None)
