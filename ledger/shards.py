"""The shards: Postgres databases with the same tables, each of which holds some of the partitions.

A job and its runs live on the shard of their partition; here alone it is known which that is. Shard 0 is home: the
database that roles are started with, the only one that knows tokens and which partition is where.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

import psycopg

from ledger.connection import Connection, Pool, ledger_pool, session
from ledger.servers import Servers
from ledger.shard_map import HOME, ShardMap, await_shard_map, prove_shard
from schemas.errors import LedgerUnavailable
from schemas.ids import partition_of_job, partition_of_run

log = logging.getLogger(__name__)


class OfRun(Protocol):
    """Anything that is about one run."""

    @property
    def run_id(self) -> UUID: ...


R = TypeVar("R", bound=OfRun)
T = TypeVar("T")


class Shards:
    """The sessions with every shard, by its number. placed: the shard of each partition."""

    def __init__(self, pools: Mapping[int, Pool], placed: Sequence[int]) -> None:
        self.pools, self._placed = pools, placed

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

    async def ask_each(
        self, ask: Callable[[Connection], Awaitable[T]], *, within_s: float | None = None
    ) -> dict[int, T | LedgerUnavailable]:
        """What each shard answers, all asked at the same time; its error for one that is away, or slower than that."""
        answers = await asyncio.gather(*(_answer(pool, ask, within_s) for pool in self.pools.values()))
        return dict(zip(self.pools, answers, strict=True))

    async def ask_all(self, ask: Callable[[Connection], Awaitable[T]]) -> list[T]:
        """The same, from all of them. Raises LedgerUnavailable when one is away."""
        return [told(number, answer) for number, answer in (await self.ask_each(ask)).items()]

    async def tell_all(self, write: Callable[[Connection], Awaitable[object]]) -> None:
        """Write something to every shard, to home first. Raises LedgerUnavailable when one is away: the others have it
        then, unless home is the one, and the same again completes it."""
        async with session(self.home) as conn:
            await write(conn)
        others = {number: pool for number, pool in self.pools.items() if number != HOME}
        answers = await asyncio.gather(*(_answer(pool, write) for pool in others.values()))
        for number, answer in zip(others, answers, strict=True):
            told(number, answer)


@asynccontextmanager
async def open_shards(dsn: str, *, size: int = 4, name: str = "fencepost") -> AsyncIterator[Shards]:
    """At most `size` sessions with every shard, as the map says. dsn: home's, which is waited for; others may be away.

    Raises LedgerMismatch when the ledger was never initialised, or an address leads to another database than it should.
    """
    async with AsyncExitStack() as stack:
        home = await stack.enter_async_context(ledger_pool(dsn, size=size, name=name))
        found = await await_shard_map(home)
        await asyncio.gather(*(_prove(found, shard) for shard in found.dsns))
        pools = {HOME: home}
        for shard, its_dsn in found.dsns.items():
            prove = partial(prove_shard, shard=shard, partitions=len(found.placed))
            pools[shard] = await stack.enter_async_context(ledger_pool(its_dsn, size=size, name=name, prove=prove))
        yield Shards(pools, found.placed)


async def find_shards(dsn: str) -> dict[int, str]:
    """The DSN of every shard by its number, for who needs sessions of its own. dsn, and raises: as of `open_shards`."""
    async with ledger_pool(dsn, size=1) as home:
        found = await await_shard_map(home)
    await asyncio.gather(*(_prove(found, shard) for shard in found.dsns))
    return {HOME: dsn, **found.dsns}


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
