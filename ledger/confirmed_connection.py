"""A session with Postgres in which nothing counts as committed that a synchronous standby might not have.

Postgres commits at home first and then waits for the standby. Whoever cancels that wait makes visible what a promoted
standby would not know. So we never cancel it, and when others do, or no answer comes, the session is as good as lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from psycopg import AsyncConnection, OperationalError, waiting
from psycopg.abc import PQGen
from psycopg.errors import Diagnostic, _WaitTimeout
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn
from psycopg.rows import AsyncRowFactory, TupleRow, tuple_row

# No statement of ours takes as long: Postgres itself ends a transaction after 10 s. What it does not end by itself is a
# commit that waits for the standby; and when it stands still, or its machine is gone, it ends nothing.
SILENCE_S = 12.0
# A caller who gives up while a statement is under way waits as long for the session to be usable again.
INTERRUPTED_S = 0.1

RV = TypeVar("RV")


class Unconfirmed(OperationalError):
    """The transaction may be committed or not, as if the session had been lost: nobody may be told that it is."""


class ConfirmedConnection(AsyncConnection[TupleRow]):
    """cluster, timeline: of the server, by which it was proved (ledger/servers.py).

    silence_s: how long an answer is waited for; None for as long as it takes.
    may_cancel: whether a cancelled caller cancels the statement, too: only one that writes nothing of ours.
    is_doubtful: it ended by silence, or by a commit that was not confirmed; others with that server may be no better.
    """

    cluster = timeline = 0
    silence_s: float | None = SILENCE_S
    may_cancel = False
    is_doubtful = False

    def __init__(self, pgconn: PGconn, row_factory: AsyncRowFactory[TupleRow] = tuple_row) -> None:
        super().__init__(pgconn, row_factory)
        self.opened_at = time.monotonic()
        self._standby = Standby()
        self.add_notice_handler(self._standby.hear)

    async def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Raises Unconfirmed, with the session closed; when the caller is cancelled it may be closed, too."""
        if self.may_cancel:
            return self._confirmed(await super().wait(gen, interval, timeout))
        given_s = self.silence_s if timeout is None else timeout
        try:
            return self._confirmed(await waiting.wait_async(gen, self.pgconn.socket, interval, given_s))
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            await self._end_soon(gen)
            raise
        except _WaitTimeout as error:
            if timeout is not None:
                raise
            self._close()
            raise Unconfirmed(f"no answer within {given_s:g} s") from error

    def _confirmed(self, answer: RV) -> RV:
        if self._standby.is_missing:
            self._close()
            raise Unconfirmed("the wait for the synchronous standby was cancelled")
        return answer

    async def _end_soon(self, gen: PQGen[RV]) -> None:
        """The statement is not cancelled, it may be the commit: after a moment Postgres is left alone with it."""
        if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
            try:
                self._confirmed(await waiting.wait_async(gen, self.pgconn.socket, INTERRUPTED_S, INTERRUPTED_S))
            except BaseException as error:  # it takes longer, it failed, or its caller was cancelled once more
                self.pgconn.finish()
                if not isinstance(error, Exception):
                    raise

    def _close(self) -> None:
        self.is_doubtful = True
        self.pgconn.finish()


class Standby:
    """Hears whether a commit returned without it. Knows no connection, which would keep itself alive by it."""

    is_missing = False

    def hear(self, notice: Diagnostic) -> None:
        # Other warnings of this code, such as of a database that needs a vacuum, are of the statement, not of the
        # commit. Messages are translated, the file is not; what does not tell it is taken for the worst.
        if notice.sqlstate == "01000" and notice.source_file in (None, "syncrep.c"):
            self.is_missing = True


@contextmanager
def patience(conn: AsyncConnection[TupleRow], silence_s: float | None) -> Iterator[None]:
    """Wait for each answer for so long, or for as long as it takes."""
    if not isinstance(conn, ConfirmedConnection):
        yield
        return
    before, conn.silence_s = conn.silence_s, silence_s
    try:
        yield
    finally:
        conn.silence_s = before
