"""A streams process: which partitions it should own, and which it does (`streams/ownership.py`); and Kafka's group."""

from __future__ import annotations

from ledger.fence import take_over
from schemas.errors import EpochLost, LedgerMismatch, TryAgain
from streams.ownership import HAND_OVER_WITHIN_S
from tests.simulation.kafka import Broker
from tests.simulation.owner import Owner
from tests.simulation.placements import Placements
from tests.simulation.postgres import Pool, Shard
from tests.simulation.scheduler import SECOND_US, Process, Scheduler, Task, sleep
from tests.simulation.timing_memory import Store

SESSION_TIMEOUT_US = 3 * SECOND_US
BEAT_US = SECOND_US // 2
TAKE_OVER_AGAIN_US = SECOND_US // 2


class StreamsProcess:
    """stores: the timing states on its machine's disk, which outlive it."""

    def __init__(
        self,
        name: str,
        group: Group,
        broker: Broker,
        shards: list[Shard],
        stores: dict[int, Store],
        without: str | None,
    ) -> None:
        self.process = Process(name)
        self.scheduler: Scheduler = broker.scheduler
        self.broker, self.group, self.stores, self.without = broker, group, stores, without
        self.partitions = len(broker.commands)
        self.clock_error_us = -int(self.scheduler.random.random() * 2_000)
        self.nonce = name
        self._pools = [Pool(shard, self.process) for shard in shards]
        self.placements = Placements(self._pools)
        self._wanted: set[int] = set()
        self._generation = 0
        self._has_left = False
        self._owners: dict[int, Owner] = {}
        self._leaving: dict[int, Owner] = {}
        self._taking: dict[int, Task] = {}
        self._closing: set[int] = set()
        self.scheduler.spawn(self._beat(), self.process)

    async def _beat(self) -> None:
        while not self._has_left:
            self.group.beat(self)
            await sleep(BEAT_US)

    async def assigned(self, generation: int, partitions: set[int]) -> None:
        """The group has spoken, to some sooner than to others; an older word that comes late is none."""
        await sleep(int(self.scheduler.random.random() ** 4 * SECOND_US))
        if generation > self._generation:
            self._generation = generation
            for partition in sorted(partitions & set(self._owners)):
                self._owners[partition].rebalance()
            self._assign(partitions)

    def _assign(self, partitions: set[int]) -> None:
        if self._has_left:
            return
        self._wanted = partitions
        for partition in sorted(set(self._taking) - partitions):
            self.scheduler.cancel(self._taking.pop(partition))
        for partition in sorted(set(self._owners) - partitions):
            self._leave(partition)
        for partition in sorted(set(self._leaving) & partitions):
            self._let_go(partition, release=True)
        for partition in sorted(partitions - set(self._owners) - set(self._taking)):
            self._taking[partition] = self.scheduler.spawn(self._take_over(partition), self.process)

    async def shut_down(self) -> None:
        """SIGTERM: the group is left, then others take over, or everything is released."""
        self._assign(set())
        self._has_left = True
        await sleep(int(self.scheduler.random.random() * SECOND_US))
        self.group.leave(self)

    async def _take_over(self, partition: int) -> None:
        while partition in self._closing:
            await sleep(SECOND_US // 50)
        owner = await self._opened(partition)
        if owner is None:
            del self._taking[partition]
            self._take_back_later(partition)
            return
        del self._taking[partition]
        self._owners[partition] = owner
        owner.start()

    async def _opened(self, partition: int) -> Owner | None:
        """None when another took it over before it was open. A partition that is being moved is waited for."""
        takeover = None
        while True:
            try:
                if takeover is None:
                    pool = self._pools[await self.placements.look(partition)]
                    takeover = await take_over(pool, partition, self.nonce)  # type: ignore[arg-type]
                store = self.stores.setdefault(partition, Store())
                owner = Owner(takeover, self, pool, store)
                await owner.open()
                return owner
            except (TryAgain, LedgerMismatch):
                await sleep(TAKE_OVER_AGAIN_US)
            except EpochLost:
                return None

    def on_lost(self, owner: Owner) -> None:
        """Its memory is dropped, unless another was to take over; it is taken back only if it is still ours when we
        would know."""
        partition = owner.fence.partition
        if self._leaving.get(partition) is owner:
            del self._leaving[partition]
            return
        self.stores[partition] = Store()
        if self._owners.get(partition) is owner:
            del self._owners[partition]
            self._take_back_later(partition)

    def _take_back_later(self, partition: int) -> None:
        self.scheduler.spawn(self._take_back(partition), self.process)

    async def _take_back(self, partition: int) -> None:
        await sleep(SESSION_TIMEOUT_US)
        if partition in self._wanted:
            self._assign(self._wanted)

    def _leave(self, partition: int) -> None:
        owner = self._leaving[partition] = self._owners.pop(partition)
        owner.leave()
        self.scheduler.spawn(self._release_left(partition, owner), self.process)

    async def _release_left(self, partition: int, owner: Owner) -> None:
        await sleep(int(HAND_OVER_WITHIN_S * SECOND_US))
        if self._leaving.get(partition) is owner:
            self._let_go(partition, release=True)

    def _let_go(self, partition: int, *, release: bool) -> None:
        owner = self._owners.pop(partition, None) or self._leaving.pop(partition)
        self._closing.add(partition)
        self.scheduler.spawn(self._close(partition, owner, release), self.process)

    async def _close(self, partition: int, owner: Owner, release: bool) -> None:
        try:
            await owner.close(release=release)
        except (TryAgain, EpochLost):
            pass
        finally:
            self._closing.discard(partition)


class Group:
    """Kafka's group: who has given a sign of life in time shares all partitions, anew with each change."""

    def __init__(self, scheduler: Scheduler, partitions: int) -> None:
        self._scheduler, self._partitions = scheduler, partitions
        self._beats: dict[StreamsProcess, int] = {}
        self._members: list[StreamsProcess] = []
        self._generation = 0
        self._turn = 0
        scheduler.spawn(self._watch())

    def beat(self, member: StreamsProcess) -> None:
        self._beats[member] = self._scheduler.now_us

    def leave(self, member: StreamsProcess) -> None:
        self._beats.pop(member, None)

    def storm(self) -> None:
        """Rebalance, though nobody came or went."""
        self._turn += 1
        self._members = []

    async def _watch(self) -> None:
        while True:
            await sleep(SECOND_US // 4)
            since_us = self._scheduler.now_us - SESSION_TIMEOUT_US
            self._beats = {member: at_us for member, at_us in self._beats.items() if at_us >= since_us}
            if list(self._beats) != self._members:
                self._members = list(self._beats)
                self._share_out()

    def _share_out(self) -> None:
        self._generation += 1
        shares: list[set[int]] = [set() for _ in self._members]
        for partition in range(self._partitions):
            if shares:
                shares[(partition + self._turn) % len(shares)].add(partition)
        for member, share in zip(self._members, shares, strict=True):
            self._scheduler.spawn(member.assigned(self._generation, share), member.process)
