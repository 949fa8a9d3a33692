"""When an installation is behind: what a fault leaves to be caught up with, or a machine that has no time for it.

Its workers may then miss their heartbeats, so a run may be executed again though nothing is broken any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tests.chaos.history import EpochSample
from tests.chaos.job_rules import Fault

UNSEEN_S = 1.0  # the ledger is looked at every 0.2 s


def spells_behind(samples: Sequence[EpochSample]) -> list[Fault]:
    """From one sample to the next: something was overdue then, or the ledger could not be looked at."""
    return [
        Fault(before.at, after.at)
        for before, after in pairwise(samples)
        if before.overdue or (after.at - before.at).total_seconds() > UNSEEN_S
    ]
