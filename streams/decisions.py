"""Deciding occurrences: when a job's pending occurrence has come, its next one becomes a pending run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from uuid import UUID

import msgspec

from ledger.advances import Advance, advance_jobs
from ledger.fence import OwnerTransaction
from ledger.jobs import read_jobs
from schemas.errors import InvalidSchedule
from schemas.events import Event
from schemas.ids import run_id_for
from schemas.schedule import Schedule, due_at, next_fire, parse_schedule
from streams.command_batch import run_scheduled
from streams.rebuild import job_event_of
from streams.timing_state import JobTimer, TimingState, from_us, to_us

log = logging.getLogger(__name__)


class Decided:
    """events: to fold. finished: jobs without another occurrence. stale: jobs that the state knew wrongly, as they are.

    early: jobs whose occurrence has not come after all. undecidable: jobs whose schedule this build cannot read, as
    when its tzdata has lost their zone.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.finished: list[bytes] = []
        self.stale: dict[bytes, Event] = {}
        self.early: dict[bytes, int] = {}
        self.undecidable: list[bytes] = []


async def decide(tx: OwnerTransaction, state: TimingState, job_ids: Sequence[bytes]) -> Decided:
    """Move the cursors of jobs whose pending occurrence has come, and make the runs of their next ones.

    After a time without an owner the occurrences between are not made up for, except the pending one (catchUp
    `latest`): the next one is computed from now. Raises EpochLost, LedgerUnavailable.
    """
    decided = Decided()
    advances = _advances(tx, state, job_ids, decided)
    runs = await advance_jobs(tx, advances) if advances else []
    decided.events = [run_scheduled(run) for run in runs]
    moved = {run.job_id for run in runs}
    left = [advance.job_id for advance in advances if advance.job_id not in moved]
    jobs = await read_jobs(tx.conn, left) if left else {}
    for job_id in left:
        job = jobs.get(job_id)
        if job is None or job.state != "active" or job.next_fire_at is None:
            decided.finished.append(job_id.bytes)
        else:
            decided.stale[job_id.bytes] = job_event_of(job)
    return decided


def _advances(tx: OwnerTransaction, state: TimingState, job_ids: Sequence[bytes], decided: Decided) -> list[Advance]:
    advances = []
    for job_id in dict.fromkeys(job_ids):
        timer = state.job(job_id)
        if timer is None:
            continue
        if timer.cursor_us > to_us(tx.now):  # moved since it was queued, or the ledger's clock was put back
            decided.early[job_id] = timer.cursor_us
            continue
        try:
            advances.append(advance_of(UUID(bytes=job_id), timer, tx.fence.partition, tx.now))
        except InvalidSchedule:
            log.exception("job %s cannot be decided", UUID(bytes=job_id))
            decided.undecidable.append(job_id)
    return advances


def advance_of(job_id: UUID, timer: JobTimer, partition: int, now: datetime) -> Advance:
    """The next occurrence of a job, as a move of its cursor."""
    fired_at, created_at = from_us(timer.cursor_us), from_us(timer.created_us)
    schedule = _schedule(msgspec.json.encode(timer.schedule), job_id)
    fire = next_fire(schedule, max(fired_at, now), job_id=job_id, created_at=created_at)
    if fire is None:
        return Advance(job_id, timer.version, fired_at, None, None, None)
    run_id = run_id_for(job_id, fire, partition)
    return Advance(job_id, timer.version, fired_at, fire, run_id, due_at(schedule, fire, job_id=job_id))


@lru_cache(maxsize=10_000)
def _schedule(schedule_json: bytes, job_id: UUID) -> Schedule:
    return parse_schedule(msgspec.json.decode(schedule_json), job_id=job_id)
