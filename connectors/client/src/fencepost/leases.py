"""How long a worker may trust a lease. Pure: instants are seconds of `elapsed_s`, handed in.

The server counts a lease from when it handled the last heartbeat; the worker only knows when it sent it. It counts
from then (of a long-poll from as much later as the server says that it waited), so its idea of the end is never later
than the server's.
"""

from __future__ import annotations

import enum
import math
import time
from asyncio import Task
from typing import Final

from fencepost.models import LeasedRun

STOP_MARGIN_S = 5.0


def stop_margin_s(visibility_s: float) -> float:
    """How long a handler has to end, once told to stop, before another worker may start its run."""
    return min(STOP_MARGIN_S, visibility_s / 3)


class LeaseTerms:
    """What follows from the visibility timeout.

    stop_after_s: since the last confirmed heartbeat, when the handler is told to stop; at least 5 s (of a short
    visibility a third) before the lease could end. beat_after_s: when the next heartbeat is due, so that one goes out
    every third of the visibility though the leases are only looked at every tick_s.
    """

    def __init__(self, visibility_s: float) -> None:
        if not 1 <= visibility_s <= 3600:
            raise ValueError(f"visibility_s must be within 1 and 3600, not {visibility_s}")
        self.visibility_s: Final = visibility_s
        self.tick_s: Final = min(5.0, visibility_s / 12)
        self.beat_after_s: Final = visibility_s / 3 - self.tick_s
        self.beat_timeout_s: Final = visibility_s / 6
        # An event loop wakes late by some milliseconds; the margin is a promise.
        wake_allowance_s = min(0.1, visibility_s / 30)
        self.margin_s: Final = stop_margin_s(visibility_s) + wake_allowance_s
        self.stop_after_s: Final = visibility_s - self.margin_s


class StopReason(enum.Enum):
    """Why a handler was told to stop. Of the first three nothing is reported: the run may be another worker's."""

    LEASE_ENDING = "no heartbeat was confirmed in time"
    LEASE_LOST = "another attempt has the run"
    TIMED_OUT = "the attempt has lasted as long as its job allows"
    CANCELLED = "the server cancelled the run"
    DRAINING = "the worker shut down before the handler had finished"


class Lease:
    """A run that this worker holds, and what it knows of the hold.

    confirmed_at: when the last call that the server confirmed was sent; of a long-poll, plus what the server waited.
    lasts_s: how long the lease lasted then, as the server said; no heartbeat extends it beyond the end of the attempt,
    nor once the run is to be cancelled.
    started: its handler was entered. handled: its handler has ended, its outcome waits to be reported.
    progress: a note that no heartbeat has carried yet.
    """

    __slots__ = ("confirmed_at", "handled", "lasts_s", "progress", "run", "started", "stop_reason", "task")

    def __init__(self, run: LeasedRun, confirmed_at: float) -> None:
        self.run = run
        self.confirmed_at = confirmed_at
        self.lasts_s = math.inf if run.lease_seconds is None else run.lease_seconds
        self.progress: str | None = None
        self.started = False
        self.handled = False
        self.stop_reason: StopReason | None = None
        self.task: Task[None] | None = None

    @property
    def given_up(self) -> bool:
        """The run may be another worker's: heartbeats and outcomes of it must not be sent any more."""
        return self.stop_reason in (StopReason.LEASE_ENDING, StopReason.LEASE_LOST, StopReason.TIMED_OUT)

    def confirm(self, sent_at: float, lasts_s: float | None) -> None:
        """The server has confirmed a call that was sent then."""
        self.confirmed_at = sent_at
        self.lasts_s = math.inf if lasts_s is None else lasts_s

    def stop_at(self, terms: LeaseTerms) -> float:
        """When the handler must be told to stop, unless another call is confirmed before."""
        return self.confirmed_at + min(terms.stop_after_s, self._short_stop_after_s(terms))

    def is_cut_short(self, terms: LeaseTerms) -> bool:
        """Whether the lease ends before a heartbeat's time is over: at the end of the attempt."""
        return self._short_stop_after_s(terms) < terms.stop_after_s

    def _short_stop_after_s(self, terms: LeaseTerms) -> float:
        # Of an attempt that is shorter than the visibility the margin is a third at most, too.
        granted_s = self.run.lease_seconds
        margin_s = terms.margin_s if granted_s is None else min(terms.margin_s, granted_s / 3)
        return self.lasts_s - margin_s

    def may_report(self, now: float, terms: LeaseTerms) -> bool:
        """Whether an outcome may still be sent. Judged anew at every try: a frozen process wakes anywhere."""
        return not self.given_up and now < self.stop_at(terms)


def elapsed_s() -> float:
    """Seconds that only grow. They go on while the machine sleeps, as a lease does, where the system can tell."""
    return _now()


def _boot_time_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_now = _boot_time_s if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
