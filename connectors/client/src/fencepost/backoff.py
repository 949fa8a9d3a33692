"""How long to wait before a call is repeated: full jitter, so that many clients do not return at once."""

from __future__ import annotations

import random
from collections.abc import Callable

BASE_S = 0.1
CAP_S = 3.0  # a worker that waits longer would be late for runs of a server that is back


def wait_before_retry_s(
    repetition: int, retry_after_s: float | None = None, *, uniform: Callable[[float, float], float] = random.uniform
) -> float:
    """Uniform in [0, min(cap, base·2^repetition)] s, after retry_after_s, which the server asked for.

    repetition: 0 before the first repetition.
    """
    ceiling_s = min(CAP_S, BASE_S * 2 ** min(repetition, 30))
    return (retry_after_s or 0.0) + uniform(0, ceiling_s)
