"""Job commands as the fields of their Avro records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

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
    fields = spec_fields(spec)
    fields["schedule"] = _schedule_record(fields["schedule"])
    if spec.payload is not None:
        fields["payload"] = payload_text(spec.payload)
    return job_command(tenant, job_id) | fields


def trigger_command(tenant: str, job_id: UUID, payload: Any, command_id: UUID | None) -> Record:
    """A TriggerJob; payload None is the job's own."""
    text = None if payload is None else payload_text(payload)
    return job_command(tenant, job_id, command_id) | {"payload": text}


def _schedule_record(schedule: Record) -> Record:
    record = {"excludeDates": [], **schedule}
    for key in _INSTANTS:
        if key in record:
            record[key] = datetime.fromisoformat(record[key])
    return record
