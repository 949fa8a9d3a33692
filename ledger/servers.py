"""The servers of a database: a primary and its standbys, of which another may be the primary by now.

A DSN names them all. Which of them is meant is proved with every new session: it takes writes, no newer timeline of its
cluster is known, and its standby has all that it shows. So a primary that was cut off, and whose place another has
taken, gives no session, whether it knows of that or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from psycopg import OperationalError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ledger.confirmed_connection import ConfirmedConnection
from schemas.errors import LedgerMismatch

# Of each address: one that swallows what it is sent must not keep us from the next one.
CONNECT_S = 5
CONFIRM_S = 5.0
DEFAULT_PORT = "5432"

# By the cluster's identifier: a promoted standby goes on under the next number, which every session of this process has
# to have from then on.
_newest_timelines: dict[int, int] = {}


class Refused(OperationalError):
    """This server is not the one to work with; another one may be, or this one later."""


def complete_dsn(dsn: str) -> str:
    """With what it does not say itself: only a server that takes writes is meant, and none is waited for for long."""
    options: dict[str, Any] = {"target_session_attrs": "read-write", "connect_timeout": CONNECT_S}
    return make_conninfo(**{**options, **conninfo_to_dict(dsn)})


# In recovery it shows rows, and none of these can be asked. What is visible may be committed at home alone: it was when
# the last server process died, or somebody cancelled a wait. The empty message is in the WAL behind all of it.
PROVE_SERVER = """
SELECT (SELECT system_identifier FROM pg_control_system()),
       CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
       CASE WHEN NOT pg_is_in_recovery() AND current_setting('synchronous_standby_names') <> ''
            THEN pg_logical_emit_message(true, 'fencepost', '')::text END
"""


class Servers:
    """Those of one DSN. The first to be tried is the one that was good last time."""

    def __init__(self, dsn: str) -> None:
        self._asked: dict[str, Any] = conninfo_to_dict(complete_dsn(dsn))
        self._addresses = list(_addresses(self._asked))
        self._cluster: int | None = None

    def conninfo(self) -> str:
        """For the next session, which is to be proved."""
        joined = {key: ",".join(address[key] for address in self._addresses) for key in self._addresses[0]}
        return make_conninfo(**{**self._asked, **joined})

    async def connect(self, **options: Any) -> ConfirmedConnection:
        """A session of its own, proved. Raises OperationalError, or LedgerMismatch as `prove` does."""
        left = len(self._addresses)
        while True:
            conn = await ConfirmedConnection.connect(self.conninfo(), autocommit=True, **options)
            try:
                await self.prove(conn)
            except Refused:
                left -= 1
                if not left:
                    raise
            else:
                return conn

    async def prove(
        self, conn: ConfirmedConnection, also: Callable[[ConfirmedConnection], Awaitable[None]] | None = None
    ) -> None:
        """Raises OperationalError when it is not the server to work with, LedgerMismatch when it is of another cluster
        than the first one was, or what `also` raises. The session is closed then, and another address comes first."""
        try:
            conn.cluster, conn.timeline = await _ask(conn)
            self._judge(conn)
            if also is not None:
                await also(conn)
        except BaseException:
            self._turn_to(conn, len(self._addresses))
            await conn.close()
            raise
        self._turn_to(conn, 0)
        self._cluster = conn.cluster
        _newest_timelines[conn.cluster] = max(conn.timeline, _newest_timelines.get(conn.cluster, 0))

    def _judge(self, conn: ConfirmedConnection) -> None:
        where = f"{conn.info.host}:{conn.info.port}"
        if self._cluster not in (None, conn.cluster):
            raise LedgerMismatch([f"{where} is of another cluster than before; if that is meant, start this anew"])
        if is_outdated(conn):
            newest = _newest_timelines[conn.cluster]
            raise Refused(f"{where} is a former primary: it is on timeline {conn.timeline}, the cluster on {newest}")

    def _turn_to(self, conn: ConfirmedConnection, place: int) -> None:
        """Put the session's address there."""
        there = (conn.info.host, str(conn.info.port))
        for address in self._addresses:
            if there == (address.get("host"), address.get("port", DEFAULT_PORT)):
                self._addresses.remove(address)
                self._addresses.insert(place, address)
                return


def is_outdated(conn: ConfirmedConnection) -> bool:
    """Whether another server has been promoted since, as far as this process knows."""
    return conn.timeline < _newest_timelines.get(conn.cluster, 0)


async def _ask(conn: ConfirmedConnection) -> tuple[int, int]:
    """The cluster and the timeline of a primary whose standby has all that it shows. Raises OperationalError."""
    conn.may_cancel = True
    try:
        async with asyncio.timeout(CONFIRM_S):
            row = await (await conn.execute(PROVE_SERVER)).fetchone()
    except TimeoutError:
        raise Refused(f"{conn.info.host}:{conn.info.port} and its standby did not answer in {CONFIRM_S:g} s") from None
    finally:
        conn.may_cancel = False
    assert row is not None
    cluster, timeline, _ = row
    if timeline is None:
        raise Refused(f"{conn.info.host}:{conn.info.port} is a standby")
    return cluster, int(timeline, 16)


def _addresses(asked: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Host, address and port of each server; at least one. One port alone is that of all hosts."""
    lists = {key: str(asked[key]).split(",") for key in ("host", "hostaddr", "port") if key in asked}
    for number in range(max(map(len, lists.values()), default=1)):
        yield {key: listed[number % len(listed)] for key, listed in lists.items()}
