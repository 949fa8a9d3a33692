"""What a handler gets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from fencepost.leases import Lease, LeaseTerms, StopReason

PROGRESS_MAX_CHARS = 1000


class RunContext:
    """One attempt of one run. Safe to use from the handler's thread.

    payload: the job's, a JSON value or None.
    stopping: set when the handler must end (an asynchronous handler is cancelled as well). What a handler returns
    after that is not taken for a result: the attempt failed, or is another worker's already.
    """

    __slots__ = ("_clock", "_lease", "_terms", "payload", "stopping")

    def __init__(self, lease: Lease, terms: LeaseTerms, clock: Callable[[], float]) -> None:
        self._lease = lease
        self._terms = terms
        self._clock = clock
        self.payload = lease.run.payload
        self.stopping = threading.Event()

    @property
    def run_id(self) -> UUID:
        return self._lease.run.run_id

    @property
    def job_id(self) -> UUID:
        return self._lease.run.job_id

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._lease.run.attempt

    @property
    def scheduled_for(self) -> datetime:
        """The nominal fire time; the same on every attempt."""
        return self._lease.run.scheduled_for

    @property
    def due_at(self) -> datetime:
        """When this attempt could first be leased."""
        return self._lease.run.due_at

    @property
    def queue(self) -> str:
        return self._lease.run.queue

    @property
    def idempotency_key(self) -> str:
        """The same on every attempt of this run, and of no other: hand it to whatever can drop duplicates."""
        return str(self._lease.run.run_id)

    @property
    def lease_token(self) -> int:
        """Grows with every lease of the run: store it with what you write, and refuse writes with a smaller one."""
        return self._lease.run.lease_token

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the handler must stop, or None."""
        return self._lease.stop_reason

    def remaining_s(self) -> float:
        """Seconds until the handler is told to stop unless another heartbeat is confirmed; heartbeats push it out."""
        return max(0.0, self._lease.stop_at(self._terms) - self._clock())

    def progress(self, note: str) -> None:
        """Say how far the attempt is: shown with the run once the next heartbeat has carried it, the latest note only.

        note: of its text, the first 1,000 characters.
        """
        # A lone surrogate (of an undecodable file name, for instance) is no text for JSON.
        self._lease.progress = note[:PROGRESS_MAX_CHARS].encode(errors="replace").decode()

    def __repr__(self) -> str:
        return f"<run {self.run_id} attempt {self.attempt}>"
