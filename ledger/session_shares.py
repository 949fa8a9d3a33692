"""Shares of the sessions with a shard: who works within one has at most so many at once, so that others find some, too.

A pool gives its sessions in the order in which they are asked for, to a slow look at many rows as to a lease. Who works
within a share waits for a turn in it first; who works within none takes what there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary

from psycopg_pool import PoolTimeout

_SHARE: ContextVar[SessionShare | None] = ContextVar("share of the sessions", default=None)


class SessionShare:
    """sessions: of each pool. Belongs to one event loop."""

    def __init__(self, sessions: int) -> None:
        self._sessions = sessions
        self._turns: WeakKeyDictionary[object, asyncio.Semaphore] = WeakKeyDictionary()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Inside, and in tasks that are begun there, sessions are taken within this share."""
        before = _SHARE.set(self)
        try:
            yield
        finally:
            _SHARE.reset(before)

    def turns(self, pool: object) -> asyncio.Semaphore:
        if (turns := self._turns.get(pool)) is None:
            turns = self._turns[pool] = asyncio.Semaphore(self._sessions)
        return turns


@asynccontextmanager
async def turn(pool: object, within_s: float) -> AsyncIterator[None]:
    """Inside, the pool may be asked for a session. Raises PoolTimeout when others of the share keep theirs."""
    share = _SHARE.get()
    if share is None:
        yield
        return
    turns = share.turns(pool)
    try:
        async with asyncio.timeout(within_s):
            await turns.acquire()
    except TimeoutError:
        raise PoolTimeout(f"no session came free within {within_s:g} s for calls of this kind") from None
    try:
        yield
    finally:
        turns.release()
