"""Who moves partitions: an operator's command that may be frozen or die at any step, and another that ends its move."""

from __future__ import annotations

from typing import Any

from schemas.errors import EpochLost, TryAgain
from tests.simulation.placements import READ_PLACEMENT, Placement
from tests.simulation.postgres import Pool, Shard
from tests.simulation.scheduler import SECOND_US, Process, Scheduler, sleep
from tests.simulation.statements import moves

DRAINED_WITHIN = 40  # looks at the outbox, before a move gives up


class CalledOff(Exception):
    """The source's events do not leave its outbox: better later."""


class Mover:
    """One command. Whatever stops it, `settle` by another brings the partition to one of the two shards."""

    def __init__(self, name: str, scheduler: Scheduler, shards: list[Shard]) -> None:
        self.process = Process(name)
        self._scheduler = scheduler
        self._pools: list[Any] = [Pool(shard, self.process) for shard in shards]

    async def move(self, partition: int, target: int) -> None:
        """Move it, or leave it where it is."""
        try:
            placement = await self._ask(0, moves.BEGIN_MOVE, partition, target)
        except TryAgain:
            return
        if placement is not None:
            await self._go_on(placement)

    async def settle(self, partition: int) -> None:
        """End a move that somebody else has left: go on with it, or call it off while that is possible."""
        while True:
            try:
                placement = await self._ask(0, READ_PLACEMENT, partition)
            except TryAgain:
                await sleep(SECOND_US // 4)
                continue
            if placement.moving_to is None and placement.left_at is None:
                await self._stay(placement)
                return
            if placement.moving_to is not None and self._scheduler.random.random() < 0.5:
                await self._call_off(placement)
            else:
                await self._go_on(placement)

    async def _go_on(self, placement: Placement) -> None:
        partition, number = placement.partition, placement.number
        source, target = placement.shard, placement.moving_to
        try:
            if target is not None:
                await self._copy(partition, number, source, target)
                await self._ask(0, moves.DECIDE_MOVE, partition, number)
            else:
                assert placement.left_at is not None
                source, target = placement.left_at, placement.shard
        except (EpochLost, CalledOff):
            await self._call_off(placement)
            return
        except TryAgain:
            return  # maybe decided, maybe not: whoever settles it will see
        await self._persist(target, moves.OPEN_TARGET, partition, number)
        await self._persist(source, moves.CLEAR_COPY, partition, number)
        await self._persist(0, moves.END_MOVE, partition, number)

    async def _copy(self, partition: int, number: int, source: int, target: int) -> None:
        await self._ask(target, moves.PREPARE_TARGET, partition, number)
        await self._ask(source, moves.SHUT_SOURCE, partition, number)
        for _ in range(DRAINED_WITHIN):
            if not (await self._ask(source, moves.COUNT_UNTOLD, partition))[0]:
                break
            await sleep(SECOND_US // 20)
        else:
            raise CalledOff
        copy = await self._ask(source, moves.READ_COPY, partition, number)
        await sleep(int(self._scheduler.random.random() ** 2 * SECOND_US / 2))
        await self._ask(target, moves.WRITE_COPY, partition, number, copy)

    async def _call_off(self, placement: Placement) -> None:
        if await self._persist(0, moves.CALL_OFF, placement.partition, placement.number):
            await self._stay(placement)

    async def _stay(self, placement: Placement) -> None:
        """No move is under way up to this number: the partition is open where it is, and nowhere else."""
        partition, number = placement.partition, placement.number
        await self._persist(placement.shard, moves.REOPEN_SOURCE, partition, number)
        for shard in range(len(self._pools)):
            if shard != placement.shard:
                await self._persist(shard, moves.CLEAR_COPY, partition, number)

    async def _ask(self, shard: int, statement: str, *params: Any) -> Any:
        async with self._pools[shard].connection() as conn:
            return await (await conn.execute(statement, params)).fetchone()

    async def _persist(self, shard: int, statement: str, *params: Any) -> Any:
        while True:
            try:
                return await self._ask(shard, statement, *params)
            except TryAgain:
                await sleep(SECOND_US // 4)
