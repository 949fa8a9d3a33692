"""Run events: what happened, as every consumer of `fencepost.run-events` reads it.

An event is a plain mapping with the fields of io.fencepost.RunEvent: owners and the projector read them by the hundred
thousand, and a struct each would cost more than all they do with it. What is known about the fields is here.
"""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]

JOB_EVENTS = frozenset({"job_created", "job_updated", "job_paused", "job_resumed", "job_deleted"})
# Of a job too, but without its definition: occurrences that made no run, as a range. It grows the job's version.
RANGE_EVENTS = frozenset({"occurrences_skipped"})
# A run that waits for its due time after the event, is leased, or is out of an owner's sight.
WAITING_EVENTS = frozenset({"run_scheduled", "run_retried", "run_released"})
LEASED_EVENTS = frozenset({"run_leased", "run_cancel_requested"})
# The reason of a run_scheduled: the run is made up for, and due when its queue's rate lets it.
SPREAD = "catch-up spread"
GONE_EVENTS = frozenset({"run_held", "run_completed", "run_dead", "run_cancelled", "run_skipped"})
