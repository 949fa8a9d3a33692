"""Sets to plan with: what a file says, and what a server would say of its jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from fencepost.declaration_client import DeclaredJob
from fencepost.declarations.job_file import DeclaredSet, declared_key, parse_job_file
from fencepost.declarations.plan import JobPlan, Plan, make_plan
from fencepost.ids import idempotent_id
from fencepost.schedules.schedule import first_fire, parse_schedule

TENANT = "acme"
START = datetime(2026, 3, 2, 10, 30, tzinfo=UTC)  # a Monday
WEEK = timedelta(days=7)


def declared(text: str, *, file: str = "billing.yaml", set_name: str | None = None) -> DeclaredSet:
    return parse_job_file(text, file=file, tenant=TENANT, set_name=set_name)


def job(schedule: str, **fields: Any) -> str:
    """A job's flow-style YAML."""
    more = "".join(f", {name}: {value}" for name, value in fields.items())
    return f"{{queue: mail, schedule: {schedule}{more}}}"


def jobs(**named: str) -> DeclaredSet:
    """A set of these jobs."""
    return declared("jobs:\n" + "".join(f"  {name}: {body}\n" for name, body in named.items()) if named else "jobs: {}")


def served(
    of: DeclaredSet,
    name: str,
    *,
    state: str = "active",
    version: int = 1,
    generation: int = 1,
    created_at: datetime = START - WEEK,
    **fields: Any,
) -> DeclaredJob:
    """The job as the server has it, a week after it was created."""
    job_id = idempotent_id(TENANT, declared_key(of.name, name, generation))
    definition = dict(of.jobs[name])
    schedule = parse_schedule(definition["schedule"], job_id=job_id)
    pending = first_fire(schedule, job_id=job_id, created_at=START)
    names = {each.encode_name: each.name for each in msgspec.structs.fields(DeclaredJob)}
    return DeclaredJob(
        **{names[key]: value for key, value in definition.items()},
        job_id=job_id,
        state=state,  # type: ignore[arg-type]
        version=version,
        created_at=created_at,
        next_run_at=fields.pop("next_run_at", None if state == "deleted" else pending),
        declared_as=f"{of.name}/{name}",
        **fields,
    )


def planned(of: DeclaredSet, *found: DeclaredJob, prune: bool = False, horizon: timedelta = WEEK) -> Plan:
    return make_plan(of, found, tenant=TENANT, start=START, horizon=horizon, prune=prune)


def job_planned(plan: Plan, name: str) -> JobPlan:
    [found] = [each for each in plan.jobs if each.name == name]
    return found
