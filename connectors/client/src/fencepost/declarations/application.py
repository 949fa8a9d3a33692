"""Applying a plan: each of its steps at most once, and none of them to a job that has moved since."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from fencepost.client import FencepostClient
from fencepost.declaration_client import DeclaredJob
from fencepost.declarations.base import base_of
from fencepost.declarations.definitions import definition_found, spec_of, with_opened_payload
from fencepost.declarations.errors import PlanMoved
from fencepost.declarations.plan import JobPlan, Plan
from fencepost.errors import Refused
from fencepost.job_spec import JobSpec
from fencepost.models import CommandAnswer
from fencepost.sealing import PayloadCodec, sealed_spec

AT_ONCE = 32
APPLIED_WITHIN_S = 30.0


class Application(NamedTuple):
    """What became of the steps, by the jobs' names. already: it was as wanted before.

    waiting: the server has the command, but did not see it applied in time. refused: what the server said no to, with
    its reason; be it that the job moved while we were at it.
    """

    done: list[str]
    already: list[str]
    waiting: list[str]
    refused: dict[str, str]

    @property
    def complete(self) -> bool:
        return not self.waiting and not self.refused


async def found_jobs(
    client: FencepostClient, set_name: str, codec: PayloadCodec | None = None
) -> tuple[list[DeclaredJob], str]:
    """All jobs of a set, deleted ones too, and the version of the server's time zones. codec: opens their payloads."""
    page = await client.declared_jobs(set_name)
    jobs = list(page.jobs)
    while page.next is not None:
        page = await client.declared_jobs(set_name, after=page.next)
        jobs += page.jobs
    return [with_opened_payload(job, codec) for job in jobs], page.tzdata


async def apply_plan(
    client: FencepostClient,
    plan: Plan,
    *,
    codec: PayloadCodec | None = None,
    on_step: Callable[[], object] = lambda: None,
    applied_within_s: float = APPLIED_WITHIN_S,
) -> Application:
    """Make the plan true, unless its base has moved. codec: seals payloads; the client has none.

    Every step goes under an idempotency key of its own plan and at the job's version of the plan, so that applying it
    again, also after it broke off, does only what is missing. Raises PlanMoved before anything is done.
    """
    found = {job.job_id: job for job in (await found_jobs(client, plan.set, codec))[0]}
    if moved := moved_jobs(plan, found):
        raise PlanMoved(moved)
    application, room = Application([], [], [], {}), asyncio.Semaphore(AT_ONCE)

    async def step(job: JobPlan) -> None:
        async with room:
            await _step(client, plan, job, found, application, applied_within_s, codec)
        on_step()

    await _all_or_first_error([asyncio.create_task(step(job)) for job in plan.actions()])
    return application


async def _all_or_first_error(steps: Sequence[asyncio.Task[None]]) -> None:
    """Not a task group, whose errors come in groups: when the server is away, one of them says all."""
    try:
        await asyncio.gather(*steps)
    finally:
        for step in steps:
            step.cancel()
        await asyncio.gather(*steps, return_exceptions=True)


def moved_jobs(plan: Plan, found: Mapping[UUID, DeclaredJob]) -> list[str]:
    """A line about each job that is not as the plan found it, unless it is as the plan wants it."""
    then = {job.job_id: job for job in plan.base}
    now = {job.job_id: job for job in base_of(found.values())}
    planned = {job.job_id: job for job in plan.jobs}
    actions = {job.job_id for job in plan.actions()}
    moved = []
    for job_id in sorted(then.keys() | now.keys()):
        before, after, job = then.get(job_id), now.get(job_id), planned.get(job_id)
        if before == after or (job and job.job_id in actions and is_done(job, found.get(job_id))):
            continue
        name = job.name if job else found[job_id].declared_as if job_id in found else "?"
        was = f"was {before.state} at version {before.version}" if before else "was not there"
        is_now = f"is {after.state} at version {after.version}" if after else "is not there"
        moved.append(f"{name} ({job_id}) {was}, {is_now}")
    return moved


def is_done(job: JobPlan, found: DeclaredJob | None) -> bool:
    """Whether the server has what the plan wants of the job."""
    if job.action == "remove":
        return found is None or found.state == "deleted"
    if found is None or found.state == "deleted":
        return False
    return job.definition is not None and definition_found(found) == job.definition


async def _step(
    client: FencepostClient,
    plan: Plan,
    job: JobPlan,
    found: Mapping[UUID, DeclaredJob],
    application: Application,
    applied_within_s: float,
    codec: PayloadCodec | None,
) -> None:
    if is_done(job, found.get(job.job_id)):
        application.already.append(job.name)
        return
    give_up_at = time.monotonic() + applied_within_s
    # Once: a codec may make another ciphertext each time, and under the same key that would be another command.
    spec = sealed_spec(spec_of(job.definition, f"{plan.set}/{job.name}"), codec) if job.definition else None
    try:
        while not (await _send(client, plan, job, spec)).applied:
            if time.monotonic() >= give_up_at:
                application.waiting.append(job.name)
                return
    except Refused as error:
        application.refused[job.name] = str(error)
        return
    application.done.append(job.name)


async def _send(client: FencepostClient, plan: Plan, job: JobPlan, spec: JobSpec | None) -> CommandAnswer:
    """The step's command. Sent again, it waits for the same effect. spec: as it leaves."""
    key = f"plan {plan.hash}"
    if job.action == "remove":
        return await client.delete_job(job.job_id, if_version=job.version, idempotency_key=key)
    assert spec is not None
    if job.action == "add":
        return await client.create_job(spec, idempotency_key=job.key)
    return await client.update_job(job.job_id, spec, if_version=job.version, idempotency_key=key)
