"""Deciding occurrences: when a job's pending occurrence has come, its next one becomes a pending run.

What has passed meanwhile is caught up with as the job's policy says (streams/catch_up.py): an occurrence becomes a run,
or is skipped with its reason, and either way its cursor moves past it exactly once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple, Self
from uuid import UUID

import msgspec

from ledger.advances import Advance, advance_jobs
from ledger.fence import Fence, FencedTransaction
from ledger.jobs import read_jobs
from schemas.errors import InvalidSchedule
from schemas.events import Event
from schemas.ids import run_id_for
from schemas.schedule import Schedule, parse_schedule
from streams.breath import Breath
from streams.catch_up import CatchUp, SkippedRange, catch_up
from streams.effects import range_skipped, run_scheduled
from streams.rebuild import job_event_of
from streams.timers import JobTimer, from_us, to_us
from streams.timing_state import TimingState

log = logging.getLogger(__name__)

LINKS_A_JOB = 20  # moves of a cursor in one transaction; a job that is further behind goes on in the next


class Asked(NamedTuple):
    """What an owner wants decided: jobs whose pending occurrence has come, as it knew them when it asked.

    first_seen_late: whether it had come a while before the owner learned of it.
    """

    fence: Fence
    timers: Mapping[UUID, JobTimer]
    first_seen_late: bool = False

    @classmethod
    def of(cls, fence: Fence, state: TimingState, job_ids: Iterable[bytes], *, first_seen_late: bool = False) -> Self:
        """Jobs that the state does not know any more are left out."""
        found = ((job_id, state.job(job_id)) for job_id in job_ids)
        timers = {UUID(bytes=job_id): timer for job_id, timer in found if timer is not None}
        return cls(fence, timers, first_seen_late)

    def row_ids(self) -> Sequence[UUID]:
        return list(self.timers)


class Decided:
    """events: to fold. finished: jobs without another occurrence. stale: jobs that the state knew wrongly, as they are.

    early: jobs whose occurrence has not come after all. undecidable: jobs whose schedule this build cannot read, as
    when its tzdata has lost their zone. superseded: jobs whose pending occurrence is not to run after all. behind: jobs
    with more occurrences to decide at once. skipped: how many occurrences made no run, by reason.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.finished: list[bytes] = []
        self.stale: dict[bytes, Event] = {}
        self.early: dict[bytes, int] = {}
        self.undecidable: list[bytes] = []
        self.superseded: set[bytes] = set()
        self.behind: list[bytes] = []
        self.skipped: Counter[str] = Counter()


async def decide(tx: FencedTransaction, asked: Sequence[Asked]) -> list[Decided]:
    """Move the cursors of jobs whose pending occurrence has come, and make the runs of their next ones.

    The transaction is under every asker's fence. Raises EpochLost, LedgerUnavailable.
    """
    answers: list[Decided] = []
    chains: dict[UUID, list[Advance]] = {}
    notes: dict[UUID, Decided] = {}
    breath = Breath()
    for each in asked:
        answers.append(decided := Decided())
        for job_id, timer in each.timers.items():
            await breath.take()
            if chain := _begin_chain(tx, job_id, timer, each, decided):
                chains[job_id], notes[job_id] = chain, decided
    await move_cursors(tx, chains, notes)
    return answers


async def move_cursors(
    tx: FencedTransaction, chains: Mapping[UUID, Sequence[Advance]], notes: Mapping[UUID, Decided]
) -> None:
    """Make the moves of each job's cursor, and note what came of them, each job's where its notes go."""
    moved: set[UUID] = set()
    # A job's moves follow each other, so each statement has one of each job.
    for links in zip_longest(*chains.values()):
        advances = [advance for advance in links if advance is not None]
        for run in await advance_jobs(tx, advances, now=tx.now):
            notes[run.job_id].events.append(run_scheduled(run))
            moved.add(run.job_id)
    await _look_at_rest(tx, [job_id for job_id in chains if job_id not in moved], notes)
    for job_id in moved:
        _note_moves(chains[job_id], tx.now, notes[job_id])


def _begin_chain(
    tx: FencedTransaction, job_id: UUID, timer: JobTimer, asked: Asked, decided: Decided
) -> list[Advance] | None:
    if timer.cursor_us > to_us(tx.now):  # moved since it was queued, or the ledger's clock was put back
        decided.early[job_id.bytes] = timer.cursor_us
        return None
    try:
        return chain_of(job_id, timer, asked.fence.partition, tx.now, first_seen_late=asked.first_seen_late)
    except InvalidSchedule:
        log.exception("job %s cannot be decided", job_id)
        decided.undecidable.append(job_id.bytes)
        return None


def chain_of(
    job_id: UUID, timer: JobTimer, partition: int, now: datetime, *, first_seen_late: bool = False
) -> list[Advance]:
    """The moves of a job's cursor from its pending occurrence on to one that is still to come, or as far as goes."""
    cursor, created_at, version = from_us(timer.cursor_us), from_us(timer.created_us), timer.version
    schedule = schedule_of(timer, job_id)
    chain: list[Advance] = []
    while len(chain) < LINKS_A_JOB:
        found = catch_up(
            schedule,
            timer.catch_up,
            cursor,
            now,
            created_at,
            job_id,
            limit=timer.catch_up_limit,
            start_deadline_s=timer.start_deadline_s,
            first_seen_late=first_seen_late or bool(chain),  # of the others of the chain it learns only now
        )
        chain += moves_of(job_id, version, cursor, found, partition)
        version += len(found.skipped)
        if found.next_fire is None or found.next_fire > now:
            break
        cursor = found.next_fire
    return chain


def moves_of(job_id: UUID, version: int, cursor: datetime, found: CatchUp, partition: int) -> Iterator[Advance]:
    """What was found as moves, each over at most one range; the last one makes the next occurrence's run."""
    skipped_run_id = run_id_for(job_id, cursor, partition) if found.cursor_skipped else None
    skip_reason = found.cursor_skipped
    for each in found.skipped[:-1]:
        move = Advance(job_id, version, cursor, each.last, None, None, skipped_run_id, skip_reason)
        yield _over(move, each)
        cursor, version, skipped_run_id, skip_reason = each.last, version + 1, None, None
    run_id = run_id_for(job_id, found.next_fire, partition) if found.next_fire else None
    move = Advance(job_id, version, cursor, found.next_fire, run_id, found.due_at, skipped_run_id, skip_reason)
    yield _over(move, found.skipped[-1]) if found.skipped else move


def _over(move: Advance, skipped: SkippedRange) -> Advance:
    return move._replace(
        range_first=skipped.first, range_last=skipped.last, range_count=skipped.count, range_reason=skipped.reason
    )


async def _look_at_rest(tx: FencedTransaction, job_ids: list[UUID], notes: Mapping[UUID, Decided]) -> None:
    """Jobs that got no run: without another occurrence, or known wrongly."""
    jobs = await read_jobs(tx.conn, job_ids) if job_ids else {}
    for job_id in job_ids:
        job, decided = jobs.get(job_id), notes[job_id]
        if job is None or job.state != "active" or job.next_fire_at is None:
            decided.finished.append(job_id.bytes)
        else:
            decided.stale[job_id.bytes] = job_event_of(job)


def _note_moves(chain: Sequence[Advance], now: datetime, decided: Decided) -> None:
    last = chain[-1]
    if chain[0].skip_reason is not None:
        decided.superseded.add(chain[0].job_id.bytes)
    if last.next_fire_at is None:
        decided.finished.append(last.job_id.bytes)
    elif last.next_fire_at <= now:
        decided.behind.append(last.job_id.bytes)
    for move in chain:
        if move.skip_reason is not None:
            decided.skipped[move.skip_reason] += 1
        if move.range_count is not None and move.range_reason is not None:
            decided.skipped[move.range_reason] += move.range_count
            decided.events.append(range_skipped(move.job_id, move.version + 1))


def schedule_of(timer: JobTimer, job_id: UUID) -> Schedule:
    """Raises InvalidSchedule for one that this build cannot read."""
    return _schedule(msgspec.json.encode(timer.schedule), job_id)


@lru_cache(maxsize=10_000)
def _schedule(schedule_json: bytes, job_id: UUID) -> Schedule:
    return parse_schedule(msgspec.json.decode(schedule_json), job_id=job_id)
