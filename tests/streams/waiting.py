"""Waiting for what nobody announces, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

DEADLINE_S = 30.0


async def until(
    condition: Callable[[], bool | Awaitable[bool]], *, deadline_s: float = DEADLINE_S, pause_s: float = 0.02
) -> float:
    """Wait until the condition holds; how many seconds that took. Fails at the deadline."""
    began = time.monotonic()
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        waited_s = time.monotonic() - began
        if answer:
            return waited_s
        assert waited_s < deadline_s, f"{condition} did not hold within {deadline_s} s"
        await asyncio.sleep(pause_s)
