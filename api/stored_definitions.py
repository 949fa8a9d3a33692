"""A job's definition as the ledger and the history keep it, read back.

A newer server may have stored what this one does not know: it is shown as it stands. Only what cannot be told at all is
refused, as a conflict with the job's state: nothing is wrong with the call.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from api.problems import Problem
from schemas.errors import InvalidSchedule
from schemas.schedule import Schedule, parse_schedule


class StoredSpec(Struct, rename="camel", kw_only=True):
    """The fields of schemas.commands.JobSpec that have no column of their own, whatever their values."""

    schedule: dict[str, Any]
    name: str | None = None
    timeout_seconds: float | None = None
    catch_up: str = "latest"
    overlap: str = "allow"
    start_deadline_seconds: float | None = None
    retry_backoff: str = "exponential"
    retry_base_seconds: float = 1.0
    retry_max_seconds: float = 600.0
    catch_up_limit: int = 1_000
    declared_as: str | None = None
    concurrency_key: str | None = None


def stored_spec(job_id: UUID, definition: str) -> StoredSpec:
    """Raises Problem 409 for one that this server cannot read."""
    try:
        return msgspec.json.decode(definition, type=StoredSpec)
    except msgspec.DecodeError as error:
        raise _unreadable(job_id, error) from None


def stored_schedule(job_id: UUID, definition: str) -> Schedule:
    """Raises Problem 409 for one that this server cannot read."""
    try:
        return parse_schedule(stored_spec(job_id, definition).schedule, job_id=job_id)
    except InvalidSchedule as error:
        raise _unreadable(job_id, error) from None


def _unreadable(job_id: UUID, error: Exception) -> Problem:
    remedy = "run the newest server everywhere, or give the job another definition"
    return Problem(409, f"this server cannot read the stored definition of job {job_id}: {error}; {remedy}")
