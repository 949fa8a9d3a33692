"""A run's life so far, as its events tell it.

                 lease                 complete
    waiting ─────────────► leased ─────────────────► completed
     │ ▲ ▲                 │ │ └─► asked_to_end ───► completed, cancelled
     │ │ └─ retry, release ┘ └───► dead, cancelled, held
     │ ▼
     │ held   while its job is paused; a dead run that is replayed waits, or is held
     └──────► skipped, cancelled

A cancelled run that nobody has had leased may be made again, under the same id: an edit took its occurrence away, and
another one brought it back.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Literal

from fencepost.verification.events import RunEvent
from fencepost.verification.run_ids import is_of_schedule

State = Literal[
    "unmade", "waiting", "retrying", "held", "leased", "asked_to_end", "dead", "completed", "skipped", "cancelled"
]
OVER: frozenset[State] = frozenset({"completed", "skipped", "cancelled"})
LEASED: frozenset[State] = frozenset({"leased", "asked_to_end"})
WAITING: frozenset[State] = frozenset({"waiting", "retrying"})
MAKINGS = frozenset({"run_scheduled", "run_held"})

_STATE_AFTER: dict[str, State] = {
    "run_scheduled": "waiting",
    "run_released": "waiting",
    "run_retried": "retrying",
    "run_held": "held",
    "run_leased": "leased",
    "run_cancel_requested": "asked_to_end",
    "run_dead": "dead",
    "run_completed": "completed",
    "run_skipped": "skipped",
    "run_cancelled": "cancelled",
}
KINDS = frozenset(_STATE_AFTER)
_KEPT_EVENTS = 200  # of a run with more attempts than that, the newest
EXPIRIES = frozenset({"lease expired", "timed out"})

Restart = Literal["expired", "failed", "given back", "replayed"]


class RunLife:
    """What the next event of the run is judged by.

    version: of the newest event. lease: the one that lives, or None. token: the largest that was given. due_at: when
    the run may be leased, as it was told last. restart: what came between the last lease and the next, if any.
    waiting_events: newer ones than one that is missing still, in the order of their versions.
    """

    __slots__ = (
        "due_at", "events", "job_id", "last_at", "lease", "leases", "queue", "restart", "run_id", "scheduled_for",
        "state", "token", "version", "waiting_events", "was_completed",
    )  # fmt: skip

    def __init__(self, run_id: str, job_id: str) -> None:
        self.run_id, self.job_id = run_id, job_id
        self.events: deque[RunEvent] = deque(maxlen=_KEPT_EVENTS)
        self.waiting_events: list[RunEvent] = []
        self.state: State = "unmade"
        self.version = 0
        self.token: int | None = None
        self.lease: RunEvent | None = None
        self.leases = 0
        self.restart: Restart | None = None
        self.was_completed = False
        self.due_at: datetime | None = None
        self.scheduled_for: datetime | None = None
        self.last_at: datetime | None = None
        self.queue = ""

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def nominal(self) -> datetime | None:
        """The occurrence that the run is of; None of one beside the schedule."""
        at = self.scheduled_for
        return at if at is not None and is_of_schedule(self.run_id, self.job_id, at) else None

    def knows(self, event: RunEvent) -> bool:
        """Whether this very event was seen before: it was delivered twice."""
        if event.version > self.version:
            return any(each.event_id == event.event_id for each in self.waiting_events)
        forgotten = len(self.events) == _KEPT_EVENTS and event.version < self.events[0].version
        return forgotten or any(each.event_id == event.event_id for each in self.events)

    def apply(self, event: RunEvent) -> None:
        """It happened, whether or not it should have."""
        if event.type == "run_leased":
            self.leases += 1
            self.lease, self.token = event, max(event.token or 0, self.token or 0)
        elif event.type != "run_cancel_requested":
            self._end_lease(event)
            if event.due_at is not None:
                self.due_at = event.due_at
        self.was_completed = self.was_completed or event.type == "run_completed"
        self.state = _STATE_AFTER.get(event.type, self.state)
        self.version = max(self.version, event.version)
        self.scheduled_for = event.scheduled_for or self.scheduled_for
        self.last_at, self.queue = event.at, event.queue
        self.events.append(event)

    def _end_lease(self, event: RunEvent) -> None:
        if self.state == "dead":
            self.restart = "replayed"
        elif event.type == "run_released":
            self.restart = "given back"
        elif event.type in ("run_retried", "run_dead") or (event.type == "run_held" and event.token is not None):
            self.restart = "expired" if event.reason in EXPIRIES else "failed"
        elif event.type in ("run_completed", "run_cancelled", "run_skipped"):
            self.restart = None
        self.lease = None
