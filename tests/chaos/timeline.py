"""What was done to a cluster and when, printed as it happens, with the seed that leads to the same again."""

from __future__ import annotations

import os
import random
import time

SEED_VARIABLE = "FENCEPOST_CHAOS_SEED"


class Timeline:
    """faults: what hurt, in order. random: for every choice of a trial, so that its seed tells all of them."""

    def __init__(self, title: str) -> None:
        self.seed = int(os.environ.get(SEED_VARIABLE) or random.randrange(1 << 32))
        self.random = random.Random(f"{self.seed} {title}")
        self.faults: list[str] = []
        self._began = time.monotonic()
        self.note(f"{title}: {SEED_VARIABLE}={self.seed}")

    def note(self, text: str) -> None:
        """Something happened."""
        print(f"{time.monotonic() - self._began:8.2f} s  {text}", flush=True)

    def fault(self, text: str) -> None:
        """Something was broken on purpose."""
        self.faults.append(text)
        self.note(text)
