"""Schedules from a file instead of a server: jobs.yaml, or a line of JSON for each.

A line is {"expr", "zone"} or {"schedule"}, the latter as POST /v1/jobs takes it; both may have "queue" and "jobId", and
"count": so many jobs have it. What else is in a line is passed over. A line of another form is refused, not the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from fencepost.declarations.job_file import DeclaredSet, declared_key, read_job_file
from fencepost.errors import InvalidInput
from fencepost.forecast.schedule_set import ScheduledJob, ScheduleSet
from fencepost.ids import idempotent_id
from fencepost.job_spec import Name
from fencepost.schedules.errors import InvalidSchedule

OFFLINE_TENANT = "nobody"
LINES = (".jsonl", ".ndjson", ".json")


class Line(Struct, rename="camel"):
    expr: str | UnsetType = UNSET
    zone: str | None = None
    schedule: Raw | UnsetType = UNSET
    queue: Name = "default"
    job_id: str | None = None
    count: Annotated[int, Meta(ge=1)] = 1


def add_file(found: ScheduleSet, file: Path, *, tenant: str = OFFLINE_TENANT, set_name: str | None = None) -> None:
    """Take a file's schedules in. Raises InvalidInput for a file that cannot be read, and for a wrong jobs.yaml."""
    if file.suffix in LINES:
        _add_lines(found, file)
        return
    for job in declared_jobs(read_job_file(file, tenant=tenant, set_name=set_name), found.start, tenant):
        found.add(job)


def declared_jobs(declared: DeclaredSet, start: datetime, tenant: str) -> Iterator[ScheduledJob]:
    """A set's jobs, as if they were created at start."""
    for name, definition in declared.jobs.items():
        job_id = str(idempotent_id(tenant, declared_key(declared.name, name)))
        schedule = msgspec.json.encode(definition["schedule"])
        yield ScheduledJob(job_id, definition["queue"], schedule, start)


def _add_lines(found: ScheduleSet, file: Path) -> None:
    decoder = msgspec.json.Decoder(Line)
    try:
        with file.open("rb") as lines:
            for number, text in enumerate(lines, start=1):
                if text.strip():
                    _add_line(found, decoder, text, number)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from error


def _add_line(found: ScheduleSet, decoder: msgspec.json.Decoder[Line], text: bytes, number: int) -> None:
    try:
        line = decoder.decode(text)
        job_id = line.job_id or str(idempotent_id(OFFLINE_TENANT, str(number)))
        found.add(ScheduledJob(job_id, line.queue, _schedule(line), found.start, copies=line.count))
    except (InvalidSchedule, msgspec.DecodeError, UnicodeError) as error:
        found.refuse(f"line {number}: {error}")


def _schedule(line: Line) -> bytes:
    if isinstance(line.schedule, Raw):
        return bytes(line.schedule)
    form: dict[str, Any] = {"cron": line.expr} if line.expr is not UNSET else {}
    return msgspec.json.encode(form | ({"zone": line.zone} if line.zone else {}))
