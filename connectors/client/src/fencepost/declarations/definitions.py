"""A job's definition in one canonical form, whether it comes from a file or from the server.

    {"queue": "mail", "schedule": {"cron": "0 9 * * *", "zone": "UTC"}, "lane": "normal", …}

It has every field of JobSpec but `declaredAs`, under its JSON name and with its default, so that two definitions mean
the same exactly when they are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from fencepost.declaration_client import DeclaredJob
from fencepost.errors import InvalidInput, PermanentFailure
from fencepost.job_spec import JobSpec, parse_spec, payload_text
from fencepost.schedules.errors import InvalidSchedule
from fencepost.schedules.schedule import Delay, Schedule, parse_schedule, to_json
from fencepost.schedules.schedule_kinds import Every
from fencepost.sealing import PayloadCodec, opened

Definition = dict[str, Any]

# An interval counts from here unless the file says otherwise, so that its times do not depend on when it is applied.
ANCHOR = datetime(1970, 1, 1, tzinfo=UTC)

_FIELDS = [field for field in msgspec.structs.fields(JobSpec) if field.name != "declared_as"]


class FieldChange(Struct, frozen=True):
    """A field, dotted, and its two values; None for a value that is not there."""

    field: str
    before: Any
    after: Any


def definition_of(fields: Any, job_id: UUID) -> Definition:
    """The definition that a file's JSON-like fields mean.

    Raises InvalidInput, with the dotted field, for everything that cannot be right.
    """
    if not isinstance(fields, Mapping):
        raise InvalidInput("a job is a mapping with a queue and a schedule")
    if "declaredAs" in fields:
        raise InvalidInput("is made of the names of the set and of the job", field="declaredAs")
    schedule = _schedule(fields.get("schedule"), job_id)
    spec = parse_spec({**fields, "schedule": to_json(schedule)})
    if spec.payload is not None:
        payload_text(spec.payload)
    definition = {field.encode_name: getattr(spec, field.name) for field in _FIELDS}
    return definition | {"schedule": to_json(schedule)}


def _schedule(form: Any, job_id: UUID) -> Schedule:
    try:
        schedule = parse_schedule(form, job_id=job_id)
    except InvalidSchedule as error:
        field = "schedule" if error.field in (None, "schedule") else f"schedule.{error.field}"
        raise InvalidInput(error.message, field=field) from error
    if isinstance(schedule, Delay):
        told = "counts from the moment of its command, which no plan can know; use runAt"
        raise InvalidInput(told, field="schedule.delaySeconds")
    if isinstance(schedule, Every) and schedule.anchor is None:
        schedule = msgspec.structs.replace(schedule, anchor=ANCHOR)
    return schedule


def spec_of(definition: Definition, declared_as: str) -> JobSpec:
    """What to send for it."""
    given = {name: value for name, value in definition.items() if value is not None}
    return parse_spec({**given, "declaredAs": declared_as})


def with_opened_payload(job: DeclaredJob, codec: PayloadCodec | None) -> DeclaredJob:
    """The job as its file would say it. A payload that was not sealed with this key is told apart from the same one
    that was, so that a plan seals it.
    """
    if codec is None or job.payload is None:
        return job
    try:
        payload = opened(job.payload, codec)
    except PermanentFailure:
        payload = {"notSealed": job.payload}
    return msgspec.structs.replace(job, payload=payload)


def definition_found(job: DeclaredJob) -> Definition:
    """The server's definition of a job."""
    return {field.encode_name: getattr(job, field.name) for field in _FIELDS}


def differences(before: Any, after: Any, path: str = "") -> Iterator[FieldChange]:
    """Field by field, down to what is no mapping."""
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        if before != after:
            yield FieldChange(path, before, after)
        return
    for name in dict.fromkeys((*before, *after)):
        yield from differences(before.get(name), after.get(name), f"{path}.{name}" if path else str(name))
