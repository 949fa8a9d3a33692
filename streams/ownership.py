"""Which partitions this process owns: Kafka's group says who should, the ledger's epoch says who does.

Partitions that stay with us through a rebalance go on undisturbed: Faust revokes everything before it assigns anew,
so nothing is given up before the new assignment is known. What goes to another process is kept in time here until that
one has taken it over: the group may need seconds to tell it so, and the fence ends us at the right moment.

A partition's state folder has one user at a time, from before it is taken over until after it is closed: `_folders`.

When a partition moves to another shard its owner is refused, closed, and taken over again at once, wherever the map
leads: with the state that it has left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from ledger.commands_ahead import read_ahead
from ledger.fence import take_over
from schemas.commands import tenant_of
from schemas.errors import EpochLost, LedgerMismatch, NotOnThisShard, TryAgain
from schemas.events import Event
from streams.command_inbox import CommandInbox
from streams.event_feed import EventFeed
from streams.metrics import PARTITIONS_OWNED
from streams.partition_owner import PartitionOwner
from streams.rejections import RawCommand
from streams.surroundings import Surroundings

log = logging.getLogger(__name__)

T = TypeVar("T")

TAKE_OVER_AGAIN_S = 0.5
LOOK_AGAIN_S = 0.05
HAND_OVER_WITHIN_S = 5.0  # then it is released: who should have it does not come, or has much to open first
NOWHERE_AT_MOST = 3  # times that a shard has not what the map says it has, and no move explains it


class Ownership:
    """The owners of a process. `around_of` and `feed` are set before the first assignment.

    around_of(partition): what surrounds the owners of the partition's shard.
    is_moving(partition): reads the map of shards anew, and tells whether the partition is on its way between two.
    hold(partition): read the commands topic no more. read_next(partition): read it from where its inbox is. Both are
    set by who reads it.
    """

    around_of: Callable[[int], Surroundings]
    feed: EventFeed

    def __init__(self, name: str, membership_known_s: float) -> None:
        self._membership_known_s = membership_known_s
        self.nonce = f"{name}/{uuid4()}"  # never reused: a restarted process is another owner
        self.hold: Callable[[int], None] = lambda _: None
        self.read_next: Callable[[int], None] = lambda _: None
        self.is_moving: Callable[[int], Awaitable[bool]] = _stays
        self._wanted: set[int] = set()
        self._is_assigned = self._has_left = False
        self._owners: dict[int, PartitionOwner] = {}
        self._leaving: dict[int, PartitionOwner] = {}  # until another process has taken them over
        self._handed_over = asyncio.Event()  # all of them, since we have left
        self._taking: dict[int, asyncio.Task[None]] = {}
        self._folders: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()

    def owners(self) -> list[PartitionOwner]:
        """Who works now, be it that another is to take over."""
        return [*self._owners.values(), *self._leaving.values()]

    def partitions(self) -> list[int]:
        """What is owned now and is to stay, ascending."""
        return sorted(self._owners)

    def is_settled(self) -> bool:
        """Whether the group has told what should be owned, and that is owned: no partition waits for this process."""
        return self._is_assigned and not self._has_left and self._owners.keys() == self._wanted

    def assign(self, partitions: Iterable[int]) -> None:
        """Own exactly these: leave the others, begin to take over the new ones, keep the rest. Not once left."""
        if self._has_left:
            return
        self._wanted, self._is_assigned = set(partitions), True
        for partition in set(self._taking) - self._wanted:
            self._taking.pop(partition).cancel()
        for partition in set(self._owners) - self._wanted:
            self._leave(partition)
        for partition in set(self._leaving) & self._wanted:
            self._let_go(partition, release=True)  # it comes back, and nobody knows what it has not read
        for partition in self._wanted & set(self._owners):
            self._owners[partition].check()
        for partition in self._wanted - set(self._owners) - set(self._taking):
            self._begin_taking(partition)

    async def next_offsets(self, wait_s: float) -> dict[int, int]:
        """The next command of each partition that is owned by then; the others are not ready to be read."""
        if self._taking:
            await asyncio.wait(self._taking.values(), timeout=wait_s)
        return {partition: owner.inbox.next_offset for partition, owner in self._owners.items()}

    def next_offset(self, partition: int) -> int | None:
        """Where a partition is read, if it is owned and is to stay."""
        owner = self._owners.get(partition)
        return None if owner is None else owner.inbox.next_offset

    def receive(self, record: RawCommand) -> None:
        """Hand a record of the commands topic to its owner; dropped when there is none, to be read again later."""
        owner = self._owners.get(record.partition)
        if owner is not None:
            owner.inbox.offer(record)

    def doubt(self) -> None:
        """A rebalance has begun: records on their way may be lost. Any thread may call this."""
        for owner in self.owners():
            owner.inbox.doubt()

    def sought(self, partitions: Iterable[int]) -> None:
        """The commands topic is read from where these partitions' inboxes are."""
        for partition in partitions:
            if owner := self._owners.get(partition):
                owner.inbox.sought()

    def read_again(self, partition: int) -> None:
        """Read the commands that an inbox waits for once more: they do not come."""
        if owner := self._owners.get(partition):
            owner.inbox.doubt()
            self.read_next(partition)

    def fold(self, partition: int, events: list[Event], next_offset: int) -> None:
        """Hand events of the feed to their owner."""
        owner = self._owners.get(partition) or self._leaving.get(partition)
        if owner is not None:
            owner.fold(events, next_offset)

    def events_gone(self, partition: int) -> None:
        """The feed lost its place: start over from the ledger, by taking the partition over anew without its state."""
        log.warning("partition %d: its run events are gone from the topic, rebuilding from the ledger", partition)
        if partition in self._owners or partition in self._leaving:
            self._let_go(partition, release=True, forget=True)
            self.assign(self._wanted)

    def leave(self) -> None:
        """Take over nothing any more, and apply no more commands. What is owned waits for its next owner."""
        self.assign(())
        self._has_left = True
        if not self._leaving:
            self._handed_over.set()

    async def hand_over(self, nobody_there: Coroutine[Any, Any, None]) -> None:
        """After `leave`: wait for the next owners, until nobody is there who could become one; then close."""
        waits = [asyncio.create_task(nobody_there), asyncio.create_task(self._handed_over.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await self.close()

    async def close(self) -> None:
        """Let go of everything, for good, releasing it in the ledger, so that the next owner need not wait."""
        self.leave()
        for partition in list(self._leaving):
            self._let_go(partition, release=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin_taking(self, partition: int) -> None:
        self._taking[partition] = self._begin(self._take_over(partition), f"take over {partition}")

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take_over(self, partition: int) -> None:
        """Until it works or the partition is assigned elsewhere, which cancels this."""
        folder = self._folders[partition]
        await folder.acquire()
        try:
            owner, offset = await self._open_wherever(partition)
        except BaseException as error:
            folder.release()
            if isinstance(error, EpochLost):
                self._on_lost_at_once(partition)
                return
            if isinstance(error, Exception):
                log.exception("partition %d cannot be taken over", partition)
                self._taking.pop(partition, None)
                self.around_of(partition).crash(error)
                return
            raise
        if self._taking.get(partition) is not asyncio.current_task():
            # Cancelled as it succeeded: a cancellation that comes together with what it would end may be swallowed.
            await self._close(partition, owner, release=True, forget=False)
            return
        del self._taking[partition]
        self._owners[partition] = owner
        PARTITIONS_OWNED.set(len(self._owners))
        self.feed.assign(partition, offset)
        owner.start()
        owner.wake()
        log.info("partition %d: owned under epoch %d", partition, owner.fence.epoch)
        self.read_next(partition)

    async def _open_wherever(self, partition: int) -> tuple[PartitionOwner, int]:
        """On the shard that has it, once one has: while it moves none does for a moment. Raises LedgerMismatch."""
        nowhere = 0
        while True:
            around = self.around_of(partition)
            try:
                async with around.opening_turns:
                    return await self._open(partition, around)
            except (LedgerMismatch, NotOnThisShard):
                is_moving = await self._persist(partition, around, lambda: self.is_moving(partition))
                nowhere = 0 if is_moving or self.around_of(partition) is not around else nowhere + 1
                if nowhere >= NOWHERE_AT_MOST:
                    raise
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _open(self, partition: int, around: Surroundings) -> tuple[PartitionOwner, int]:
        await self._persist(partition, around, around.begin)
        takeover = await self._persist(partition, around, lambda: take_over(around.pool, partition, self.nonce))
        inbox = CommandInbox(
            takeover.consumed_offset,
            hold=lambda: self.hold(partition),
            read_from=lambda _: self.read_next(partition),
            tenant_of=partial(tenant_of, around.codec),
            ahead=await self._persist(partition, around, lambda: read_ahead(around.pool, partition)),
            later=asyncio.get_running_loop().call_later,
        )
        owner = PartitionOwner(takeover, around, inbox, self._on_lost)
        try:
            return owner, await self._persist(partition, around, owner.open)
        except BaseException:
            with suppress(TryAgain):
                await owner.close(release=True)
            raise

    def _on_lost(self, owner: PartitionOwner) -> None:
        """Its memory is dropped. Whoever took it over may be in the right: a process that was frozen does not know yet
        that the group has gone on without it. So it is taken back only if it is still ours when we would know."""
        partition = owner.fence.partition
        if self._leaving.get(partition) is owner:
            self._let_go(partition, release=False)
        elif self._owners.get(partition) is owner:
            self._let_go(partition, release=False)
            if owner.has_moved and partition in self._wanted:
                self._begin_taking(partition)
            else:
                self._take_back_later(partition)

    def _on_lost_at_once(self, partition: int) -> None:
        """Another took it over while it was being opened here."""
        if self._taking.get(partition) is asyncio.current_task():
            log.warning("partition %d was taken over by another before it was open", partition)
            del self._taking[partition]
            self._take_back_later(partition)

    def _take_back_later(self, partition: int) -> None:
        asyncio.get_running_loop().call_later(self._membership_known_s, self._take_back, partition)

    def _take_back(self, partition: int) -> None:
        if partition in self._wanted:
            self.assign(self._wanted)

    def _leave(self, partition: int) -> None:
        owner = self._leaving[partition] = self._owners.pop(partition)
        PARTITIONS_OWNED.set(len(self._owners))
        owner.leave()
        asyncio.get_running_loop().call_later(HAND_OVER_WITHIN_S, self._release_left, partition, owner)

    def _release_left(self, partition: int, owner: PartitionOwner) -> None:
        if self._leaving.get(partition) is owner:
            log.warning("partition %d: nobody has taken it over within %g s", partition, HAND_OVER_WITHIN_S)
            self._let_go(partition, release=True)

    def _let_go(self, partition: int, *, release: bool, forget: bool = False) -> None:
        owner = self._owners.pop(partition, None) or self._leaving.pop(partition)
        PARTITIONS_OWNED.set(len(self._owners))
        self.feed.unassign(partition)
        self._begin(self._close(partition, owner, release, forget), f"close {partition}")
        if self._has_left and not self._leaving:
            self._handed_over.set()

    async def _close(self, partition: int, owner: PartitionOwner, release: bool, forget: bool) -> None:
        try:
            await owner.close(release=release, forget=forget)
        except TryAgain as error:
            log.warning("partition %d could not be released: %s", partition, error)
        except Exception:
            log.exception("partition %d was not closed cleanly", partition)
        finally:
            self._folders[partition].release()

    async def _persist(self, partition: int, around: Surroundings, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat what the ledger or the broker is away for. Raises NotOnThisShard once the map leads elsewhere."""
        while True:
            try:
                return await work()
            except TryAgain as error:
                log.warning("partition %d cannot be taken over yet: %s", partition, error)
                await asyncio.sleep(TAKE_OVER_AGAIN_S)
                if self.around_of(partition) is not around:
                    raise NotOnThisShard([partition]) from error


async def _stays(_: int) -> bool:
    return False
