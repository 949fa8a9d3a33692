"""Applying commands: what a batch of them makes of the partition's jobs and runs, in the owner's fenced transaction.

Set by set: the batch is cut into waves in which no job occurs twice, so that each wave is a handful of statements
however many commands it has, and the commands of one job still take effect in order.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from ledger.audits import Change, note_changes
from ledger.commands import APPLIED, record_outcomes
from ledger.fence import OwnerTransaction, change_job_states
from ledger.job_retention import keep_jobs
from ledger.jobs import policies_of, read_jobs
from ledger.run_locks import lock_runs
from schemas.commands import (
    BackfillJob,
    CancelRun,
    Command,
    CreateJob,
    DeleteJob,
    PauseJob,
    ReplayRun,
    ResumeJob,
    TriggerJob,
    UpdateJob,
)
from schemas.ids import partition_of_run
from streams import job_commands, run_commands
from streams.effects import Effects, Jobs
from streams.pending_caps import PendingCaps

_Applier = Callable[[OwnerTransaction, Sequence[Any], Jobs, Effects], Coroutine[Any, Any, None]]
APPLIERS: dict[type[Command], _Applier] = {
    CreateJob: job_commands.create,
    UpdateJob: job_commands.update,
    PauseJob: job_commands.pause,
    ResumeJob: job_commands.resume,
    DeleteJob: job_commands.delete,
    TriggerJob: run_commands.trigger,
    BackfillJob: run_commands.backfill,
    CancelRun: run_commands.cancel,
    ReplayRun: run_commands.replay,
}

ACTIONS: dict[type[Command], str] = {
    CreateJob: "job_created",
    UpdateJob: "job_updated",
    PauseJob: "job_paused",
    ResumeJob: "job_resumed",
    DeleteJob: "job_deleted",
    TriggerJob: "job_triggered",
    BackfillJob: "job_backfilled",
    CancelRun: "run_cancelled",
    ReplayRun: "run_replayed",
}


async def apply_commands(tx: OwnerTransaction, commands: Sequence[Command], caps: PendingCaps | None = None) -> Effects:
    """Apply commands of the transaction's partition, in order; nothing of a rejected one is written.

    commands: with distinct ids, none of them applied before. caps: where some tenant has one; the caller tells them of
    what was made once it is committed. Raises EpochLost, LedgerUnavailable.
    """
    effects = Effects(caps=caps)
    await _lock(tx, commands)
    for wave in waves(commands):
        jobs = await read_jobs(tx.conn, [command.job_id for command in wave])
        may = [command for command in wave if _has_room(command, jobs, effects)] if caps else wave
        for kind, apply in APPLIERS.items():
            if members := [command for command in may if type(command) is kind]:
                await apply(tx, members, jobs, effects)
    if effects.outcomes:
        await record_outcomes(tx, effects.outcomes)
    if changes := list(changes_of(commands, effects)):
        await note_changes(tx, changes)
    return effects


def changes_of(commands: Iterable[Command], effects: Effects) -> Iterator[Change]:
    """What is noted of who changed what: of the commands that came by HTTP, those that had an effect."""
    applied = {outcome.command_id for outcome in effects.outcomes if outcome.outcome == APPLIED}
    for command in commands:
        if command.issued_by is not None and command.command_id in applied:
            subject = command.run_id if isinstance(command, CancelRun | ReplayRun) else command.job_id
            yield Change(ACTIONS[type(command)], command.tenant, command.issued_by, str(subject))


def _has_room(command: Command, jobs: Jobs, effects: Effects) -> bool:
    """Whether the tenant may have another run, if the command makes one; backfills ask for theirs."""
    makes_one = (isinstance(command, CreateJob) and command.job_id not in jobs) or (
        isinstance(command, TriggerJob) and command.job_id in jobs
    )
    return not makes_one or effects.make_room(command)


async def _lock(tx: OwnerTransaction, commands: Sequence[Command]) -> None:
    """All that the batch may change, before it changes anything: wave by wave it would be in no order.

    A job that is named is not forgotten from here on. Creations do without: one that finds its job in the moment in
    which it is forgotten has come just before that.
    """
    changes = [
        (command.job_id, policies_of(command.spec).overlap if isinstance(command, UpdateJob) else None)
        for command in commands
        if isinstance(command, UpdateJob | PauseJob | ResumeJob | DeleteJob)
    ]
    cancelled = [command.run_id for command in commands if isinstance(command, CancelRun)]
    if changes:
        await change_job_states(tx)
    elif any(type(command) is not CreateJob for command in commands):
        await keep_jobs(tx)
    if changes or cancelled:
        own = [run_id for run_id in cancelled if partition_of_run(run_id) == tx.fence.partition]
        await lock_runs(tx, changes, own)


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
