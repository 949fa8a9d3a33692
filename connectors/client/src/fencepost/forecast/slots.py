"""How many slots the workers of a queue need, so that its runs start when they are due. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct


class QueueSlots(Struct, rename="camel", frozen=True, kw_only=True):
    """seconds_per_run: each run is taken to last that long; observed: whether the history says so.

    mean_slots: by Little's law, the slots that are busy on average. peak_slots: the most runs under way at once, were
    all started when they are due; peak_at: when first so.
    """

    queue: str
    runs: int
    seconds_per_run: float
    observed: bool
    mean_slots: float
    peak_slots: int
    peak_at: datetime | None


def queue_slots(
    queue: str, runs: Mapping[int, int], *, seconds_per_run: float, observed: bool, horizon_s: float
) -> QueueSlots:
    """runs: of the queue, by the second in which they become due."""
    peak, at = _most_at_once(runs, seconds_per_run)
    total = sum(runs.values())
    return QueueSlots(
        queue=queue,
        runs=total,
        seconds_per_run=seconds_per_run,
        observed=observed,
        mean_slots=total * seconds_per_run / horizon_s,
        peak_slots=peak,
        peak_at=None if at is None else datetime.fromtimestamp(at, UTC),
    )


def _most_at_once(runs: Mapping[int, int], seconds_per_run: float) -> tuple[int, int | None]:
    """A run that is due at s is under way in [s, s + seconds_per_run)."""
    under_way: deque[tuple[int, int]] = deque()
    now = peak = 0
    at = None
    for second in sorted(runs):
        while under_way and under_way[0][0] + seconds_per_run <= second:
            now -= under_way.popleft()[1]
        under_way.append((second, runs[second]))
        now += runs[second]
        if now > peak:
            peak, at = now, second
    return peak, at
