"""`asyncio.wait_for` as Python 3.12 has it, for the libraries that wait by it: psycopg's pool, and Faust.

Before, a cancellation that came together with what was waited for was lost (python/cpython#86296): a task that ends by
cancellation only went on, and whoever waited for its end waited for ever.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def wait_for(awaited: Awaitable[T], timeout: float | None) -> T:
    """What it gives, within so many seconds. Raises TimeoutError, with the awaited cancelled."""
    async with asyncio.timeout(timeout):
        return await awaited


def keep_cancellations() -> None:
    """From now on, in the whole process."""
    if sys.version_info < (3, 12):
        asyncio.wait_for = wait_for  # type: ignore[assignment]  # noqa: TID251 - it is what is mended
