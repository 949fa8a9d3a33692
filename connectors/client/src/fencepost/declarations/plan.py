"""A plan: what applying a file would do to the server's jobs, to their occurrences and runs, and to the load. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from msgspec import Struct

from fencepost.declaration_client import DeclaredJob
from fencepost.declarations.base import BaseJob, base_of
from fencepost.declarations.definitions import Definition, FieldChange, definition_found, differences
from fencepost.declarations.job_fates import Action, JobFate, job_fates
from fencepost.declarations.job_file import DeclaredSet
from fencepost.declarations.load import Load, Minutes
from fencepost.declarations.occurrences import Moved, changes
from fencepost.declarations.plan_hash import plan_hash


class Occurrences(Struct, rename="camel", frozen=True, kw_only=True):
    """What becomes of a job's occurrences in the horizon: every one that changes, and how many do not.

    zone: what moved was paired day by day on its clock, in the order of time.
    """

    zone: str
    unchanged: int
    added: list[datetime]
    removed: list[datetime]
    moved: list[Moved]


class JobPlan(Struct, rename="camel", frozen=True, kw_only=True):
    """What becomes of one job.

    definition: the wanted one; None of a job that is not in the file. key: what a new job's id is made of. version: the
    job's, which an update or a delete is made for. pending_before, pending_after: the occurrence of its pending run (of
    a paused job: of its held run).
    """

    name: str
    job_id: UUID
    action: Action
    state: Literal["new", "active", "paused"]
    definition: Definition | None
    key: str | None
    version: int | None
    fields: list[FieldChange]
    occurrences: Occurrences
    pending_before: datetime | None
    pending_after: datetime | None
    pending_runs: int
    leased_runs: int
    held_runs: int


class Plan(Struct, rename="camel", frozen=True, kw_only=True):
    """start, end: the horizon is (start, end]. base: what the plan was made from. sealed: payloads leave encrypted."""

    hash: str
    tenant: str
    set: str
    prune: bool
    start: datetime
    end: datetime
    base: list[BaseJob]
    jobs: list[JobPlan]
    load_before: Load
    load_after: Load
    sealed: bool = False

    def actions(self) -> list[JobPlan]:
        """The jobs for which something is to be done."""
        return [job for job in self.jobs if job.action in ("add", "change", "remove")]


def make_plan(
    declared: DeclaredSet,
    found: Sequence[DeclaredJob],
    *,
    tenant: str,
    start: datetime,
    horizon: timedelta,
    prune: bool = False,
    on_job: Callable[[], object] = lambda: None,
) -> Plan:
    """Compare a file's set with all jobs of the set that the server has.

    on_job: called after each job, for large sets. Raises InvalidInput for a job that could never fire.
    """
    end, base = start + horizon, base_of(found)
    before, after = Minutes(Counter()), Minutes(Counter())
    jobs = []
    for fate in job_fates(declared, found, tenant=tenant, prune=prune):
        jobs.append(_job_plan(fate, start, end, before, after))
        on_job()
    return Plan(
        hash=plan_hash(tenant, declared, base, prune=prune, start=start),
        tenant=tenant,
        set=declared.name,
        prune=prune,
        start=start,
        end=end,
        base=base,
        jobs=jobs,
        load_before=before.load(),
        load_after=after.load(),
        sealed=declared.sealed,
    )


def _job_plan(fate: JobFate, start: datetime, end: datetime, before: Minutes, after: Minutes) -> JobPlan:
    """The job's plan; its occurrences are counted in the two loads on the way, as a large set has very many."""
    pending_after, found = fate.pending_after(start), fate.found
    old = fate.occurrences_before(start, end)
    new = old if fate.keeps_time else fate.occurrences_after(start, end)
    schedule_before = fate.schedule_found
    schedule_after = fate.schedule_wanted or schedule_before
    if schedule_before is not None:
        before.add(schedule_before, old, start, fate.job_id)
    if schedule_after is not None:
        after.add(schedule_after, new, start, fate.job_id)
    changed = changes(old, new, fate.zone)
    return JobPlan(
        name=fate.name,
        job_id=fate.job_id,
        action=fate.action,
        state="new" if found is None else "paused" if found.state == "paused" else "active",
        definition=fate.wanted,
        key=fate.key,
        version=found.version if found else None,
        fields=list(differences(definition_found(found), fate.wanted)) if found and fate.wanted else [],
        occurrences=Occurrences(
            zone=fate.zone,
            unchanged=len(changed.unchanged),
            added=changed.added,
            removed=changed.removed,
            moved=changed.moved,
        ),
        pending_before=found.next_run_at if found else None,
        pending_after=pending_after,
        pending_runs=found.pending_runs if found else 0,
        leased_runs=found.leased_runs if found else 0,
        held_runs=found.held_runs if found else 0,
    )
