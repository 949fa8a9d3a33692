"""How long a worker may trust a lease. Pure: instants are seconds of `elapsed_s`, handed in.

The server counts a lease from when it handled the last heartbeat; the worker only knows when it sent it. It counts
from then, so its idea of the end is never later than the server's.
"""

from __future__ import annotations

import enum
import time
from asyncio import Task
from typing import Final

from fencepost.models import LeasedRun

STOP_MARGIN_S = 5.0
MAX_WAIT_S = 20.0


def stop_margin_s(visibility_s: float) -> float:
    """How long a handler has to end, once told to stop, before another worker may start its run."""
    return min(STOP_MARGIN_S, visibility_s / 3)


class LeaseTerms:
    """What follows from the visibility timeout.

    stop_after_s: since the last confirmed heartbeat, when the handler is told to stop; at least 5 s (of a short
    visibility a third) before the lease could end. beat_after_s: when the next heartbeat is due, so that one goes out
    every third of the visibility though the leases are only looked at every tick_s. wait_s: what a long-poll may take
    of a lease that is counted from when the poll was sent.
    """

    def __init__(self, visibility_s: float) -> None:
        if not 1 <= visibility_s <= 3600:
            raise ValueError(f"visibility_s must be within 1 and 3600, not {visibility_s}")
        self.visibility_s: Final = visibility_s
        self.tick_s: Final = min(5.0, visibility_s / 12)
        self.beat_after_s: Final = visibility_s / 3 - self.tick_s
        self.beat_timeout_s: Final = visibility_s / 6
        self.wait_s: Final = min(MAX_WAIT_S, visibility_s / 3)
        # An event loop wakes late by some milliseconds; the margin is a promise.
        wake_allowance_s = min(0.1, visibility_s / 30)
        self.stop_after_s: Final = visibility_s - stop_margin_s(visibility_s) - wake_allowance_s


class StopReason(enum.Enum):
    """Why a handler was told to stop. Of the first two nothing is reported: the run may be another worker's."""

    LEASE_ENDING = "no heartbeat was confirmed in time"
    LEASE_LOST = "another attempt has the run"
    CANCELLED = "the server cancelled the run"
    DRAINING = "the worker shut down before the handler had finished"


class Lease:
    """A run that this worker holds, and what it knows of the hold.

    confirmed_at: when the last call that the server confirmed was sent. started: its handler was entered.
    handled: its handler has ended, its outcome waits to be reported.
    """

    __slots__ = ("confirmed_at", "handled", "run", "started", "stop_reason", "task")

    def __init__(self, run: LeasedRun, confirmed_at: float) -> None:
        self.run = run
        self.confirmed_at = confirmed_at
        self.started = False
        self.handled = False
        self.stop_reason: StopReason | None = None
        self.task: Task[None] | None = None

    @property
    def given_up(self) -> bool:
        """The run may be another worker's: heartbeats and outcomes of it must not be sent any more."""
        return self.stop_reason in (StopReason.LEASE_ENDING, StopReason.LEASE_LOST)

    def may_report(self, now: float, terms: LeaseTerms) -> bool:
        """Whether an outcome may still be sent. Judged anew at every try: a frozen process wakes anywhere."""
        return not self.given_up and now < self.confirmed_at + terms.stop_after_s


def elapsed_s() -> float:
    """Seconds that only grow. They go on while the machine sleeps, as a lease does, where the system can tell."""
    return _now()


def _boot_time_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_now = _boot_time_s if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
