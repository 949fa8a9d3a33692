"""Applying commands: what a batch of them makes of the partition's jobs and runs, in the owner's fenced transaction.

Set by set: the batch is cut into waves in which no job occurs twice, so that each wave is a handful of statements
however many commands it has, and the commands of one job still take effect in order.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from ledger.commands import APPLIED, UNCHANGED, Outcome, record_outcomes
from ledger.fence import OwnerTransaction
from ledger.jobs import (
    Job,
    NewJob,
    Resumption,
    create_jobs,
    delete_jobs,
    pause_jobs,
    read_jobs,
    resume_jobs,
)
from ledger.runs import ManualRun, PendingRun, trigger_jobs
from schemas.commands import (
    LANES,
    Command,
    CreateJob,
    DeleteJob,
    PauseJob,
    ResumeJob,
    TriggerJob,
    definition_json,
)
from schemas.errors import CommandRejected, InvalidSchedule, JobConflict, JobUnknown, NotSupported
from schemas.events import Event
from schemas.ids import run_id_for
from schemas.schedule import Recurring, due_at, first_fire, next_fire, parse_schedule

_DAWN = datetime(1970, 1, 1, tzinfo=UTC)  # timing state counts from here: no cursor may lie before


@dataclass(slots=True)
class Effects:
    """What a batch did: events for the timing state, and what became of each command."""

    events: list[Event] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    rejected: dict[UUID, CommandRejected] = field(default_factory=dict)

    def done(self, commands: Iterable[Command], outcome: str = APPLIED) -> None:
        self.outcomes += [Outcome(command.command_id, outcome) for command in commands]

    def reject(self, command: Command, error: CommandRejected) -> None:
        self.rejected[command.command_id] = error
        self.outcomes.append(Outcome(command.command_id, error.code, error.message, error.field))


async def apply_commands(tx: OwnerTransaction, commands: Sequence[Command]) -> Effects:
    """Apply commands of the transaction's partition, in order; nothing of a rejected one is written.

    commands: with distinct ids, none of them applied before. Raises EpochLost, LedgerUnavailable.
    """
    effects = Effects()
    for wave in waves(commands):
        jobs = await read_jobs(tx.conn, [command.job_id for command in wave])
        for kind, apply in _APPLIERS.items():
            if members := [command for command in wave if type(command) is kind]:
                await apply(tx, members, jobs, effects)
        for command in wave:
            if type(command) not in _APPLIERS:
                effects.reject(command, NotSupported(f"{type(command).__name__} is not carried out by this version"))
    if effects.outcomes:
        await record_outcomes(tx, effects.outcomes)
    return effects


def waves(commands: Iterable[Command]) -> list[list[Command]]:
    """Cut commands into as few lists as keep each job's order, with no job twice in a list."""
    cut: list[list[Command]] = []
    depth: dict[UUID, int] = {}
    for command in commands:
        level = depth.get(command.job_id, 0)
        depth[command.job_id] = level + 1
        if level == len(cut):
            cut.append([])
        cut[level].append(command)
    return cut


Jobs = dict[UUID, Job]


async def _create(tx: OwnerTransaction, commands: Sequence[CreateJob], jobs: Jobs, effects: Effects) -> None:
    new: list[NewJob] = []
    for command in commands:
        try:
            job = _new_job(tx, command)
            if command.job_id not in jobs:
                new.append(job)
                effects.done([command])
            else:
                _check_same(jobs[command.job_id], job)
                effects.done([command], UNCHANGED)
        except CommandRejected as error:
            effects.reject(command, error)
    runs = await create_jobs(tx, new) if new else []
    effects.events += [_job_created(job) for job in new] + [run_scheduled(run) for run in runs]


def _new_job(tx: OwnerTransaction, command: CreateJob) -> NewJob:
    spec = command.spec
    schedule = parse_schedule(spec.schedule, job_id=command.job_id)
    # A producer whose clock is ahead must not delay its job; one whose command waited loses no occurrence.
    created_at = max(min(command.issued_at, tx.now), _DAWN)
    fire = first_fire(schedule, job_id=command.job_id, created_at=created_at)
    if fire is None:
        raise InvalidSchedule("schedule", "the schedule never fires", "give it an occurrence in the future")
    return NewJob(
        command.job_id,
        command.tenant,
        spec.queue,
        LANES.index(spec.lane),
        definition_json(spec),
        spec.payload,
        spec.max_attempts,
        fire,
        created_at,
        run_id_for(command.job_id, fire, tx.fence.partition),
        due_at(schedule, fire, job_id=command.job_id),
    )


def _check_same(job: Job, wanted: NewJob) -> None:
    if job.tenant != wanted.tenant or job.state == "deleted":
        raise JobConflict(f"job id {job.job_id} was used before", field="jobId")
    if (job.definition, job.payload) != (wanted.definition, wanted.payload):
        raise JobConflict(f"job {job.job_id} exists with another definition", field="jobId")


async def _pause(tx: OwnerTransaction, commands: Sequence[PauseJob], jobs: Jobs, effects: Effects) -> None:
    active = _known(commands, jobs, effects, state="active")
    if active:
        await pause_jobs(tx, [command.job_id for command in active])


async def _resume(tx: OwnerTransaction, commands: Sequence[ResumeJob], jobs: Jobs, effects: Effects) -> None:
    paused = _known(commands, jobs, effects, state="paused")
    if not paused:
        return
    resumptions = [_resumption(tx, jobs[command.job_id]) for command in paused]
    runs = await resume_jobs(tx, resumptions)
    cursors = {each.job_id: each.next_fire_at for each in resumptions}
    effects.events += [_job_resumed(jobs[job_id], cursor) for job_id, cursor in cursors.items()]
    effects.events += [run_scheduled(run) for run in runs]


def _resumption(tx: OwnerTransaction, job: Job) -> Resumption:
    """An occurrence that passed during the pause is skipped; a one-off run and one that was due before are not."""
    cursor, paused_at = job.next_fire_at, job.paused_at
    schedule = parse_schedule(msgspec.json.decode(job.definition)["schedule"], job_id=job.job_id)
    assert paused_at is not None
    if cursor is None or not isinstance(schedule, Recurring) or cursor > tx.now:
        return Resumption(job.job_id, cursor, None, None, None)
    fire = next_fire(schedule, tx.now, job_id=job.job_id, created_at=job.created_at)
    skipped = run_id_for(job.job_id, cursor, job.partition) if cursor > paused_at else None
    if fire is None:
        return Resumption(job.job_id, None, skipped, None, None)
    run_id = run_id_for(job.job_id, fire, job.partition)
    return Resumption(job.job_id, fire, skipped, run_id, due_at(schedule, fire, job_id=job.job_id))


async def _delete(tx: OwnerTransaction, commands: Sequence[DeleteJob], jobs: Jobs, effects: Effects) -> None:
    live = _known(commands, jobs, effects, state="active", other="paused")
    if live:
        await delete_jobs(tx, [command.job_id for command in live])


async def _trigger(tx: OwnerTransaction, commands: Sequence[TriggerJob], jobs: Jobs, effects: Effects) -> None:
    triggered = _known(commands, jobs, effects, state="active", other="paused")
    if not triggered:
        return
    runs = await trigger_jobs(tx, [_manual_run(tx, command) for command in triggered])
    effects.events += [run_scheduled(run, "triggered") for run in runs]


def _manual_run(tx: OwnerTransaction, command: TriggerJob) -> ManualRun:
    return ManualRun(command.job_id, triggered_run_id(command, tx.fence.partition), command.issued_at, command.payload)


def triggered_run_id(command: TriggerJob, partition: int) -> UUID:
    """The id of the run that a trigger makes: its own, even for two triggers within a microsecond."""
    return run_id_for(command.job_id, command.issued_at, partition, nonce=command.command_id.bytes)


def _known(commands: Sequence[Any], jobs: Jobs, effects: Effects, *, state: str, other: str | None = None) -> list[Any]:
    """Those of the commands that have something to do; the rest is rejected, or already as it was asked for."""
    to_do = []
    for command in commands:
        job = jobs.get(command.job_id)
        if job is None or job.tenant != command.tenant:
            effects.reject(command, JobUnknown(f"there is no job {command.job_id}", field="jobId"))
        elif job.state in (state, other) and _made_for_another(command, job):
            found = f"job {job.job_id} is at version {job.version}, not {command.if_version}"
            effects.reject(command, JobConflict(found, field="ifVersion"))
        elif job.state in (state, other):
            to_do.append(command)
            effects.outcomes.append(_applied(command, job))
        elif job.state == "deleted" and not isinstance(command, DeleteJob):
            effects.reject(command, JobUnknown(f"job {command.job_id} was deleted", field="jobId"))
        else:
            effects.done([command], UNCHANGED)
    return to_do


def _made_for_another(command: Command, job: Job) -> bool:
    """Whether the job has changed since its version was read that the command is about."""
    return getattr(command, "if_version", None) not in (None, job.version)


def _applied(command: Command, job: Job) -> Outcome:
    """A trigger's outcome names its run, so that a repetition of the call can name it too."""
    detail = str(triggered_run_id(command, job.partition)) if isinstance(command, TriggerJob) else None
    return Outcome(command.command_id, APPLIED, detail)


_Applier = Callable[[OwnerTransaction, Sequence[Any], Jobs, Effects], Coroutine[Any, Any, None]]
_APPLIERS: dict[type[Command], _Applier] = {
    CreateJob: _create,
    PauseJob: _pause,
    ResumeJob: _resume,
    DeleteJob: _delete,
    TriggerJob: _trigger,
}


def run_scheduled(run: PendingRun, reason: str | None = None) -> Event:
    """The part of a run_scheduled event that timing state reads."""
    return {
        "type": "run_scheduled",
        "tenant": run.tenant,
        "jobId": str(run.job_id),
        "runId": str(run.run_id),
        "version": run.version,
        "queue": run.queue,
        "lane": LANES[run.lane],
        "scheduledFor": run.scheduled_for,
        "dueAt": run.due_at,
        "reason": reason,
    }


def job_event(
    kind: str, job_id: UUID, version: int, created_at: datetime, cursor: datetime | None, definition: str
) -> Event:
    """The part of a job event that timing state reads."""
    return {
        "type": kind,
        "jobId": str(job_id),
        "runId": None,
        "version": version,
        "scheduledFor": created_at,
        "dueAt": cursor,
        "definition": definition,
    }


def _job_created(job: NewJob) -> Event:
    return job_event("job_created", job.job_id, 1, job.created_at, job.next_fire_at, job.definition)


def _job_resumed(job: Job, cursor: datetime | None) -> Event:
    return job_event("job_resumed", job.job_id, job.version + 1, job.created_at, cursor, job.definition)
