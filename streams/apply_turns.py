"""Whose turn it is to apply commands, of the partitions of a process that share its processor and its sessions.

A turn may take a third of a second while a flood is applied. Where somebody waits who has sent little, a turn takes a
tenth of that; so those go first, and a flood that has a partition for itself gets each fourth turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

IN_ORDER_EVERY = 4

_Waiting = tuple[asyncio.Future[None], Callable[[], bool]]


class ApplyTurns:
    """So many at once; of those who wait, who is urgent by then comes first, in order, else who has waited longest."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: list[_Waiting] = []
        self._given = 0

    @asynccontextmanager
    async def turn(self, is_urgent: Callable[[], bool]) -> AsyncIterator[None]:
        """Wait for a turn, and have it while the context is open."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(is_urgent)
        try:
            yield
        finally:
            self._give_on()

    async def _wait(self, is_urgent: Callable[[], bool]) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (turn, is_urgent)
        self._waiting.append(waiting)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._give_on()  # it was given as its wait was cancelled
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _give_on(self) -> None:
        waiting = [each for each in self._waiting if not each[0].done()]
        if not waiting:
            self._free += 1
            return
        self._given += 1
        chosen = waiting[0]
        if self._given % IN_ORDER_EVERY:
            chosen = next((each for each in waiting if each[1]()), chosen)
        chosen[0].set_result(None)
