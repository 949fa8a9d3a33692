"""The shards: Postgres databases with the same tables, each of which holds some of the partitions.

A job and its runs live on the shard of their partition; here alone it is known which that is. Shard 0 is home: the
database that roles are started with, the only one that knows tokens and which partition is where. Partitions move:
whoever is refused with NotOnThisShard looks at the map again, and all look at it now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

import psycopg

from ledger.connection import Connection, Pool, ledger_pool, session
from ledger.pulse import pulse
from ledger.servers import Servers
from ledger.shard_map import HOME, ShardMap, await_shard_map, prove_shard, read_changes
from schemas.errors import FencepostError, LedgerUnavailable, NotOnThisShard
from schemas.ids import partition_of_job, partition_of_run

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
MOVES_WITHIN_S = 4.0  # for so long a call waits for a partition that is just moving; a heartbeat is given up after 5 s
SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.02, 0.2


class OfRun(Protocol):
    """Anything that is about one run."""

    @property
    def run_id(self) -> UUID: ...


R = TypeVar("R", bound=OfRun)
T = TypeVar("T")


Welcome = Callable[[int, Pool], Awaitable[None]]


class Shards:
    """The sessions with every shard, by its number. placed: the shard of each partition.

    read: adopts the map as it is now. Raises LedgerUnavailable. None: the map never changes.
    """

    def __init__(
        self, pools: Mapping[int, Pool], placed: Sequence[int], read: Callable[[Shards], Awaitable[None]] | None = None
    ) -> None:
        self.pools, self._placed, self._moving = dict(pools), placed, frozenset[int]()
        self._read = read
        self._turn = asyncio.Lock()
        self._asked = self._answered = 0
        self._welcomes: list[Welcome] = []

    @classmethod
    def alone(cls, pool: Pool, partitions: int) -> Shards:
        """A ledger that is all in one database."""
        return cls({HOME: pool}, [HOME] * partitions)

    @property
    def home(self) -> Pool:
        return self.pools[HOME]

    @property
    def partitions(self) -> int:
        """How many partitions there are on all shards together."""
        return len(self._placed)

    def in_use(self) -> int:
        """How many shards have partitions."""
        return len(set(self._placed))

    def number_of(self, partition: int) -> int:
        """The shard of a partition. One that does not exist has home's, which refuses it."""
        return self._placed[partition] if 0 <= partition < len(self._placed) else HOME

    def of(self, partition: int) -> Pool:
        return self.pools[self.number_of(partition)]

    def of_run(self, run_id: UUID) -> Pool:
        return self.of(partition_of_run(run_id))

    def of_job(self, job_id: UUID) -> Pool:
        return self.of(self.partition_of_job(job_id))

    def partition_of_job(self, job_id: UUID) -> int:
        return partition_of_job(job_id, len(self._placed))

    def split(self, things: Sequence[R]) -> dict[int, list[R]]:
        """What is about runs, by the shard of the run; of each shard in the order in which it was given."""
        if len(self.pools) == 1:
            return {HOME: list(things)} if things else {}
        parts: dict[int, list[R]] = {}
        for thing in things:
            parts.setdefault(self.number_of(partition_of_run(thing.run_id)), []).append(thing)
        return parts

    def is_moving(self, partition: int) -> bool:
        """Whether it is on its way between shards, as far as is known."""
        return partition in self._moving

    def on_added(self, welcome: Welcome) -> None:
        """Have each shard that is added from now on welcomed, before the map leads to it."""
        self._welcomes.append(welcome)

    async def add(self, shard: int, pool: Pool) -> None:
        """Begin to use a further shard."""
        for welcome in self._welcomes:
            await welcome(shard, pool)
        self.pools = {**self.pools, shard: pool}  # who goes through them now goes on with what there was

    def adopt(self, found: ShardMap) -> None:
        """Go by this map from now on. Its shards are known."""
        self._placed, self._moving = found.placed, found.moving

    async def look_again(self) -> None:
        """Go by the map as it is now, or later. Those who ask while it is being read share the next reading.

        Raises LedgerUnavailable while home is away.
        """
        self._asked += 1
        asked = self._asked
        async with self._turn:
            if self._answered >= asked or self._read is None:
                return
            covered = self._asked
            await self._read(self)
            self._answered = covered

    async def look_for(self, partitions: Iterable[int], tries: int) -> None:
        """A shard has refused these partitions, for the so manieth time: look again, and wait a moment unless the map
        leads elsewhere now."""
        before = {partition: self.number_of(partition) for partition in partitions}
        with suppress(LedgerUnavailable):
            await self.look_again()
        if all(self.number_of(partition) == shard for partition, shard in before.items()):
            await asyncio.sleep(min(SHORTEST_WAIT_S * 2**tries, LONGEST_WAIT_S))

    async def follow(self) -> None:
        """Look at the map now and then until cancelled: for shards that are new, and for who writes nothing."""
        while True:
            await pulse(LOOK_EVERY_S)
            try:
                await self.look_again()
            except FencepostError as error:
                log.warning("the map of shards cannot be followed: %s", error)

    async def ask_each(
        self, ask: Callable[[Connection], Awaitable[T]], *, within_s: float | None = None
    ) -> dict[int, T | LedgerUnavailable]:
        """What each shard answers, all asked at the same time; its error for one that is away, or slower than that."""
        pools = self.pools
        answers = await asyncio.gather(*(_answer(pool, ask, within_s) for pool in pools.values()))
        return dict(zip(pools, answers, strict=True))

    async def ask_all(self, ask: Callable[[Connection], Awaitable[T]]) -> list[T]:
        """The same, from all of them. Raises LedgerUnavailable when one is away."""
        return [told(number, answer) for number, answer in (await self.ask_each(ask)).items()]

    async def tell_all(self, write: Callable[[Connection], Awaitable[object]]) -> None:
        """Write something to every shard, to home first. Raises LedgerUnavailable when one is away: the others have it
        then, unless home is the one, and the same again completes it.

        The map is read after home has it: a shard that was added before is told too, and one that is added later takes
        it from home.
        """
        async with session(self.home) as conn:
            await write(conn)
        await self.look_again()
        others = {number: pool for number, pool in self.pools.items() if number != HOME}
        answers = await asyncio.gather(*(_answer(pool, write) for pool in others.values()))
        for number, answer in zip(others, answers, strict=True):
            told(number, answer)


async def write_here(
    asks: Sequence[R], write: Callable[[Sequence[R]], Awaitable[Mapping[UUID, T]]]
) -> Mapping[UUID, T | NotOnThisShard]:
    """Write what is about runs of one shard; for the runs that are not on it, or not any more, its refusal.

    write: in one transaction; raises NotOnThisShard.
    """
    refused: dict[UUID, T | NotOnThisShard] = {}
    while True:
        try:
            return {**await write(asks), **refused} if asks else refused
        except NotOnThisShard as refusal:
            gone = [ask for ask in asks if partition_of_run(ask.run_id) in refusal.partitions]
            if not gone:
                raise
            refused |= {ask.run_id: refusal for ask in gone}
            asks = [ask for ask in asks if ask.run_id not in refused]


@asynccontextmanager
async def open_shards(dsn: str, *, size: int = 4, name: str = "fencepost") -> AsyncIterator[Shards]:
    """At most `size` sessions with every shard, as the map says. dsn: home's, which is waited for; others may be away.

    Raises LedgerMismatch when the ledger was never initialised, or an address leads to another database than it should.
    """
    async with AsyncExitStack() as stack:
        home = await stack.enter_async_context(ledger_pool(dsn, size=size, name=name))
        found = await await_shard_map(home)
        await asyncio.gather(*(_prove(found, shard) for shard in found.dsns))

        async def add_new(shards: Shards, found: ShardMap) -> None:
            for shard in found.dsns.keys() - shards.pools.keys():
                prove = partial(prove_shard, shard=shard, partitions=len(found.placed))
                pool = ledger_pool(found.dsns[shard], size=size, name=name, prove=prove)
                await shards.add(shard, await stack.enter_async_context(pool))
            shards.adopt(found)

        async def read(shards: Shards) -> None:
            nonlocal found
            async with session(home) as conn:
                found = await read_changes(conn, found)
            await add_new(shards, found)

        shards = Shards({HOME: home}, found.placed, read)
        await add_new(shards, found)
        following = asyncio.create_task(shards.follow(), name="follow the map of shards")
        try:
            yield shards
        finally:
            following.cancel()
            await asyncio.wait({following})


async def find_shards(dsn: str, *, every_s: float = LOOK_EVERY_S) -> AsyncGenerator[dict[int, str]]:
    """The DSN of every shard by its number, for who needs sessions of its own; then those that are added, without end.

    dsn, and raises: as of `open_shards`.
    """
    async with ledger_pool(dsn, size=1) as home:
        found = await await_shard_map(home)
        await asyncio.gather(*(_prove(found, shard) for shard in found.dsns))
        known = {HOME: dsn, **found.dsns}
        yield known
        while True:
            await pulse(every_s)
            with suppress(LedgerUnavailable):
                async with session(home) as conn:
                    found = await read_changes(conn, found)
                added = {shard: its_dsn for shard, its_dsn in found.dsns.items() if shard not in known}
                if added:
                    await asyncio.gather(*(_prove(found, shard) for shard in added))
                    known |= added
                    yield added


async def _prove(found: ShardMap, shard: int) -> None:
    """Raises LedgerMismatch. One that is away now proves itself with each session that it gives later."""
    try:
        conn = await Servers(found.dsns[shard]).connect()
    except psycopg.OperationalError as error:
        log.warning("shard %d is away: %s", shard, error)
        return
    async with conn:
        await prove_shard(conn, shard, len(found.placed))


async def _answer(
    pool: Pool, ask: Callable[[Connection], Awaitable[T]], within_s: float | None = None
) -> T | LedgerUnavailable:
    try:
        async with asyncio.timeout(within_s), session(pool) as conn:
            return await ask(conn)
    except LedgerUnavailable as error:
        return error
    except TimeoutError:
        return LedgerUnavailable(f"the ledger did not answer within {within_s} s")


def told(number: int, answer: T | LedgerUnavailable) -> T:
    """A shard's answer. Raises LedgerUnavailable, which names the shard, when it is away."""
    if isinstance(answer, LedgerUnavailable):
        raise LedgerUnavailable(f"shard {number} is away: {answer}") from answer
    return answer
