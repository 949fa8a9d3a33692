"""The bodies of what a file of declared jobs is planned and applied with, and of what a forecast is made from.

The rules of schemas/http.py hold here too.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import Meta, Raw

from schemas.commands import Name
from schemas.http import Answer, JobView, Request


class DeclaredQuery(Request):
    """GET /v1/jobs, in its query string: the jobs of a set, deleted ones too. after: the `next` of the page before."""

    declared_set: Name
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 200
    after: UUID | None = None


class DeclaredJobView(JobView, kw_only=True):
    """A job and how many runs a change to it would meet."""

    pending_runs: int
    leased_runs: int
    held_runs: int


class DeclaredPage(Answer, kw_only=True):
    """In the order of their ids. next: what to give as `after` for the next page; None on the last.

    tzdata: the version of the time zones that the server decides with.
    """

    jobs: list[DeclaredJobView]
    tzdata: str
    next: UUID | None


class Whoami(Answer, kw_only=True):
    """GET /v1/whoami. queues: those that the token is scoped to; None: all of the tenant's."""

    tenant: str
    role: str
    queues: list[str] | None


class LiveQuery(Request):
    """GET /v1/schedules, in its query string. after: the `next` of the page before."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    after: UUID | None = None


class LiveSchedule(Answer, kw_only=True):
    """When an active job fires. next_run_at: its pending occurrence."""

    job_id: UUID
    queue: str
    schedule: Raw
    created_at: datetime
    next_run_at: datetime


class LivePage(Answer, kw_only=True):
    """As DeclaredPage, of all jobs that will fire."""

    schedules: list[LiveSchedule]
    tzdata: str
    next: UUID | None
