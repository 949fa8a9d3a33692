"""Moving a partition to another shard while traffic runs; see ARCHITECTURE, Moving a partition.

The source has the partition until its row of `partitions` is gone there, the target as soon as that row is there; in
between, for a moment, nobody has it and the fence refuses everybody. Whoever moves it may die at any step:
the next one takes the move up, which keeps the former out, and finishes it or takes it back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import UUID, uuid4

import psycopg
from psycopg.errors import LockNotAvailable

from ledger.confirmed_connection import ConfirmedConnection
from ledger.connection import Connection, Pool, session
from ledger.moves import Move, State, begin_move, in_charge, read_move, set_moved, set_state, take_up_move, taken_up
from ledger.outbox import outbox_lag
from ledger.partition_copy import FEW_CHANGES, PartitionCopy, is_here, remove_rows, transaction
from ledger.shards import Shards
from schemas.errors import FencepostError, LedgerUnavailable, MoveRefused

T = TypeVar("T")
Step = Callable[[str], Awaitable[None]]

FREEZE_TRIES = 5
FREEZE_AGAIN_S = 1.0
DRAINED_WITHIN_S = 5.0
RELAYED_WITHIN_S = 30.0
RELAY_LAG_S = 1.0
LOOK_S = 0.02
STALE_S = 10.0  # by then every process reads the new map, and nobody looks for the rows on the source any more
TELL_EVERY_S = 2.0
PERSISTS_S, AGAIN_S = 60.0, 0.5  # while nobody has the partition, or nobody finds it; a failover takes that long


# Whoever comes later keeps the former out: its transactions are checked against these rows, and wait for them.
_CLAIM = """
INSERT INTO {table} (partition, mover) VALUES (%s, %s) ON CONFLICT (partition) DO UPDATE SET mover = excluded.mover
"""
_GUARD = "SELECT FROM {table} WHERE partition = %s AND mover = %s FOR UPDATE"
_FORGET_CLAIM = "DELETE FROM {table} WHERE partition = %s AND mover = %s"
Side = Literal["departures", "arrivals"]

HAVE_ALONE = "SELECT pg_advisory_xact_lock(fence_class(), %s)"
FREEZE = """
WITH gone AS (DELETE FROM partitions WHERE partition = %(partition)s RETURNING *)
UPDATE departures d
SET epoch = g.epoch, owner = g.owner, owner_since = g.owner_since, consumed_offset = g.consumed_offset,
    decided_through = g.decided_through, token_floor = g.token_floor
FROM gone g WHERE d.partition = g.partition
"""
READ_FROZEN = """
SELECT epoch, consumed_offset, decided_through, token_floor FROM departures WHERE partition = %s AND epoch IS NOT NULL
"""
THAW = """
WITH back AS (
    INSERT INTO partitions (partition, epoch, owner, owner_since, consumed_offset, decided_through, token_floor)
    SELECT partition, epoch, owner, owner_since, consumed_offset, decided_through, token_floor
    FROM departures WHERE partition = %(partition)s AND epoch IS NOT NULL
    RETURNING partition
)
UPDATE departures d SET epoch = NULL FROM back b WHERE d.partition = b.partition
"""
# The epoch stays: whoever owned it last knows by it that nobody else has since. Its owner does not: it must come here.
ARRIVE = """
INSERT INTO partitions (partition, epoch, consumed_offset, decided_through, token_floor) VALUES (%s, %s, %s, %s, %s)
"""

HAS_UNTOLD = "SELECT EXISTS (SELECT FROM outbox WHERE partitions @> ARRAY[%s::int])"
HAS_RELAY = """
SELECT EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = fence_class()::oid AND objid = 4294967295::oid
       AND objsubid = 2 AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
"""
READ_VERSION = "SELECT array_agg(name ORDER BY name) FROM schema_migrations"


async def _go_on(_: str) -> None:
    pass


async def move_partition(
    shards: Shards,
    partition: int,
    to_shard: int,
    say: Callable[[str], None],
    *,
    step: Step = _go_on,
) -> None:
    """Move a partition, or go on with a move of it that was left half-way. Returns when the target has it and no row is
    left on the source.

    step: told what was done: the instants at which tests end the mover. Raises MoveRefused when it stays, or is not to
    be moved; LedgerUnavailable while a shard is away: the same again goes on then.
    """
    async with in_charge(shards.home, partition):
        await shards.look_again()
        _check(shards, partition, to_shard)
        async with session(shards.home) as conn:
            move = await read_move(conn, partition)
        if move is not None and not move.is_over:
            if move.state != "returning" and move.to_shard != to_shard:
                raise MoveRefused(
                    f"partition {partition} is half-way to shard {move.to_shard}: finish that, or --abort it"
                )
            mover = Mover(shards, move, say, step)
            if await mover.take_up():
                await mover.finish()
                return
            await mover.take_back()
        if shards.number_of(partition) == to_shard:
            say(f"partition {partition} is on shard {to_shard}")
            return
        async with transaction(shards.home) as conn:
            move = await begin_move(conn, partition, to_shard)
        mover = Mover(shards, move, say, step)
        await mover.take_up()
        await mover.move()


async def abort_move(shards: Shards, partition: int, say: Callable[[str], None], *, step: Step = _go_on) -> None:
    """Take back a move that was left half-way; where the target has the partition already, finish it instead.

    Raises MoveRefused when there is none, LedgerUnavailable.
    """
    async with in_charge(shards.home, partition):
        async with session(shards.home) as conn:
            move = await read_move(conn, partition)
        if move is None or move.is_over:
            raise MoveRefused(
                f"partition {partition} is on shard {shards.number_of(partition)}, and on no way elsewhere"
            )
        mover = Mover(shards, move, say, step)
        if await mover.take_up():
            say(f"partition {partition} is on shard {move.to_shard} already: finishing the move")
            await mover.finish()
        else:
            await mover.take_back()


def _check(shards: Shards, partition: int, to_shard: int) -> None:
    if not 0 <= partition < shards.partitions:
        raise MoveRefused(f"there is no partition {partition}: they are 0 to {shards.partitions - 1}")
    if to_shard not in shards.pools:
        raise MoveRefused(f"there is no shard {to_shard}: see `fencepostd shard list`")


@dataclass
class Mover:
    """One process's work on a move."""

    shards: Shards
    of: Move
    say: Callable[[str], None]
    step: Step
    id: UUID = field(default_factory=uuid4)
    epoch: int | None = None  # the source's when it gave the partition up
    may_have_arrived: bool = True  # nobody knows what former movers did

    def __post_init__(self) -> None:
        self.partition = self.of.partition
        self.source, self.target = self.shards.pools[self.of.from_shard], self.shards.pools[self.of.to_shard]
        self.guard_source = partial(self._guarded, self.source, "departures")
        self.guard_target = partial(self._guarded, self.target, "arrivals")
        self.copy = PartitionCopy(self.partition, self.source, self.guard_source, self.guard_target, self._tell)
        self.told_at = time.monotonic()

    async def take_up(self) -> bool:
        """Keep every former mover out, and have the partition served again. Whether the target has it."""
        async with transaction(self.shards.home) as conn:
            self.of = await take_up_move(conn, self.partition, self.id)
        # The target first: what the former may still do there decides where the partition is.
        await self._claim(self.target, "arrivals")
        await self._claim(self.source, "departures")
        has_arrived = await self._settle()
        await self.step("taken up")
        return has_arrived

    async def _settle(self) -> bool:
        """Have the partition served by the shard that has it, or had it last. Whether that is the target."""
        has_arrived = self.may_have_arrived and await self._has_arrived()
        async with self.guard_source() as conn:
            if not has_arrived:
                await conn.execute(THAW, {"partition": self.partition})
            elif self.of.state != "moved":
                await self._read_frozen(conn)
        return has_arrived

    async def _has_arrived(self) -> bool:
        """Whether the target has it. What we have sent there and got no answer to is over by then: it had our claim."""
        async with self.guard_target() as conn:
            return await is_here(conn, self.partition)

    async def move(self) -> None:
        """From the first row to the last. Raises MoveRefused when it is taken back, for the target never had it."""
        self.may_have_arrived = False
        try:
            await self._prepare()
        except (FencepostError, psycopg.Error) as error:
            await self._stay(error)
        await _to_the_end(self._hand_over())
        await self.finish()

    async def _hand_over(self) -> None:
        began = time.monotonic()
        try:
            await self._cut_over()
        except (FencepostError, psycopg.Error) as error:
            await self._stay(error)
        await self._set_moved()
        self.say(f"shard {self.of.to_shard} has it; it stood still for {time.monotonic() - began:.2f} s")

    async def _stay(self, error: Exception) -> None:
        """Take the move back, and raise MoveRefused; unless the target has the partition in spite of the error.

        Where another has taken the move up meanwhile nothing of it is ours to take back. A target that is away holds
        up only what may have arrived there.
        """
        if not await self._persist(self._settle, "the partition has no shard"):
            await self.take_back()
            raise MoveRefused(f"partition {self.partition} stays on shard {self.of.from_shard}: {error}") from error

    async def finish(self) -> None:
        """The target has it: see that everybody learns it, then that nothing of it is left on the source."""
        if self.of.state != "moved":
            await self._set_moved()
        await asyncio.sleep(STALE_S)
        await self.copy.stop_noting()
        await remove_rows(self.partition, self.guard_source)
        await self.step("removed")
        await self._leave("done")
        self.say(
            f"partition {self.partition} is on shard {self.of.to_shard}; shard {self.of.from_shard} has forgotten it"
        )

    async def take_back(self) -> None:
        """The source has it: forget what the target has got."""
        await self._set_state("returning")
        await self.step("returning")
        await self.copy.stop_noting()
        await remove_rows(self.partition, self.guard_target)
        await self._leave("returned")
        self.say(f"partition {self.partition} is on shard {self.of.from_shard}, as before")

    def _tell(self, rows: int) -> None:
        if time.monotonic() - self.told_at >= TELL_EVERY_S:
            self.told_at = time.monotonic()
            self.say(f"copied {rows} rows")

    @asynccontextmanager
    async def _guarded(self, pool: Pool, side: Side) -> AsyncIterator[ConfirmedConnection]:
        """A transaction that only we, of all who have moved the partition, can still make. Raises MoveRefused."""
        async with transaction(pool) as conn:
            cursor = await conn.execute(_GUARD.format(table=side).encode(), (self.partition, self.id))
            if await cursor.fetchone() is None:
                raise taken_up()
            yield conn

    async def _claim(self, pool: Pool, side: Side) -> None:
        async with transaction(pool) as conn:
            await conn.execute(_CLAIM.format(table=side).encode(), (self.partition, self.id))

    async def _prepare(self) -> None:
        """Everything that can be done while the source has the partition."""
        await self._compare_versions()
        await remove_rows(self.partition, self.guard_target)
        await self.copy.note_changes()
        await self.step("noting")
        self.say(f"copying partition {self.partition} from shard {self.of.from_shard} to shard {self.of.to_shard}")
        await self.copy.copy_all()
        await self.step("copied")
        self.say(f"copied {self.copy.rows} rows; following what has changed meanwhile")
        await self.copy.copy_changes(few=FEW_CHANGES)
        await self._await_relays()
        await self.copy.copy_changes(few=FEW_CHANGES)
        await self.copy.copy_outcomes()
        await self.step("followed")

    async def _cut_over(self) -> None:
        """Nobody has the partition inside."""
        await self._set_state("cutting")
        await self._freeze()
        await self.step("frozen")
        await self.copy.copy_changes()
        await self.copy.copy_outcomes()
        await self.copy.copy_last()
        await self.step("caught up")
        await self._drained()
        await self.step("drained")
        async with self.guard_source() as conn:
            frozen = await self._read_frozen(conn)
        self.may_have_arrived = True
        async with self.guard_target() as conn:
            await conn.execute(ARRIVE, (self.partition, *frozen))
        await self.step("arrived")

    async def _read_frozen(self, conn: Connection) -> Sequence[Any]:
        """Of the row that is in no shard's `partitions`, what goes into the target's."""
        row = await (await conn.execute(READ_FROZEN, (self.partition,))).fetchone()
        assert row is not None
        self.epoch = row[0]
        return row

    async def _freeze(self) -> None:
        """Take the partition out of the source's, once every transaction under its fence has ended."""
        for tries in range(FREEZE_TRIES):
            try:
                async with self.guard_source() as conn:
                    # Who comes later waits behind us.
                    await conn.execute("SET LOCAL lock_timeout = '1s'")
                    await conn.execute(HAVE_ALONE, (self.partition,))
                    if (await conn.execute(FREEZE, {"partition": self.partition})).rowcount != 1:
                        raise MoveRefused("it is not on the shard that the map says")
                    if conn.timeline != self.copy.timeline:
                        raise MoveRefused("the source's standby was promoted while it was copied")
                return
            except LedgerUnavailable as error:
                if not isinstance(error.__cause__, LockNotAvailable) or tries == FREEZE_TRIES - 1:
                    raise
            await asyncio.sleep(FREEZE_AGAIN_S)

    async def _drained(self) -> None:
        """Return once every event of the partition is on its topic: those of the target come after them."""
        until = time.monotonic() + DRAINED_WITHIN_S
        while True:
            async with session(self.source) as conn:
                row = await (await conn.execute(HAS_UNTOLD, (self.partition,))).fetchone()
            if row is not None and not row[0]:
                return
            if time.monotonic() >= until:
                raise MoveRefused(
                    f"its events were not relayed within {DRAINED_WITHIN_S:g} s: see the relay, and Kafka"
                )
            await asyncio.sleep(LOOK_S)

    async def _await_relays(self) -> None:
        """Return once the source's outbox is as good as empty, and the target's has a relay."""
        until = time.monotonic() + RELAYED_WITHIN_S
        while True:
            async with session(self.source) as conn:
                _, lag_s = await outbox_lag(conn)
            async with session(self.target) as conn:
                row = await (await conn.execute(HAS_RELAY)).fetchone()
            has_relay = bool(row and row[0])
            if has_relay and lag_s < RELAY_LAG_S:
                return
            if time.monotonic() >= until:
                raise MoveRefused(
                    f"events of shard {self.of.from_shard} are {lag_s:.0f} s behind: see the relay, and Kafka"
                    if has_relay
                    else f"nobody relays the events of shard {self.of.to_shard}: start the relay role, of this version"
                )
            await asyncio.sleep(LOOK_S)

    async def _compare_versions(self) -> None:
        versions = []
        for pool in (self.source, self.target):
            async with session(pool) as conn:
                versions.append(await (await conn.execute(READ_VERSION)).fetchone())
        if versions[0] != versions[1]:
            raise MoveRefused("the shards are of different versions: run `fencepostd init` first")

    async def _set_moved(self) -> None:
        """Change the map: until then nobody finds the partition."""

        async def change() -> None:
            async with transaction(self.shards.home) as conn:
                await set_moved(conn, self.partition, self.id, self.epoch)

        await self._persist(change, "the map is not changed")
        self.of = self.of._replace(state="moved")
        await self.step("moved")

    async def _persist(self, work: Callable[[], Awaitable[T]], without: str) -> T:
        """Repeat what a shard is away for, such as during a failover. Raises LedgerUnavailable when it stays away."""
        until = time.monotonic() + PERSISTS_S
        while True:
            try:
                return await work()
            except LedgerUnavailable as error:
                if time.monotonic() >= until:
                    raise
                self.say(f"{without} yet: {error}")
            await asyncio.sleep(AGAIN_S)

    async def _set_state(self, state: State) -> None:
        async with transaction(self.shards.home) as conn:
            await set_state(conn, self.partition, self.id, state)

    async def _leave(self, state: State) -> None:
        """The move is over. Home says so last: until then it can be taken up."""
        for pool, side in ((self.source, "departures"), (self.target, "arrivals")):
            async with transaction(pool) as conn:
                await conn.execute(_FORGET_CLAIM.format(table=side).encode(), (self.partition, self.id))
        await self._set_state(state)
        await self.step(state)


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Whoever is interrupted meanwhile ends after it: in between nobody would have the partition."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
