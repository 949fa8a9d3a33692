"""What a batch of commands does: its outcomes, its rejections, and the events that timing state reads of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from ledger.commands import APPLIED, UNCHANGED, Outcome
from ledger.jobs import Job
from ledger.runs import PendingRun
from schemas.commands import LANES, Command, DeleteJob
from schemas.errors import CommandRejected, JobConflict, JobUnknown, TooManyPending
from schemas.events import Event
from streams.pending_caps import PendingCaps
from streams.timers import to_us

Jobs = dict[UUID, Job]


@dataclass(slots=True)
class Effects:
    """What a batch did: events for the timing state, what became of each command, and runs made by tenant.

    caps: where some tenant has one.
    """

    events: list[Event] = field(default_factory=list)
    created: Counter[str] = field(default_factory=Counter)
    outcomes: list[Outcome] = field(default_factory=list)
    rejected: dict[UUID, CommandRejected] = field(default_factory=dict)
    caps: PendingCaps | None = None

    def done(self, commands: Iterable[Command], outcome: str = APPLIED, *, detail: str | None = None) -> None:
        self.outcomes += [Outcome(command.command_id, outcome, detail) for command in commands]

    def reject(self, command: Command, error: CommandRejected) -> None:
        self.rejected[command.command_id] = error
        self.outcomes.append(Outcome(command.command_id, error.code, error.message, error.field))

    def make_room(self, command: Command, runs: int = 1) -> bool:
        """Whether the tenant may have so many runs more, for what the command asks; else it is rejected."""
        if self.caps is None or not runs:
            return True
        if self.created[command.tenant] + runs > self.caps.room(command.tenant):
            more = (
                "as many runs that wait or are leased as it may have" if runs == 1 else f"no room for {runs} more runs"
            )
            self.reject(command, TooManyPending(f"the tenant has {more} (maxPendingRuns)"))
            return False
        self.created[command.tenant] += runs
        return True


def known(commands: Sequence[Any], jobs: Jobs, effects: Effects, *states: str) -> list[Any]:
    """Those of the commands whose job is in one of the states; the rest is rejected, or already as it was asked for."""
    to_do = []
    for command in commands:
        job = jobs.get(command.job_id)
        if job is None or job.tenant != command.tenant:
            effects.reject(command, JobUnknown(f"there is no job {command.job_id}", field="jobId"))
        elif job.state in states and _made_for_another(command, job):
            found = f"job {job.job_id} is at version {job.version}, not {command.if_version}"
            effects.reject(command, JobConflict(found, field="ifVersion"))
        elif job.state in states:
            to_do.append(command)
        elif job.state == "deleted" and not isinstance(command, DeleteJob):
            effects.reject(command, JobUnknown(f"job {command.job_id} was deleted", field="jobId"))
        else:
            effects.done([command], UNCHANGED)
    return to_do


def _made_for_another(command: Command, job: Job) -> bool:
    """Whether the job has changed since its version was read that the command is about."""
    return getattr(command, "if_version", None) not in (None, job.version)


def run_scheduled(run: PendingRun) -> Event:
    return Event(
        "run_scheduled",
        run.job_id.bytes,
        run.run_id.bytes,
        run.version,
        run.tenant,
        run.queue,
        LANES[run.lane],
        to_us(run.scheduled_for),
        to_us(run.due_at),
        gated=run.overlap != 0,
    )


def job_event(
    kind: str, job_id: UUID, version: int, created_at: datetime, cursor: datetime | None, definition: str
) -> Event:
    cursor_us = None if cursor is None else to_us(cursor)
    return Event(
        kind, job_id.bytes, None, version, scheduled_us=to_us(created_at), due_us=cursor_us, definition=definition
    )


def schedule_json(job: Job) -> dict[str, Any]:
    """The schedule that the job is stored with; empty, which is none, where there is nothing that could be one."""
    definition = msgspec.json.decode(job.definition)
    schedule = definition.get("schedule") if isinstance(definition, dict) else None
    return schedule if isinstance(schedule, dict) else {}


def range_skipped(job_id: UUID, version: int) -> Event:
    return Event("occurrences_skipped", job_id.bytes, None, version)
