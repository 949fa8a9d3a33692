"""What home knows of moves of partitions between shards: the last one of each partition, and who works on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID, uuid4

from ledger.connection import CONFIRM_COMMITS, Connection, Pool, ledger_errors, session
from ledger.shard_map import READ_MOVING
from schemas.errors import LedgerUnavailable, MoveRefused

State = Literal["copying", "cutting", "moved", "done", "returning", "returned"]


class Move(NamedTuple):
    """What home says of a partition's last move. epoch: the one under which it was cut over; None before."""

    partition: int
    from_shard: int
    to_shard: int
    state: State
    epoch: int | None
    began_at: datetime
    changed_at: datetime

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "returned")


_MOVE = ", ".join(Move._fields)
LIST_MOVES = f"SELECT {_MOVE} FROM moves ORDER BY partition"


async def list_moves(home: Connection) -> list[Move]:
    """The last move of each partition that was ever moved."""
    return [Move(*row) for row in await (await home.execute(LIST_MOVES)).fetchall()]


# With CONFIRM_COMMITS: a former primary would show none for ever.
READ_UNFINISHED = f"SELECT ARRAY({READ_MOVING}), ({CONFIRM_COMMITS})"


async def read_unfinished(home: Connection) -> list[int]:
    """The partitions on their way, as far as the synchronous standby, if there is one, knows too."""
    row = await (await home.execute(READ_UNFINISHED)).fetchone()
    assert row is not None
    partitions: list[int] = row[0]
    return partitions


READ_MOVE = f"SELECT {_MOVE} FROM moves WHERE partition = %s"


async def read_move(home: Connection, partition: int) -> Move | None:
    """The partition's last move; None when it was never moved."""
    row = await (await home.execute(READ_MOVE, (partition,))).fetchone()
    return Move(*row) if row else None


BEGIN_MOVE = f"""
INSERT INTO moves AS m (partition, from_shard, to_shard, state, mover)
SELECT partition, shard, %(to)s, 'copying', %(mover)s FROM placements WHERE partition = %(partition)s
ON CONFLICT (partition) DO UPDATE
SET from_shard = excluded.from_shard, to_shard = excluded.to_shard, state = excluded.state, mover = excluded.mover,
    epoch = NULL, began_at = now(), changed_at = now()
WHERE m.state IN ('done', 'returned')
RETURNING {_MOVE}
"""


async def begin_move(home: Connection, partition: int, to_shard: int) -> Move:
    """A new one. The caller is in charge, and the last move is over."""
    asked = {"partition": partition, "to": to_shard, "mover": uuid4()}
    row = await (await home.execute(BEGIN_MOVE, asked)).fetchone()
    assert row is not None
    return Move(*row)


TAKE_UP_MOVE = f"UPDATE moves SET mover = %s WHERE partition = %s RETURNING {_MOVE}"


async def take_up_move(home: Connection, partition: int, mover: UUID) -> Move:
    """Go on with it as that mover: what a former one says of it from now on is refused."""
    row = await (await home.execute(TAKE_UP_MOVE, (mover, partition))).fetchone()
    assert row is not None
    return Move(*row)


SET_STATE = "UPDATE moves SET state = %s, changed_at = now() WHERE partition = %s AND mover = %s"


async def set_state(home: Connection, partition: int, mover: UUID, state: State) -> None:
    """Raises MoveRefused once another mover has taken it up."""
    if (await home.execute(SET_STATE, (state, partition, mover))).rowcount != 1:
        raise taken_up()


SET_MOVED = """
WITH moved AS (
    UPDATE moves SET state = 'moved', epoch = %(epoch)s, changed_at = now()
    WHERE partition = %(partition)s AND mover = %(mover)s RETURNING partition, to_shard
)
UPDATE placements p SET shard = m.to_shard FROM moved m WHERE p.partition = m.partition
"""


async def set_moved(home: Connection, partition: int, mover: UUID, epoch: int | None) -> None:
    """Have the map lead to the target, which has the partition. Raises as `set_state`."""
    asked = {"partition": partition, "mover": mover, "epoch": epoch}
    if (await home.execute(SET_MOVED, asked)).rowcount != 1:
        raise taken_up()


# One at a time, for as long as its session lives.
LOCK_MOVE = "SELECT pg_try_advisory_lock(fence_class() + 2, %s)"
UNLOCK_MOVE = "SELECT pg_advisory_unlock(fence_class() + 2, %s)"


@asynccontextmanager
async def in_charge(home: Pool, partition: int) -> AsyncIterator[None]:
    """Be the one who moves the partition. Raises MoveRefused while somebody else is."""
    async with session(home) as conn:
        row = await (await conn.execute(LOCK_MOVE, (partition,))).fetchone()
        if not (row and row[0]):
            raise MoveRefused(f"partition {partition} is being moved by another process just now")
        try:
            yield
        finally:
            with suppress(LedgerUnavailable), ledger_errors():  # then the session is gone, and the lock with it
                await conn.execute(UNLOCK_MOVE, (partition,))


def taken_up() -> MoveRefused:
    """The former mover's error."""
    return MoveRefused("another process has taken the move up")
