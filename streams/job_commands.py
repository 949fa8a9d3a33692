"""Commands about jobs: create, update, pause, resume, delete."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from ledger.advances import Advance, advance_jobs
from ledger.commands import UNCHANGED
from ledger.edits import Edit, update_jobs
from ledger.fence import OwnerTransaction
from ledger.jobs import (
    Job,
    NewJob,
    Resumption,
    create_jobs,
    delete_jobs,
    pause_jobs,
    policies_of,
    resume_jobs,
)
from ledger.unstarted_runs import drop_unstarted, read_unstarted
from schemas.commands import LANES, CreateJob, DeleteJob, JobSpec, PauseJob, ResumeJob, UpdateJob, definition_json
from schemas.errors import CommandRejected, InvalidSchedule, JobConflict
from schemas.events import Event
from schemas.fire_counts import count_fires
from schemas.ids import run_id_for
from schemas.schedule import Recurring, Schedule, due_at, first_fire, next_fire, parse_schedule, previous_fire
from streams.effects import Effects, Jobs, job_event, known, range_skipped, run_scheduled, schedule_json

_DAWN = datetime(1970, 1, 1, tzinfo=UTC)  # timing state counts from here: no cursor may lie before
_TICK = timedelta(microseconds=1)


async def create(tx: OwnerTransaction, commands: Sequence[CreateJob], jobs: Jobs, effects: Effects) -> None:
    new: list[NewJob] = []
    for command in commands:
        try:
            if (existing := jobs.get(command.job_id)) is None:
                new.append(new_job(command, tx.fence.partition, tx.now))
                effects.done([command])
            else:
                _check_same(existing, command)
                effects.done([command], UNCHANGED)
        except CommandRejected as error:
            effects.reject(command, error)
    runs = await create_jobs(tx, new, now=tx.now) if new else []
    effects.events += [*map(_job_created, new), *map(run_scheduled, runs)]


def new_job(command: CreateJob, partition: int, now: datetime) -> NewJob:
    """The job that a command makes on its partition, applied now. Raises InvalidSchedule."""
    spec = command.spec
    schedule = parse_schedule(spec.schedule, job_id=command.job_id)
    # A producer whose clock is ahead must not delay its job; one whose command waited loses no occurrence.
    created_at = max(min(command.issued_at, now), _DAWN)
    fire = first_fire(schedule, job_id=command.job_id, created_at=created_at)
    if fire is None:
        raise InvalidSchedule("schedule", "the schedule never fires", "give it an occurrence in the future")
    due = due_at(schedule, fire, job_id=command.job_id)
    if not isinstance(schedule, Recurring):
        _check_start_deadline(spec, due, now)
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
        run_id_for(command.job_id, fire, partition),
        due,
        policies_of(spec),
    )


def _check_start_deadline(spec: JobSpec, due: datetime, now: datetime) -> None:
    """A one-off that came too late to start is said to be, rather than accepted and then skipped."""
    deadline_s, late_s = spec.start_deadline_seconds, (now - due).total_seconds()
    if deadline_s is not None and late_s > deadline_s:
        message = f"its only run was due {late_s:.1f} s ago and may start {deadline_s:g} s late at most"
        raise InvalidSchedule("schedule", message, "give it a later time, or a longer startDeadlineSeconds")


def _check_same(job: Job, command: CreateJob) -> None:
    parse_schedule(command.spec.schedule, job_id=command.job_id)
    if job.tenant != command.tenant or job.state == "deleted":
        raise JobConflict(f"job id {job.job_id} was used before", field="jobId")
    if (job.definition, job.payload) != (definition_json(command.spec), command.spec.payload):
        raise JobConflict(f"job {job.job_id} exists with another definition", field="jobId")


async def update(tx: OwnerTransaction, commands: Sequence[UpdateJob], jobs: Jobs, effects: Effects) -> None:
    edits: list[Edit] = []
    for command in known(commands, jobs, effects, "active", "paused"):
        job = jobs[command.job_id]
        try:
            edit = _edit(tx, command, job)
        except CommandRejected as error:
            effects.reject(command, error)
            continue
        if (edit.definition, edit.payload, edit.next_fire_at) == (job.definition, job.payload, job.next_fire_at):
            effects.done([command], UNCHANGED)
        else:
            edits.append(edit)
            effects.done([command])
    dropped = await _of_old_schedules(tx, edits, jobs)
    runs = await update_jobs(tx, edits, now=tx.now) if edits else []
    if dropped:
        await drop_unstarted(tx, dropped, now=tx.now)
    effects.events += [_job_updated(jobs[edit.job_id], edit) for edit in edits]
    effects.events += map(run_scheduled, runs)


async def _of_old_schedules(tx: OwnerTransaction, edits: Sequence[Edit], jobs: Jobs) -> list[UUID]:
    """What a former schedule made due and nobody has leased yet, which does not run any more; manual runs do."""
    edited = {edit.job_id: edit for edit in edits if edit.run_id != edit.replaced_run_id}
    unstarted = await read_unstarted(tx.conn, tx.fence.partition, list(edited)) if edited else []
    return [
        run.run_id
        for run in unstarted
        if run.run_id not in (edited[run.job_id].run_id, edited[run.job_id].replaced_run_id)
        and run.run_id == run_id_for(run.job_id, run.scheduled_for, jobs[run.job_id].partition)
    ]


def _edit(tx: OwnerTransaction, command: UpdateJob, job: Job) -> Edit:
    """A new schedule fires only after the edit and its effective-from; one that stays keeps what is pending."""
    spec = command.spec
    schedule = parse_schedule(spec.schedule, job_id=job.job_id)
    if command.effective_from is None and spec.schedule == schedule_json(job):
        fire = job.next_fire_at
    else:
        fire = _first_after(schedule, max(tx.now, command.effective_from or tx.now), job)
        if fire is None:
            raise InvalidSchedule("schedule", "the schedule never fires", "give it an occurrence in the future")
    partition, pending = tx.fence.partition, job.next_fire_at
    return Edit(
        job.job_id,
        spec.queue,
        LANES.index(spec.lane),
        definition_json(spec),
        spec.payload,
        spec.max_attempts,
        fire,
        run_id_for(job.job_id, pending, partition) if pending else None,
        run_id_for(job.job_id, fire, partition) if fire else None,
        due_at(schedule, fire, job_id=job.job_id) if fire else None,
        policies_of(spec),
    )


def _first_after(schedule: Schedule, after: datetime, job: Job) -> datetime | None:
    """Never retroactively. A delay counts from here, as if the job were new; an interval from the job's creation."""
    if not isinstance(schedule, Recurring):
        fire = first_fire(schedule, job_id=job.job_id, created_at=after)
        return fire if fire is not None and fire >= after else None
    fire = next_fire(schedule, after, job_id=job.job_id, created_at=job.created_at)
    while fire is not None and _has_decided(job, fire):
        fire = next_fire(schedule, fire, job_id=job.job_id, created_at=job.created_at)
    return fire


def _has_decided(job: Job, fire: datetime) -> bool:
    """Whether the schedule until now had this occurrence before its cursor, or its end: now may be earlier than that,
    as after a failover to an earlier clock, or in a transaction that has stood still since its beginning."""
    if job.next_fire_at is not None and fire >= job.next_fire_at:
        return False
    try:
        former = parse_schedule(schedule_json(job), job_id=job.job_id)
    except InvalidSchedule:  # another build's
        return False
    if not isinstance(former, Recurring):
        return False
    return next_fire(former, fire - _TICK, job_id=job.job_id, created_at=job.created_at) == fire


async def pause(tx: OwnerTransaction, commands: Sequence[PauseJob], jobs: Jobs, effects: Effects) -> None:
    if active := known(commands, jobs, effects, "active"):
        effects.done(active)
        await pause_jobs(tx, [command.job_id for command in active], now=tx.now)


async def resume(tx: OwnerTransaction, commands: Sequence[ResumeJob], jobs: Jobs, effects: Effects) -> None:
    paused = known(commands, jobs, effects, "paused")
    if not paused:
        return
    effects.done(paused)
    returns = [_return(tx, jobs[command.job_id]) for command in paused]
    runs = await resume_jobs(tx, [resumption for resumption, _ in returns], now=tx.now)
    moves = [move for _, move in returns if move is not None]
    runs += await advance_jobs(tx, moves, now=tx.now) if moves else []
    cursors = {each.job_id: each.next_fire_at for each, _ in returns} | {
        each.job_id: each.next_fire_at for each in moves
    }
    effects.events += [_job_resumed(jobs[job_id], cursor) for job_id, cursor in cursors.items()]
    effects.events += [range_skipped(move.job_id, move.version + 1) for move in moves]
    effects.events += map(run_scheduled, runs)


def _return(tx: OwnerTransaction, job: Job) -> tuple[Resumption, Advance | None]:
    """How a job goes on, and the move of its cursor over what else passed during the pause.

    Time that passed during a pause is not missed: its occurrences are skipped. A one-off, and a run that was due
    before the pause, are not.
    """
    cursor, paused_at = job.next_fire_at, job.paused_at
    assert paused_at is not None
    try:
        schedule = parse_schedule(schedule_json(job), job_id=job.job_id)
    except InvalidSchedule:  # what has a run goes on; whoever is to decide the next occurrence says that it cannot
        return Resumption(job.job_id, cursor, None, None, None), None
    if cursor is None or not isinstance(schedule, Recurring) or cursor > tx.now:
        return Resumption(job.job_id, cursor, None, None, None), None
    fire = next_fire(schedule, tx.now, job_id=job.job_id, created_at=job.created_at)
    skipped = run_id_for(job.job_id, cursor, job.partition) if cursor > paused_at else None
    run_id = run_id_for(job.job_id, fire, job.partition) if fire else None
    due = due_at(schedule, fire, job_id=job.job_id) if fire else None
    last = previous_fire(schedule, tx.now + _TICK, job_id=job.job_id, created_at=job.created_at)
    if last is None or last <= cursor:
        return Resumption(job.job_id, fire, skipped, run_id, due), None
    first = next_fire(schedule, cursor, job_id=job.job_id, created_at=job.created_at)
    count = count_fires(schedule, cursor, last, job_id=job.job_id, created_at=job.created_at)
    over = (first, last, count, "paused")
    move = Advance(job.job_id, job.version + 1, last, fire, run_id, due, None, None, *over)
    return Resumption(job.job_id, last, skipped, None, None), move


async def delete(tx: OwnerTransaction, commands: Sequence[DeleteJob], jobs: Jobs, effects: Effects) -> None:
    if live := known(commands, jobs, effects, "active", "paused"):
        effects.done(live)
        await delete_jobs(tx, [command.job_id for command in live], now=tx.now)


def _job_created(job: NewJob) -> Event:
    return job_event("job_created", job.job_id, 1, job.created_at, job.next_fire_at, job.definition)


def _job_updated(job: Job, edit: Edit) -> Event:
    kind = "job_paused" if job.state == "paused" else "job_updated"
    return job_event(kind, job.job_id, job.version + 1, job.created_at, edit.next_fire_at, edit.definition)


def _job_resumed(job: Job, cursor: datetime | None) -> Event:
    return job_event("job_resumed", job.job_id, job.version + 1, job.created_at, cursor, job.definition)
