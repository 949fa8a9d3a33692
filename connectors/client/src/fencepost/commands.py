"""Job commands as the fields of their Avro records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from fencepost.errors import InvalidInput
from fencepost.ids import new_id
from fencepost.job_spec import JobSpec, payload_text, spec_fields

Record = dict[str, Any]

_INSTANTS = ("anchor", "runAt", "startAt", "endAt")


def job_command(tenant: str, job_id: UUID, command_id: UUID | None = None) -> Record:
    """The fields that every command has, and pause, resume and delete no others."""
    return {
        "commandId": str(command_id or new_id()),
        "tenant": tenant,
        "jobId": str(job_id),
        "issuedAt": datetime.now(UTC),
    }


def create_command(tenant: str, job_id: UUID, spec: JobSpec) -> Record:
    """A CreateJob. Raises InvalidInput naming the field."""
    return job_command(tenant, job_id) | _spec_record(spec)


def update_command(
    tenant: str, job_id: UUID, spec: JobSpec, effective_from: datetime | None, command_id: UUID | None
) -> Record:
    """An UpdateJob. Raises InvalidInput naming the field."""
    starts = {"effectiveFrom": _aware("effectiveFrom", effective_from)}
    return job_command(tenant, job_id, command_id) | _spec_record(spec) | starts


def trigger_command(tenant: str, job_id: UUID, payload: Any, command_id: UUID | None) -> Record:
    """A TriggerJob; payload None is the job's own."""
    text = None if payload is None else payload_text(payload)
    return job_command(tenant, job_id, command_id) | {"payload": text}


def backfill_command(
    tenant: str, job_id: UUID, after: datetime, through: datetime, payload: Any, command_id: UUID | None
) -> Record:
    """A BackfillJob; payload None is the job's own."""
    text = None if payload is None else payload_text(payload)
    span = {"from": _aware("from", after), "to": _aware("to", through)}
    return job_command(tenant, job_id, command_id) | span | {"payload": text}


def run_command(tenant: str, job_id: UUID, run_id: UUID, command_id: UUID | None) -> Record:
    """A CancelRun; the start of a ReplayRun."""
    return job_command(tenant, job_id, command_id) | {"runId": str(run_id)}


def replay_command(tenant: str, job_id: UUID, run_id: UUID, due_at: datetime | None, command_id: UUID | None) -> Record:
    """A ReplayRun. Raises InvalidInput for an instant without a zone."""
    return run_command(tenant, job_id, run_id, command_id) | {"dueAt": _aware("dueAt", due_at)}


def _spec_record(spec: JobSpec) -> Record:
    fields = spec_fields(spec)
    fields["schedule"] = _schedule_record(fields["schedule"])
    if spec.payload is not None:
        fields["payload"] = payload_text(spec.payload)
    return fields


def _aware(field: str, instant: datetime | None) -> datetime | None:
    # Avro would take a naive one for a time of this machine's zone.
    if instant is not None and instant.tzinfo is None:
        raise InvalidInput(f"{instant.isoformat()} has no zone", field=field)
    return instant


def _schedule_record(schedule: Record) -> Record:
    record = {"excludeDates": [], **schedule}
    for key in _INSTANTS:
        if key in record:
            record[key] = datetime.fromisoformat(record[key])
    return record
