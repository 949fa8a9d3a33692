"""What the history and the topic `run-events` tell, as the rules read it.

Instants are aware datetimes by the ledger's clock. Ids are text, so that nothing is converted that is only compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

# Of occurrences that made no run: one event a range, of the job.
RANGE_SKIPPED = "occurrences_skipped"


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something happened to a run. version: grows by one with every event of the run."""

    event_id: str
    type: str
    at: datetime
    job_id: str
    run_id: str
    version: int
    token: int | None = None
    worker: str | None = None
    due_at: datetime | None = None
    expires_at: datetime | None = None
    scheduled_for: datetime | None = None
    reason: str | None = None
    queue: str = ""
    attempt: int | None = None
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something happened to a job, or to a range of its occurrences.

    first: of a range its first occurrence, else the job's creation. last: of a range its last one, else the occurrence
    that is pending from now on. count: of a range. definition: as JSON; a range has none.
    """

    event_id: str
    type: str
    at: datetime
    job_id: str
    version: int
    first: datetime | None = None
    last: datetime | None = None
    reason: str | None = None
    count: int | None = None
    definition: str | None = None
    queue: str = ""
    tenant: str = ""


Event = RunEvent | JobEvent


def event_from(record: Mapping[str, Any]) -> Event:
    """An event from the fields of its Avro record, times as aware datetimes."""
    if record["runId"] is None:
        return JobEvent(
            event_id=record["eventId"],
            type=record["type"],
            at=record["at"],
            job_id=record["jobId"],
            version=record["version"],
            first=record["scheduledFor"],
            last=record["dueAt"],
            reason=record["reason"],
            count=record["count"],
            definition=record["definition"],
            queue=record["queue"],
            tenant=record["tenant"],
        )
    return RunEvent(
        event_id=record["eventId"],
        type=record["type"],
        at=record["at"],
        job_id=record["jobId"],
        run_id=record["runId"],
        version=record["version"],
        token=record["leaseToken"],
        worker=record["workerId"],
        due_at=record["dueAt"],
        expires_at=record["leaseExpiresAt"],
        scheduled_for=record["scheduledFor"],
        reason=record["reason"],
        queue=record["queue"],
        attempt=record["attempt"],
        tenant=record["tenant"],
    )


def instant_text(instant: datetime) -> str:
    """RFC 3339 in UTC."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
