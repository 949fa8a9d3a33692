"""What of the server's jobs a plan is made from."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from msgspec import Struct

from fencepost.declaration_client import DeclaredJob


class BaseJob(Struct, rename="camel", frozen=True, order=True):
    """A job of the set as the plan found it, be it deleted."""

    job_id: UUID
    version: int
    state: str


def base_of(found: Iterable[DeclaredJob]) -> list[BaseJob]:
    return sorted(BaseJob(job.job_id, job.version, job.state) for job in found)
