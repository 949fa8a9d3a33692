"""One pulse for what a process does now and then: whoever sleeps until it wakes together with the others.

To wake costs an idle process more than what it does then, and the more the busier its neighbours are.
"""

from __future__ import annotations

import asyncio


async def pulse(period_s: float) -> None:
    """Sleep until the next multiple of the period on the loop's clock; one that is almost here counts as over."""
    await asyncio.sleep(until_pulse_s(period_s))


def until_pulse_s(period_s: float) -> float:
    """For how long `pulse` would sleep now."""
    passed_s = asyncio.get_running_loop().time() % period_s
    return period_s - passed_s if passed_s < 0.9 * period_s else 2 * period_s - passed_s
