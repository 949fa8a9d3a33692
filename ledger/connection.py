"""Sessions with Postgres: how they are set up, and the one place where psycopg's errors become ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from ledger.confirmed_connection import ConfirmedConnection, patience
from ledger.kept_cancellations import keep_cancellations
from ledger.servers import Servers, is_outdated
from ledger.session_shares import turn
from schemas.errors import EpochLost, FencepostError, InvariantBroken, LedgerUnavailable, NotOnThisShard

keep_cancellations()

Connection = AsyncConnection[TupleRow]
R = TypeVar("R")

# Our statements join a short list of ids to a table by its primary key. The planner may only see it that way: a scan or
# a hash join would be slower, and would lock rows in another order than the ids', which is how we avoid deadlocks.
# transaction_timeout bounds how long a stuck holder of the fence can block a takeover.
SESSION_OPTIONS = " ".join(
    f"-c {setting}"
    for setting in (
        "timezone=UTC",
        "transaction_timeout=10s",
        "idle_in_transaction_session_timeout=10s",
        "lock_timeout=8s",
        "enable_seqscan=off",
        "enable_hashjoin=off",
        "enable_mergejoin=off",
        "enable_material=off",
        "jit=off",
        "plan_cache_mode=force_generic_plan",
    )
)


PATIENCE_S = 5.0
AWAY_PATIENCE_S = 0.05
# After this long without success a session is tried for anew by whoever wants one next: the pauses between the pool's
# own tries double without end.
GIVE_UP_S = 5.0


class Pool(AsyncConnectionPool[ConfirmedConnection]):
    """Sessions with one Postgres.

    is_away: the last who wanted one waited in vain, or got no answer. Until somebody gets one again nobody waits longer
    than a moment: those who ask several shards must not wait for it each time.
    """

    is_away = False
    _doubted_at = 0.0

    @asynccontextmanager
    async def connection(self, timeout: float | None = None) -> AsyncIterator[ConfirmedConnection]:
        """A session within the share of whoever asks, if he works within one. Raises PoolTimeout."""
        async with (
            turn(self, AWAY_PATIENCE_S if self.is_away else PATIENCE_S),
            super().connection(timeout) as conn,
        ):
            yield conn

    async def getconn(self, timeout: float | None = None) -> ConfirmedConnection:
        """One with the newest primary that is known. Raises PoolTimeout."""
        if timeout is None and self.is_away:
            timeout = AWAY_PATIENCE_S
        try:
            while is_outdated(conn := await super().getconn(timeout)):
                conn.pgconn.finish()
                await super().putconn(conn)
        except PoolTimeout:
            self.is_away = True
            raise
        self.is_away = False
        return conn

    async def putconn(self, conn: ConfirmedConnection) -> None:
        """Take it back. After one that was left without an answer, only new ones are given, which prove the server."""
        await super().putconn(conn)
        if conn.is_doubtful and conn.opened_at > self._doubted_at:
            self.is_away, self._doubted_at = True, time.monotonic()
            await self.drain()


@asynccontextmanager
async def ledger_pool(
    dsn: str,
    *,
    size: int = 4,
    name: str = "fencepost",
    prove: Callable[[Connection], Awaitable[None]] | None = None,
) -> AsyncIterator[Pool]:
    """At most `size` sessions with the ledger, opened in the background: it may still be away when this returns.

    prove: raises when a new session is not with the database that is meant; then it is none of the pool's.
    """
    servers = Servers(dsn)
    pool = Pool(
        servers.conninfo,
        connection_class=ConfirmedConnection,
        min_size=1,
        max_size=size,
        timeout=PATIENCE_S,
        reconnect_timeout=GIVE_UP_S,
        configure=partial(servers.prove, also=prove),
        open=False,
        kwargs={"autocommit": True, "options": SESSION_OPTIONS, "application_name": name},
    )
    await pool.open()
    try:
        yield pool
    finally:
        await pool.close()


@contextmanager
def ledger_errors(partition: int | None = None) -> Iterator[None]:
    """Raise our errors for psycopg's: EpochLost (NotOnThisShard), LedgerUnavailable (nothing is known written),
    InvariantBroken.

    What is none of these is a mistake in a statement, and goes on as it is.
    """
    try:
        yield
    except psycopg.Error as error:
        ours = _ours(error, partition)
        if ours is None:
            raise
        raise ours from error


def _ours(error: psycopg.Error, partition: int | None) -> FencepostError | None:
    # Our own codes first: psycopg takes a class it does not know for an OperationalError.
    if error.sqlstate == "FP002":
        return NotOnThisShard([int(number) for number in (error.diag.message_detail or "").split()])
    if error.sqlstate == "FP001":
        return EpochLost(partition)
    if isinstance(error, psycopg.OperationalError):  # the pool's own errors are ones, too
        return LedgerUnavailable(f"the ledger did not answer: {error}")
    if isinstance(error, (errors.TransactionTimeout, errors.IdleInTransactionSessionTimeout)):
        # Somebody stood still for too long, most likely this process: nothing of the transaction was written.
        return LedgerUnavailable(f"the ledger did not answer: {error}")
    if isinstance(error, (errors.CheckViolation, errors.NotNullViolation)):
        return InvariantBroken(str(error))
    return None


@asynccontextmanager
async def session(pool: Pool) -> AsyncIterator[ConfirmedConnection]:
    """A session for reads. Raises LedgerUnavailable."""
    with ledger_errors():
        async with pool.connection() as conn:
            yield conn


BATCH_ROWS = 2_000


async def read_batches(
    conn: Connection, kind: type[R], query: str, parameters: Sequence[Any]
) -> AsyncIterator[list[R]]:
    """What a query finds, in batches of a class of its columns: memory stays bounded however much there is.

    It may take longer than a writer may; nothing waits for a reader.
    """
    with patience(conn, None):
        async with conn.transaction():
            cursor = conn.cursor(name="batches", binary=True)
            try:
                await conn.execute("SET LOCAL transaction_timeout = 0")
                # All of it will be read: no index in its order.
                await conn.execute("SET LOCAL cursor_tuple_fraction = 1")
                await cursor.execute(query.encode(), parameters)
                while rows := await cursor.fetchmany(BATCH_ROWS):
                    yield [kind(*row) for row in rows]
            finally:
                await asyncio.shield(cursor.close())  # a second cancellation would leave it open


CONFIRM_COMMITS = """
SELECT pg_logical_emit_message(true, 'fencepost', '') WHERE current_setting('synchronous_standby_names') <> ''
"""


async def confirm_commits(conn: Connection) -> None:
    """Return once the synchronous standby, if there is one, has all that this session could see.

    For who says to somebody that something was committed, and has only read that it was.
    """
    await conn.execute(CONFIRM_COMMITS)


async def ledger_now(conn: Connection) -> datetime:
    """The shard's clock, the only judge of time."""
    row = await (await conn.execute("SELECT clock_timestamp()")).fetchone()
    assert row is not None
    now: datetime = row[0]
    return now
