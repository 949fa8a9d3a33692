"""What a file of declared jobs is planned with by HTTP: who we are, and the jobs of a set."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlencode
from uuid import UUID

from msgspec import Struct

from fencepost.base_client import BaseClient
from fencepost.job_spec import Name, convert
from fencepost.models import Job

PAGE = 500


class Whoami(Struct, frozen=True, kw_only=True):
    """Whom a token speaks for. queues: those that it is scoped to; None: all of the tenant's."""

    tenant: str
    role: Literal["producer", "worker", "operator", "admin"]
    queues: list[str] | None = None


class DeclaredJob(Job, rename="camel", kw_only=True, frozen=True):
    """A job of a set. pending_runs, leased_runs, held_runs: what of it a change would meet."""

    version: int
    created_at: datetime
    declared_as: str
    pending_runs: int = 0
    leased_runs: int = 0
    held_runs: int = 0


class DeclaredPage(Struct, frozen=True):
    """next: what to give as `after` for the next page; None on the last. tzdata: the server's time zones."""

    jobs: list[DeclaredJob]
    tzdata: str
    next: UUID | None = None


class DeclarationClient(BaseClient):
    """The calls behind `fencepost plan` and `fencepost apply`."""

    async def whoami(self) -> Whoami:
        """Whom the token speaks for."""
        return await self._get("/v1/whoami", Whoami)

    async def declared_jobs(self, declared_set: str, *, after: UUID | None = None) -> DeclaredPage:
        """A page of a set's jobs in the order of their ids, deleted ones too: their ids are used up.

        after: the `next` of the page before.
        """
        query: dict[str, Any] = {"declaredSet": convert(declared_set, Name), "limit": PAGE}
        query |= {} if after is None else {"after": after}
        return await self._get(f"/v1/jobs?{urlencode(query)}", DeclaredPage)
