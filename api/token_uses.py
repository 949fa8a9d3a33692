"""About when tokens are used: noted once a minute, beside the calls, so that none of them pays for it."""

from __future__ import annotations

import asyncio
import logging

from ledger.connection import Pool, session
from ledger.tokens import note_uses
from schemas.errors import LedgerUnavailable

log = logging.getLogger(__name__)

PERIOD_S = 60.0


class TokenUses:
    """Belongs to one event loop. What is lost: the last minute of a process that ends, and any while home is away."""

    def __init__(self, home: Pool) -> None:
        self._home = home
        self._used: set[str] = set()

    def add(self, token_id: str) -> None:
        """It is in use: told whenever it is looked up, which is every few seconds then."""
        self._used.add(token_id)

    async def follow(self) -> None:
        """Note them, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.note()
            except LedgerUnavailable as error:
                log.warning("when tokens were used cannot be noted: %s", error)
            except Exception:
                log.exception("noting when tokens were used failed in a way that nobody foresaw")

    async def note(self) -> None:
        """Note those used since the last time. Raises LedgerUnavailable."""
        used, self._used = self._used, set()
        if used:
            async with session(self._home) as conn:
                await note_uses(conn, used)
