"""Long work between two awaits, without holding up what else the loop has to do."""

from __future__ import annotations

import asyncio
import time

WORK_S = 0.01


class Breath:
    """Called often by a long piece of work, lets the loop go on now and then."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def take(self) -> bool:
        """Whether the loop went on: then whatever the work has read may be otherwise now."""
        if time.monotonic() - self._since < WORK_S:
            return False
        await asyncio.sleep(0)
        self._since = time.monotonic()
        return True
