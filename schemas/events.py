"""Run events: what happened, as every consumer of `fencepost.run-events` reads it.

Consumers read them by the hundred thousand, so each takes only the fields that it needs (schemas/event_rows.py). What
is known about their kinds is here, and what the owners of partitions take.
"""

from __future__ import annotations

from typing import NamedTuple

JOB_EVENTS = frozenset({"job_created", "job_updated", "job_paused", "job_resumed", "job_deleted"})
# Of a job too, but without its definition: occurrences that made no run, as a range. It grows the job's version.
RANGE_EVENTS = frozenset({"occurrences_skipped"})
# A run that waits for its due time after the event, is leased, or is out of an owner's sight.
WAITING_EVENTS = frozenset({"run_scheduled", "run_retried", "run_released"})
LEASED_EVENTS = frozenset({"run_leased", "run_cancel_requested"})
# The reason of a run_scheduled: the run is made up for, and due when its queue's rate lets it.
SPREAD = "catch-up spread"
GONE_EVENTS = frozenset({"run_held", "run_completed", "run_dead", "run_cancelled", "run_skipped"})


class Event(NamedTuple):
    """What an owner takes of an event. Ids are 16 bytes, instants microseconds since 1970.

    Of a job's event due_us is its pending occurrence and scheduled_us when the job was created.
    """

    type: str
    job_id: bytes
    run_id: bytes | None
    version: int
    tenant: str = ""
    queue: str = ""
    lane: str = "normal"
    scheduled_us: int | None = None
    due_us: int | None = None
    expires_us: int | None = None
    definition: str | None = None
    gated: bool = False
