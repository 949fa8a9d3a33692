"""A pooler between us and Postgres: one that gives sessions by the transaction is refused.

A session is more to us than its statements: `transaction_timeout` bounds for how long a stuck writer holds up a
takeover, an advisory lock makes one relay of several the one that works, and what it listens for wakes it. Behind such
a pooler the settings would be anybody's, and the lock would be held by whoever is next.
"""

from __future__ import annotations

from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from schemas.errors import LedgerMismatch

TRIES = 3  # in between another client may have got what this one gave back

LENT = "is a pooler that gives sessions by the transaction: name Postgres itself, or have it give whole sessions"
NOT_SET_UP = "is a pooler that leaves out what sessions are begun with (options): have it pass that on"

READ_PROCESS = "SELECT pg_backend_pid(), current_setting('transaction_timeout')"


async def prove_session(conn: AsyncConnection[TupleRow], process: int) -> None:
    """Raises LedgerMismatch when the session is only lent, or not set up as was asked; in a transaction neither shows.

    process: by `pg_backend_pid()`. A server's process tells its number as the session begins, a pooler makes one up: so
    nothing is asked where there is none.
    """
    if process == conn.info.backend_pid or conn.info.transaction_status != TransactionStatus.IDLE:
        return
    where = f"{conn.info.host}:{conn.info.port}"
    async with await AsyncConnection.connect(_again(conn), autocommit=True) as other:
        for _ in range(TRIES):
            if await _is_lent(conn, other):
                raise LedgerMismatch([f"{where} {LENT}"])
    _, timeout = await _read_process(conn)
    if conn.info.options and f"transaction_timeout={timeout}" not in conn.info.options.split():
        raise LedgerMismatch([f"{where} {NOT_SET_UP}"])


async def _is_lent(conn: AsyncConnection[TupleRow], other: AsyncConnection[TupleRow]) -> bool:
    """Whether the server process that this session has just had is the other's now, or is not this one's any more."""
    process, _ = await _read_process(conn)
    async with other.transaction():
        others, _ = await _read_process(other)
        again, _ = await _read_process(conn)
    return others == process or again != process


async def _read_process(conn: AsyncConnection[TupleRow]) -> tuple[int, str]:
    row = await (await conn.execute(READ_PROCESS)).fetchone()
    assert row is not None
    return row[0], row[1]


def _again(conn: AsyncConnection[TupleRow]) -> str:
    """What the session was begun with, at the one address that has answered."""
    asked = conn.info.get_parameters()
    asked.pop("hostaddr", None)
    here = {"host": conn.info.host, "port": str(conn.info.port), "password": conn.info.password}
    return make_conninfo(**{**asked, **{name: each for name, each in here.items() if each}})
