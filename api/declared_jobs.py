"""GET /v1/jobs?declaredSet=…: the jobs that a file owns, as a plan compares them with the file."""

from __future__ import annotations

from itertools import chain

import msgspec

from api.endpoints import Call
from api.jobs import job_view
from ledger.declarations import DeclaredJob, read_declared_jobs
from ledger.shards import Shards
from schemas.http_declarations import DeclaredJobView, DeclaredPage, DeclaredQuery
from schemas.zones import TZDATA_VERSION


class DeclaredJobs:
    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def list(self, call: Call[DeclaredQuery]) -> DeclaredPage:
        """List the jobs of a set, page by page; a token that is scoped to queues sees the jobs of these."""
        identity, query = call.identity, call.body
        queues = None if identity.queues is None else sorted(identity.queues)
        found = await self._shards.ask_all(
            lambda conn: read_declared_jobs(
                conn, identity.tenant, query.declared_set, queues=queues, after=query.after, limit=query.limit + 1
            )
        )
        jobs = sorted(chain.from_iterable(found), key=lambda declared: declared.job.job_id)
        page = jobs[: query.limit]
        after = page[-1].job.job_id if len(jobs) > len(page) else None
        return DeclaredPage(jobs=[declared_view(declared) for declared in page], tzdata=TZDATA_VERSION, next=after)


def declared_view(declared: DeclaredJob) -> DeclaredJobView:
    view = msgspec.structs.asdict(job_view(declared.job))
    return DeclaredJobView(
        **view,
        pending_runs=declared.pending_runs,
        leased_runs=declared.leased_runs,
        held_runs=declared.held_runs,
    )
