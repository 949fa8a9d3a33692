"""Events as timing state reads them, at instants counted in microseconds from a start."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from schemas.events import Event
from schemas.ids import run_id_for
from streams.timers import from_us

START_US = 1_700_000_000_000_000
PARTITION = 3
EVERY_SECOND = '{"schedule":{"everySeconds":1}}'


def job_id(number: int) -> UUID:
    return UUID(int=number + 1)


def occurrence(job: int, at_us: int) -> UUID:
    """The run of a job's occurrence."""
    return run_id_for(job_id(job), from_us(at_us), PARTITION)


def run_event(kind: str, run_id: UUID, version: int, *, job: int = 0, **fields: Any) -> Event:
    return Event(kind, job_id(job).bytes, run_id.bytes, version, "acme", "mail", "normal", **fields)


def scheduled(run_id: UUID, version: int, due_us: int, *, job: int = 0, at_us: int | None = None) -> Event:
    nominal_us = due_us if at_us is None else at_us
    return run_event("run_scheduled", run_id, version, job=job, due_us=due_us, scheduled_us=nominal_us)


def leased(run_id: UUID, version: int, expires_us: int) -> Event:
    return run_event("run_leased", run_id, version, expires_us=expires_us)


def gone(run_id: UUID, version: int, kind: str = "run_completed") -> Event:
    return run_event(kind, run_id, version)


def job_event(kind: str, job: int, version: int, cursor_us: int | None, definition: str = EVERY_SECOND) -> Event:
    return Event(
        kind,
        job_id(job).bytes,
        None,
        version,
        scheduled_us=START_US,
        due_us=cursor_us,
        definition=definition,
    )
