"""Making up for missed occurrences at their queue's rate: oldest first, each run due at an instant of its own.

Decided at once, as everything else: the cursors move on, so that what comes meanwhile is on time. Only when the made-up
runs are due is the rate's to say. Its instants are the queue's, not the partition's (ledger/spreads.py): wherever on a
shard the backlog is it gets all of the shard's share of the rate, and all its partitions together get no more. The
shares are equal, since no shard knows what another has missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heappop, heappush
from uuid import UUID

from ledger.advances import Advance
from ledger.connection import Connection
from ledger.fence import OwnerTransaction
from ledger.queue_settings import QueueName
from ledger.spreads import Rate, find_outdated, find_rated_jobs, lock_rate, spread_runs, take_instants
from schemas.errors import InvalidSchedule
from schemas.ids import run_id_for
from schemas.schedule import Schedule, due_at
from streams.backlog import Missed
from streams.breath import Breath
from streams.catch_up import DEADLINE, GRACE_S, CatchUp, catch_up
from streams.decisions import LINKS_A_JOB, Decided, move_cursors, moves_of, schedule_of
from streams.effects import run_scheduled
from streams.pace import Pace
from streams.timers import JobTimer, from_us, to_us
from streams.timing_state import TimingState

SPREAD_BATCH = 500  # runs that get their instants in one transaction
_GRACE = timedelta(seconds=GRACE_S)
_GRACE_US = int(GRACE_S * 1_000_000)


async def find_missed(
    conn: Connection, state: TimingState, job_ids: Sequence[bytes], partition: int, now_us: int
) -> list[tuple[QueueName, Missed]]:
    """Those of the jobs that are made up for at their queue's rate, as they enter its backlog."""
    timers = {
        UUID(bytes=job_id): timer
        for job_id in job_ids
        if (timer := state.job(job_id)) is not None and is_missed(timer, now_us) and _is_readable(job_id, timer)
    }
    pending = [(job_id, run_id_for(job_id, from_us(timer.cursor_us), partition)) for job_id, timer in timers.items()]
    found = await find_rated_jobs(conn, pending) if pending else []
    return [
        (
            QueueName(job.tenant, job.queue),
            Missed(timers[job.job_id].cursor_us, job.job_id.bytes, timers[job.job_id].version, job.is_unspread),
        )
        for job in found
    ]


def is_missed(timer: JobTimer, now_us: int) -> bool:
    """Whether the job makes up for its pending occurrence, all things being equal."""
    return timer.catch_up == "all" and now_us - timer.cursor_us > _GRACE_US


def _is_readable(job_id: bytes, timer: JobTimer) -> bool:
    try:
        schedule_of(timer, UUID(bytes=job_id))
    except InvalidSchedule:
        return False  # whoever decides it says so
    return True


@dataclass(slots=True)
class Spread:
    """What a turn did. left: the queue's heap from now on. gone: the jobs that are not in it any more; done with.

    strays: those of them that are not to be made up for like this: changed meanwhile, or the queue has no rate now.
    job_ids: whose pending occurrence was decided. more: whether runs that are apart by a former rate may be left.
    """

    left: list[Missed]
    gone: list[bytes] = field(default_factory=list)
    strays: list[bytes] = field(default_factory=list)
    job_ids: list[bytes] = field(default_factory=list)
    decided: Decided = field(default_factory=Decided)
    more: bool = False


async def spread_missed(
    tx: OwnerTransaction, state: TimingState, queue: QueueName, missed: list[Missed], share: float = 1.0
) -> Spread:
    """Make up for the oldest of what a queue has missed. First come those that a former rate had set apart.

    share: how much of the queue's rate is this shard's.
    Raises EpochLost, LedgerUnavailable; then nothing is written, and the backlog is as it was.
    """
    rate = await lock_rate(tx, queue)
    rate_per_s = None if rate.rate_per_s is None else rate.rate_per_s * share
    pace = Pace(rate_per_s, max(tx.now, rate.taken_through or tx.now))
    spread = Spread(missed)
    if outdated := await find_outdated(tx, queue, rate.version, SPREAD_BATCH, now=tx.now):
        await _move(tx, [(run_id, pace.take()) for run_id in outdated], rate, spread)
        spread.more = True
    elif rate.rate_per_s is None:
        spread.strays = spread.gone = [each.job_id for each in missed]
        spread.left = []
    elif missed:
        plan = _Plan(tx, state, rate, pace, spread)
        await plan.make()
        await _move(tx, plan.moved, rate, spread)
        chains = plan.chains()
        await move_cursors(tx, chains, dict.fromkeys(chains, spread.decided))
    if pace.taken:
        await take_instants(tx, queue, pace.next)
    return spread


async def _move(tx: OwnerTransaction, due: list[tuple[UUID, datetime]], rate: Rate, spread: Spread) -> None:
    version = None if rate.rate_per_s is None else rate.version
    runs = await spread_runs(tx, due, version, now=tx.now) if due else []
    spread.decided.events += map(run_scheduled, runs)


@dataclass(slots=True)
class _Job:
    """A job on its way through a turn: its cursor as it will be, and the moves that bring it there."""

    job_id: UUID
    timer: JobTimer
    schedule: Schedule
    cursor: datetime
    version: int
    moves: list[Advance] = field(default_factory=list)
    _found: CatchUp | None = None

    def look(self, now: datetime, starts_at: datetime) -> CatchUp:
        """What becomes of it from its cursor on. starts_at: when its next made-up run could start."""
        if self._found is None or self.timer.start_deadline_s is not None:
            timer = self.timer
            self._found = catch_up(
                self.schedule, timer.catch_up, self.cursor, now, from_us(timer.created_us), self.job_id,
                limit=timer.catch_up_limit, start_deadline_s=timer.start_deadline_s, starts_at=starts_at,
            )  # fmt: skip
        return self._found

    def due(self) -> datetime:
        """When the cursor's run is due as scheduled."""
        return due_at(self.schedule, self.cursor, job_id=self.job_id)

    def may_start(self, at: datetime) -> bool:
        deadline_s = self.timer.start_deadline_s
        return deadline_s is None or at - self.due() <= timedelta(seconds=deadline_s)

    def move(self, found: CatchUp, partition: int) -> None:
        """To the occurrence that was found."""
        self.moves += moves_of(self.job_id, self.version, self.cursor, found, partition)
        self.version += len(found.skipped)
        self.cursor = found.next_fire or self.cursor
        self._found = None


class _Plan:
    """A turn: which run gets which instant. The heap is worked off step by step, each with the oldest there is."""

    def __init__(self, tx: OwnerTransaction, state: TimingState, rate: Rate, pace: Pace, spread: Spread) -> None:
        self._now, self._partition, self._state = tx.now, tx.fence.partition, state
        self._rate, self._pace, self._spread, self._left = rate, pace, spread, spread.left
        self._jobs: dict[bytes, _Job] = {}
        self._decided = 0
        self.moved: list[tuple[UUID, datetime]] = []  # runs that wait already

    def chains(self) -> dict[UUID, list[Advance]]:
        return {job.job_id: job.moves for job in self._jobs.values() if job.moves}

    async def make(self) -> None:
        breath = Breath()
        while self._left and self._decided < SPREAD_BATCH and self._step():
            await breath.take()
        self._spread.job_ids = list(self._jobs)

    def _step(self) -> bool:
        """False when the oldest occurrence is that of a job which has had enough of this turn."""
        missed = heappop(self._left)
        job = self._jobs.get(missed.job_id) or self._begin(missed)
        if job is None:
            return True
        if len(job.moves) >= LINKS_A_JOB:
            heappush(self._left, missed)
            return False
        found = job.look(self._now, self._pace.next)
        if missed.is_pending:
            self._spread_pending(job, found)
        elif found.due_at is None or self._now - found.due_at <= _GRACE:  # on time, or still to come
            self._make(job, found, missed)
        elif found.next_fire is not None and (at_us := to_us(found.next_fire)) > missed.at_us:
            heappush(self._left, missed._replace(at_us=at_us))  # another one may be older
        else:
            self._make(job, found, missed, self._pace.take())
        return True

    def _begin(self, missed: Missed) -> _Job | None:
        """The job as it is now, unless it is to be looked at anew."""
        timer, job_id = self._state.job(missed.job_id), UUID(bytes=missed.job_id)
        if timer is not None and timer.version == missed.version and timer.cursor_us <= to_us(self._now):
            job = _Job(job_id, timer, schedule_of(timer, job_id), from_us(timer.cursor_us), timer.version)
            self._jobs[missed.job_id] = job
            return job
        self._spread.gone.append(missed.job_id)
        if timer is not None:
            self._spread.strays.append(missed.job_id)
        return None

    def _spread_pending(self, job: _Job, found: CatchUp) -> None:
        """The run that waits already gets an instant, unless it is not to run or is not late."""
        too_late = False
        if found.cursor_skipped is None and self._now - job.due() > _GRACE:
            if job.may_start(self._pace.next):
                self.moved.append((run_id_for(job.job_id, job.cursor, self._partition), self._pace.take()))
            else:
                too_late = True
        self._decided += 1
        heappush(self._left, Missed(to_us(job.cursor), job.job_id.bytes, job.version, False, too_late))

    def _make(self, job: _Job, found: CatchUp, missed: Missed, spread_at: datetime | None = None) -> None:
        """Move the job on. spread_at: when the run is due that this makes; as scheduled unless given."""
        if missed.pending_is_late:
            found = found._replace(cursor_skipped=found.cursor_skipped or DEADLINE)
        job.move(found, self._partition)
        if spread_at is not None:
            job.moves[-1] = job.moves[-1]._replace(spread_at=spread_at, rate_version=self._rate.version)
        self._decided += 1
        if found.next_fire is not None and found.next_fire <= self._now:
            heappush(self._left, Missed(to_us(found.next_fire), job.job_id.bytes, job.version, is_pending=False))
        else:
            self._spread.gone.append(job.job_id.bytes)
