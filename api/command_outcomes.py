"""What became of commands: one task asks a shard for all callers who wait."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from ledger.commands import Outcome, read_outcomes
from ledger.connection import Pool, session
from schemas.errors import LedgerUnavailable

log = logging.getLogger(__name__)

SHORTEST_S = 0.005
LONGEST_S = 0.05


class CommandOutcomes:
    """Looks every 5 ms after a new caller came, then less and less often up to every 50 ms; not at all for nobody."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: dict[UUID, list[asyncio.Future[Outcome]]] = {}
        self._arrived = asyncio.Event()
        self._pause_s = SHORTEST_S

    async def wait_for(self, command_id: UUID, timeout_s: float) -> Outcome | None:
        """The command's outcome, or None when it is not there in time."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        futures = self._waiting.setdefault(command_id, [])
        futures.append(future)
        self._pause_s = SHORTEST_S
        self._arrived.set()
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            return None
        finally:
            futures.remove(future)
            if not futures and self._waiting.get(command_id) is futures:
                del self._waiting[command_id]

    async def run(self) -> None:
        """Look for as long as the API runs, whatever happens. Ends by cancellation only."""
        while True:
            await self._arrived.wait()
            try:
                await self._look()
            except Exception:
                log.exception("looking for what became of commands failed in a way that nobody foresaw")
            if not self._waiting:
                self._arrived.clear()
                continue
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_S)

    async def _look(self) -> None:
        asked = list(self._waiting)
        try:
            async with session(self._pool) as conn:
                outcomes = await read_outcomes(conn, asked)
        except LedgerUnavailable as error:
            log.warning("cannot see what became of commands: %s", error)
            return
        for command_id, outcome in outcomes.items():
            for future in self._waiting.pop(command_id, ()):
                if not future.done():
                    future.set_result(outcome)
