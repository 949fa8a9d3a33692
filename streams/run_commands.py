"""Commands about single runs, and runs beside a job's schedule: cancel, replay, trigger, backfill."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from uuid import UUID

from ledger.cancellations import RunOwner, cancel_runs, owners_of_runs
from ledger.commands import UNCHANGED
from ledger.dead_letters import Replay, replay_runs
from ledger.fence import OwnerTransaction
from ledger.jobs import Job
from ledger.runs import ManualRun, trigger_jobs
from schemas.commands import BACKFILL_MAX_RUNS, BackfillJob, CancelRun, ReplayRun, TriggerJob
from schemas.errors import CommandRejected, RunUnknown
from schemas.ids import run_id_for
from schemas.schedule import fires_between, parse_schedule
from streams.effects import Effects, Jobs, known, run_scheduled, schedule_json

_TICK = timedelta(microseconds=1)
_AHEAD = timedelta(seconds=5)  # how far a producer's clock may be ahead of the ledger's


async def trigger(tx: OwnerTransaction, commands: Sequence[TriggerJob], jobs: Jobs, effects: Effects) -> None:
    triggered = known(commands, jobs, effects, "active", "paused")
    if not triggered:
        return
    for command in triggered:
        # The outcome names the run, so that a repetition of the call can name it too.
        effects.done([command], detail=str(triggered_run_id(command, tx.fence.partition)))
    runs = await trigger_jobs(tx, [_triggered_run(tx, command) for command in triggered], now=tx.now)
    effects.events += map(run_scheduled, runs)


def _triggered_run(tx: OwnerTransaction, command: TriggerJob) -> ManualRun:
    return ManualRun(command.job_id, triggered_run_id(command, tx.fence.partition), command.issued_at, command.payload)


def triggered_run_id(command: TriggerJob, partition: int) -> UUID:
    """The id of the run that a trigger makes: its own, even for two triggers within a microsecond."""
    return run_id_for(command.job_id, command.issued_at, partition, nonce=command.command_id.bytes)


async def backfill(tx: OwnerTransaction, commands: Sequence[BackfillJob], jobs: Jobs, effects: Effects) -> None:
    made: list[ManualRun] = []
    for command in known(commands, jobs, effects, "active", "paused"):
        try:
            runs = _backfilled_runs(tx, command, jobs[command.job_id])
        except CommandRejected as error:
            effects.reject(command, error)
            continue
        if not effects.make_room(command, len(runs)):
            continue
        made += runs
        effects.done([command], detail=str(len(runs)))
    if made:
        scheduled = await trigger_jobs(tx, made, reason="backfill", now=tx.now)
        effects.events += map(run_scheduled, scheduled)


def _backfilled_runs(tx: OwnerTransaction, command: BackfillJob, job: Job) -> list[ManualRun]:
    """Its own runs, whether or not the occurrences had others. The cursor knows nothing of them.

    All are due at once, in the order of their occurrences; where the job does not allow overlap they go in turn.
    """
    if command.through <= command.after:
        raise CommandRejected("to must be later than from", field="to")
    if command.through > tx.now + _AHEAD:
        raise CommandRejected("to must not lie in the future: what is still to come runs by itself", field="to")
    schedule = parse_schedule(schedule_json(job), job_id=job.job_id)
    between = fires_between(schedule, command.after, command.through, job_id=job.job_id, created_at=job.created_at)
    fires = list(islice(between, BACKFILL_MAX_RUNS + 1))
    if len(fires) > BACKFILL_MAX_RUNS:
        raise CommandRejected(f"from there to here are more than {BACKFILL_MAX_RUNS} occurrences", field="to")
    nonce, partition = command.command_id.bytes, tx.fence.partition
    run_ids = [run_id_for(job.job_id, fire, partition, nonce=nonce) for fire in fires]
    return [
        ManualRun(job.job_id, run_id, fire, command.payload, tx.now - after * _TICK, in_turn=True)
        for run_id, fire, after in zip(run_ids, fires, reversed(range(len(fires))), strict=True)
    ]


async def cancel(tx: OwnerTransaction, commands: Sequence[CancelRun], _: Jobs, effects: Effects) -> None:
    owners = await owners_of_runs(tx.conn, [command.run_id for command in commands])
    asked = [command for command in commands if _is_of_job(command, owners, effects)]
    outcomes = {
        each.run_id: each.outcome for each in await cancel_runs(tx, [command.run_id for command in asked], now=tx.now)
    }
    for command in asked:
        if command.run_id in outcomes:
            effects.done([command], detail=outcomes[command.run_id])
        else:
            effects.reject(command, RunUnknown(f"run {command.run_id} has ended", field="runId"))


async def replay(tx: OwnerTransaction, commands: Sequence[ReplayRun], _: Jobs, effects: Effects) -> None:
    owners = await owners_of_runs(tx.conn, [command.run_id for command in commands])
    asked = [command for command in commands if _is_of_job(command, owners, effects)]
    dead = [command for command in asked if owners[command.run_id].state == "dead"]
    effects.done([command for command in asked if owners[command.run_id].state != "dead"], UNCHANGED)
    replayed = await replay_runs(tx, [Replay(command.run_id, command.due_at) for command in dead], now=tx.now)
    for command in dead:
        if command.run_id in replayed.run_ids:
            effects.done([command])
        else:
            effects.reject(command, RunUnknown(f"the job of run {command.run_id} was deleted", field="runId"))
    effects.events += map(run_scheduled, replayed.waiting)


def _is_of_job(command: CancelRun | ReplayRun, owners: dict[UUID, RunOwner], effects: Effects) -> bool:
    owner = owners.get(command.run_id)
    if owner is not None and (owner.job_id, owner.tenant) == (command.job_id, command.tenant):
        return True
    effects.reject(
        command, RunUnknown(f"no run {command.run_id} of this job waits, is leased or is dead", field="runId")
    )
    return False
