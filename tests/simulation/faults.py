"""What goes wrong: a few faults of every kind, each for a while; then everything is healed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.scheduler import SECOND_US, Process, sleep

if TYPE_CHECKING:
    from tests.simulation.world import World

FAULTS_S = 10.0
Undo = Callable[[], None]


class Faults:
    """log: what was done when, for the trace. heal() ends all of it. only: nothing but these, and many of them."""

    def __init__(self, world: World, only: Sequence[str] = ()) -> None:
        self._world, self._scheduler, self._random = world, world.scheduler, world.scheduler.random
        self.log: list[tuple[int, str]] = []
        self._undos: dict[int, Undo] = {}
        self._number = 0
        kinds: list[Callable[[], Undo | None]] = [
            *[self._freeze, self._freeze_amid, self._freeze_amid, self._storm, self._skew_clock],
            *[self._kill_streams, self._kill_amid, self._stop_streams],
            *[self._kill_api, self._kill_worker, self._kill_relay],
            *[self._lose_hints, self._lose_hints, self._break_broker, self._slow_broker],
            *[self._crash_shard, self._slow_shard, self._lose_commits, self._lose_packets],
        ]
        if len(world.shards) > 1:
            kinds += [self._move] * 6
        kinds = [getattr(self, f"_{name}") for name in only] or kinds
        for _ in range(10 if only else self._random.randrange(0, 9)):
            self._scheduler.spawn(self._one(self._random.choice(kinds)))

    async def _one(self, kind: Callable[[], Undo | None]) -> None:
        await sleep(int(self._random.random() * FAULTS_S * SECOND_US))
        if kind in (self._freeze_amid, self._kill_amid):
            await self._transaction_opens()
        undo = kind()
        if undo is None:
            return
        self._number += 1
        number = self._number
        self._undos[number] = undo
        await sleep(int(self._random.random() ** 2 * 9 * SECOND_US) + SECOND_US // 5)
        self._end(number)

    async def _transaction_opens(self) -> None:
        """Of an owner, if one does soon."""
        for _ in range(300):
            if any(tx.process and tx.process.name[0] in "sa" for shard in self._world.shards for tx in shard.open):
                return
            await sleep(1_000 + self._random.randrange(1_000))

    def _end(self, number: int) -> None:
        if undo := self._undos.pop(number, None):
            undo()

    def heal(self) -> None:
        self._say("everything is healed")
        for number in list(self._undos):
            self._end(number)

    def _say(self, what: str) -> None:
        self.log.append((self._scheduler.now_us, what))

    def _set(self, thing: Any, name: str, value: Any, healthy: Any = 0) -> Undo:
        self._change(thing, name, value)
        return lambda: self._change(thing, name, healthy)

    def _change(self, thing: Any, name: str, value: Any) -> None:
        setattr(thing, name, value)
        label = getattr(thing, "number", getattr(getattr(thing, "process", None), "name", ""))
        self._say(f"{type(thing).__name__} {label}: {name} = {value}")

    def _freeze(self) -> Undo | None:
        world = self._world
        owners = [each.process for each in world.streams]
        others = [each.process for each in world.workers]
        for group in (world.apis, world.relays, world.movers):
            others += [each.process for each in group]
        processes = [each for each in (*owners, *owners, *others) if each.alive and not each.frozen]
        if not processes:
            return None
        process = self._random.choice(processes)
        self._freeze_one(process)
        return lambda: self._thaw(process)

    def _freeze_amid(self) -> Undo | None:
        """At the worst moment: somebody has a transaction open."""
        return self._amid(0.6)

    def _amid(self, streams: float) -> Undo | None:
        holds = [
            tx.process
            for shard in self._world.shards
            for tx in shard.open
            if tx.process is not None and tx.process.alive and not tx.process.frozen
        ]
        owners = [process for process in holds if process.name.startswith("streams")]
        if not holds:
            return self._freeze()
        process = self._random.choice(owners if owners and self._random.random() < streams else holds)
        self._freeze_one(process)
        return lambda: self._thaw(process)

    def _freeze_one(self, process: Process) -> None:
        self._scheduler.freeze(process)
        for shard in self._world.shards:
            shard.end_stuck(process)
        self._say(f"{process.name} is frozen")

    def _thaw(self, process: Process) -> None:
        self._scheduler.thaw(process)
        self._say(f"{process.name} goes on")

    def _kill(self, process: Process) -> None:
        self._scheduler.kill(process)
        self._say(f"{process.name} is killed")

    def _kill_streams(self) -> Undo:
        world, place = self._world, self._random.randrange(len(self._world.streams))
        self._kill(world.streams[place].process)
        if self._random.random() < 0.3:
            world.stores[place].clear()
        return lambda: self._restart_streams(place)

    def _kill_amid(self) -> Undo:
        """An owner in a transaction, which may be committed: its state does not know of it."""
        amid = {tx.process for shard in self._world.shards for tx in shard.open}
        places = [place for place, streams in enumerate(self._world.streams) if streams.process in amid]
        if not places:
            return self._kill_streams()
        place = self._random.choice(places)
        self._kill(self._world.streams[place].process)
        return lambda: self._restart_streams(place)

    def _restart_streams(self, place: int) -> None:
        process = self._world.streams[place].process
        if process.alive:
            self._kill(process)
        self._world.start_streams(place)
        self._say(f"{self._world.streams[place].nonce} starts")

    def _stop_streams(self) -> Undo:
        place = self._random.randrange(len(self._world.streams))
        streams = self._world.streams[place]
        self._scheduler.spawn(streams.shut_down(), streams.process)
        self._say(f"{streams.nonce} is told to stop")
        return lambda: self._restart_streams(place)

    def _kill_api(self) -> Undo:
        place = self._random.randrange(len(self._world.apis))
        self._kill(self._world.apis[place].process)
        return lambda: self._restart(self._world.start_api, place)

    def _kill_worker(self) -> Undo:
        place = self._random.randrange(len(self._world.workers))
        self._kill(self._world.workers[place].process)
        return lambda: self._restart(self._world.start_worker, place)

    def _kill_relay(self) -> Undo:
        place = self._random.randrange(len(self._world.relays))
        self._kill(self._world.relays[place].process)
        return lambda: self._restart(self._world.start_relay, place)

    def _restart(self, start: Callable[[int], Any], place: int) -> None:
        self._say(f"{start(place).process.name} starts")

    def _storm(self) -> None:
        self._world.group.storm()
        self._say("the group rebalances")

    def _lose_hints(self) -> Undo:
        return self._set(self._world.broker, "hint_loss", self._random.choice([0.3, 0.7, 1.0]))

    def _break_broker(self) -> Undo:
        return self._set(self._world.broker, "down", True, healthy=False)

    def _slow_broker(self) -> Undo:
        return self._set(self._world.broker, "slow", self._random.choice([10, 100]), healthy=1)

    def _crash_shard(self) -> Undo:
        shard = self._random.choice(self._world.shards)
        shard.crash()
        return self._set(shard, "down", True, healthy=False)

    def _slow_shard(self) -> Undo:
        return self._set(self._random.choice(self._world.shards), "slow", self._random.choice([5, 30]), healthy=1)

    def _lose_commits(self) -> Undo:
        return self._set(self._random.choice(self._world.shards), "lost_answers", self._random.choice([0.1, 0.4]))

    def _lose_packets(self) -> Undo:
        return self._set(self._world.network, "lost", self._random.choice([0.1, 0.5]))

    def _skew_clock(self) -> Undo:
        """An API's either way; an owner's estimate of the ledger's clock may be late and never runs ahead."""
        if self._random.random() < 0.5:
            api = self._random.choice(self._world.apis)
            return self._set(api, "clock_error_us", 500_000 - self._random.randrange(1_000_000))
        streams = self._random.choice(self._world.streams)
        return self._set(streams, "clock_error_us", -self._random.randrange(500_000))

    def _move(self) -> Undo | None:
        """To the other shard, and maybe while somebody is stuck in a transaction."""
        world = self._world
        partition = self._random.randrange(len(world.broker.commands))
        target = 1 - world.shards[0].tables["placements"][partition].shard
        undo = self._amid(0.3) if self._random.random() < 0.3 else None
        mover = world.new_mover()
        self._scheduler.spawn(mover.move(partition, target), mover.process)
        self._say(f"{mover.process.name} moves partition {partition} to shard {target}")
        if self._random.random() < 0.5:
            self._scheduler.spawn(self._disturb(mover, partition))
        return undo

    async def _disturb(self, mover: Any, partition: int) -> None:
        """The command is frozen or dies somewhere on its way; somebody else settles it, and then it may wake."""
        await sleep(int(self._random.random() * SECOND_US // 3))
        dies = self._random.random() < 0.4
        if dies:
            self._kill(mover.process)
        else:
            self._scheduler.freeze(mover.process)
            self._say(f"{mover.process.name} is frozen")
        await sleep(int(self._random.random() * 2 * SECOND_US))
        self._world.settle(partition)
        if not dies:
            await sleep(int(self._random.random() * 4 * SECOND_US))
            self._thaw(mover.process)
