"""How long to wait before a call is repeated: full jitter, so that many clients do not return at once."""

from __future__ import annotations

import random
from collections.abc import Callable

BASE_S = 0.1
CAP_S = 1.5  # a worker is to work again within 2 s of a server's return: this long, and the call


def wait_before_retry_s(
    repetition: int, retry_after_s: float | None = None, *, uniform: Callable[[float, float], float] = random.uniform
) -> float:
    """Uniform in [0, min(cap, base·2^repetition)] s, after retry_after_s, which the server asked for.

    repetition: 0 before the first repetition.
    """
    ceiling_s = min(CAP_S, BASE_S * 2 ** min(repetition, 30))
    return (retry_after_s or 0.0) + uniform(0, ceiling_s)
