"""What an owner remembers of its partition: the timing state on disk, and the near future in wheels.

The next 30 s are loaded ahead, or less where a lot comes in them, so that what is in memory is bounded; whatever is
folded in before the loaded edge goes straight into the wheels. A run that was hinted stays under watch until somebody
leases it: hints may be lost. Two kinds of due runs are not hinted at once: a late run of a job's pending occurrence is
withheld until that is decided, for it may turn out to be superseded (unless that cannot be decided: then nothing will
supersede it); and a gated run must pass its job's overlap rule first.

Of a backlog that nobody works on little is said: whoever comes to wait on a queue has it looked at, and finds it all.
So of the runs of a queue and lane that have waited for a while one speaks for the others and is hinted every minute;
those are hinted every hour, and leave half of the room under watch to runs that have just come due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from schemas.events import Event
from schemas.ids import partition_of_run, run_id_for
from streams.catch_up import GRACE_S
from streams.timers import EVERY_INSTANT, Position, Rhythm, Waiting, WaitingRun, from_us
from streams.timing_state import TimingState, scan_key
from streams.timing_wheel import TimingWheel

LOOKAHEAD_US = 30_000_000
LOAD_STEP_US = 1_000_000  # load again when that much of the near future has come into sight
LOAD_LIMIT = 10_000  # timers a load, so that a backlog does not hold the loop up; with so many loaded it can wait
REHINT_AFTER_US = 5_000_000
REHINT_AT_MOST_EVERY_US = 60_000_000
REHINT_SPOKEN_FOR_EVERY_US = 3_600_000_000
REHINT_LIMIT = 250  # runs a sweep asks the ledger about at a time, so that it does not hold the loop up
GRACE_US = int(GRACE_S * 1_000_000)
WATCHED_LIMIT = 100_000  # runs under watch; beyond it the API's own polls find them
LONG_WATCHED_LIMIT = 50_000  # with so many under watch those that others speak for have no room
ROUND_LIMIT = 5_000  # due runs that one sweep goes through for those without room under watch
_SPEAKERS_AT_LEAST = 1_000  # before those that do not speak any more are looked for


@dataclass(slots=True)
class Fired:
    """What has become due: runs to hint by where they wait, and jobs whose pending occurrence has come.

    soon: runs to hint that are not due yet, with when they are. gated: runs that must be admitted first.
    late_jobs: those whose occurrence came a while ago.
    """

    runs: dict[Waiting, list[bytes]] = field(default_factory=dict)
    soon: dict[Waiting, list[tuple[int, bytes]]] = field(default_factory=dict)
    gated: list[bytes] = field(default_factory=list)
    jobs: list[bytes] = field(default_factory=list)
    late_jobs: list[bytes] = field(default_factory=list)
    oldest_due_us: int | None = None


class _Ahead:
    """A wheel with the timers of the near future: what is before the edge is in it, the rest is on disk only.

    short: the edge is nearer than it was to be, because there are so many.
    """

    def __init__(self, scan: Callable[[bytes, int, int], list[tuple[int, bytes]]]) -> None:
        self.wheel: TimingWheel[bytes] = TimingWheel()
        self.edge, self.edge_us, self.short = scan_key(0), 0, False
        self._scan = scan

    def load(self, now_us: int, until_us: int) -> None:
        """Move the edge towards until_us. Never back: the clock may have been, but what was loaded may have fired."""
        if len(self.wheel) >= LOAD_LIMIT and self.edge_us > now_us:
            self.short = self.edge_us < until_us
            return
        timers = self._scan(self.edge, until_us, LOAD_LIMIT)
        for at_us, key in timers:
            self.wheel.add(key, at_us)
        self.short = len(timers) == LOAD_LIMIT
        at_us, last = timers[-1] if self.short else (until_us, b"")
        self.edge, self.edge_us = max((self.edge, self.edge_us), (scan_key(at_us, last), at_us))

    def retime(self, key: bytes, at_us: int | None) -> None:
        """Before the edge a timer goes into the wheel now; beyond it a later load finds it."""
        if at_us is not None and scan_key(at_us, key) <= self.edge:
            self.wheel.add(key, at_us)
        else:
            self.wheel.remove(key)

    def has_more(self, now_us: int) -> bool:
        """Whether another load would bring in more: there is room, or what it brings in is due."""
        return self.short and (len(self.wheel) < LOAD_LIMIT or self.edge_us <= now_us)

    def is_clear(self, now_us: int) -> bool:
        """Whether no timer has come that was not popped."""
        next_us = self.wheel.next_due_us()
        return self.edge_us > now_us and (next_us is None or next_us > now_us)

    def next_us(self) -> int | None:
        """When the next timer comes, or the edge, if there is more behind it."""
        next_us = self.wheel.next_due_us()
        return min(self.edge_us, next_us or self.edge_us) if self.short else next_us


class PartitionMemory:
    """Not thread-safe. Instants are microseconds since 1970 by the ledger's clock."""

    def __init__(self, folder: Path) -> None:
        self.state = TimingState(folder)
        self.undecidable: set[bytes] = set()  # jobs whose stored schedule cannot be read, until they are changed
        self._begin()

    def _begin(self) -> None:
        self._runs, self._jobs = _Ahead(self.state.due), _Ahead(self.state.cursors)
        # Gated runs that were too early to be hinted ahead: they pass their gate when they are due.
        self._gated: TimingWheel[bytes] = TimingWheel()
        self._watched: TimingWheel[bytes] = TimingWheel()
        self._speakers: dict[Waiting, bytes] = {}  # run ids; one that is not under watch any more speaks for nobody
        self._withheld: dict[bytes, bytes] = {}  # job id -> run id
        self._round_from = scan_key(0)
        self._load_from_us = 0
        self._any_unwatched = self._met_unwatched = False  # at all; since the round began

    def close(self) -> None:
        self.state.close()

    def clear(self) -> None:
        """Forget everything, on disk too."""
        self.state.clear()
        self._begin()

    def timers(self) -> int:
        """How many timers are in the wheels."""
        return sum(map(len, (self._runs.wheel, self._jobs.wheel, self._gated, self._watched)))

    def fold(self, events: Iterable[Event], position: Position | None = None) -> None:
        """Take in what happened, and how far the feed is."""
        changed = self.state.fold(events, position)
        for run_id, due_us in changed.runs.items():
            self._watched.remove(run_id)
            self._gated.remove(run_id)
            self._runs.retime(run_id, due_us)
        for job_id, cursor_us in changed.jobs.items():
            self.undecidable.discard(job_id)
            self._jobs.retime(job_id, cursor_us)

    def waits(self, run_id: bytes) -> bool:
        """Whether the run waits, as far as is known."""
        return self.state.waiting(run_id) is not None

    def forget_run(self, run_id: bytes) -> None:
        """The ledger does not know the run any more."""
        self.state.forget_run(run_id)
        self._watched.remove(run_id)
        self._gated.remove(run_id)
        self._runs.wheel.remove(run_id)

    def forget_job(self, job_id: bytes) -> None:
        """The job has no occurrence left, or is none of ours any more."""
        self.state.forget_job(job_id)
        self.undecidable.discard(job_id)
        self._jobs.wheel.remove(job_id)

    def load(self, now_us: int) -> bool:
        """Bring the near future into the wheels. True when another call would bring in more of it."""
        until_us = now_us + LOOKAHEAD_US
        if until_us < self._load_from_us:
            return False
        self._runs.load(now_us, until_us)
        self._jobs.load(now_us, until_us)
        self._load_from_us = 0 if self._runs.short or self._jobs.short else until_us + LOAD_STEP_US
        return self._runs.has_more(now_us) or self._jobs.has_more(now_us)

    def pop_due(self, now_us: int, ahead_us: int = 0, came_by_us: int | None = None) -> Fired:
        """Take out what is due; runs that are hinted stay under watch, and may be hinted so much ahead.

        came_by_us: of jobs only those whose pending occurrence had come by then; by now unless given.
        """
        fired = Fired()
        for cursor_us, job_id in self._jobs.wheel.pop_timers(now_us if came_by_us is None else came_by_us, LOAD_LIMIT):
            (fired.late_jobs if now_us - cursor_us > GRACE_US else fired.jobs).append(job_id)
        for run_id in self._runs.wheel.pop_due(now_us + ahead_us, LOAD_LIMIT):
            self._collect(fired, run_id, now_us, ahead_us=ahead_us)
        for run_id in self._gated.pop_due(now_us, LOAD_LIMIT):
            self._collect(fired, run_id, now_us)
        return fired

    def next_unleased_us(self) -> int | None:
        """From when on pop_unleased or look_round may have something to do; None while nothing is under watch."""
        return 0 if self._may_look_round() else self._watched.next_due_us()

    def pop_unleased(self, now_us: int) -> list[bytes]:
        """Runs that were hinted a while ago and that nobody has leased since. Ask the ledger, then `hint_again`."""
        return self._watched.pop_due(now_us, REHINT_LIMIT)

    def look_round(self, now_us: int) -> None:
        """Where there is room by now, take some due runs under watch that had none, others with every call.

        pop_unleased gives them next: they may have been leased long since, or their hints lost.
        """
        if not self._may_look_round():
            return
        page = self.state.due(self._round_from, now_us + 1, ROUND_LIMIT)
        self.watch((run_id for _, run_id in page if run_id not in self._watched), now_us)
        if len(page) == ROUND_LIMIT:
            self._round_from = scan_key(*page[-1])
        else:
            self._round_from = scan_key(0)
            self._any_unwatched, self._met_unwatched = self._met_unwatched, False

    def _may_look_round(self) -> bool:
        return self._any_unwatched and len(self._watched) + ROUND_LIMIT <= LONG_WATCHED_LIMIT

    def watch(self, run_ids: Iterable[bytes], at_us: int) -> None:
        """Let pop_unleased give these again: the ledger could not be asked."""
        for run_id in run_ids:
            self._watched.add(run_id, at_us)

    def hint_again(self, run_ids: Iterable[bytes], now_us: int) -> Fired:
        """Those of the runs that still wait and are due, as when they first were."""
        fired = Fired()
        for run_id in run_ids:
            self._collect(fired, run_id, now_us)
        return fired

    def admitted(self, run_ids: Iterable[bytes], now_us: int) -> Fired:
        """Gated runs that may be hinted now; one that was hinted just now, and is under watch, is not again."""
        fired = Fired()
        for run_id in run_ids:
            if run_id not in self._watched:
                self._collect(fired, run_id, now_us, admitted=True)
        return fired

    def decided(self, job_ids: Iterable[bytes]) -> list[bytes]:
        """The runs that were withheld until these jobs' pending occurrences were decided; they are not any more."""
        return [run_id for job_id in job_ids if (run_id := self._withheld.pop(job_id, None)) is not None]

    def next_due_us(self, ahead_us: int = 0, rounds: Rhythm = EVERY_INSTANT) -> int | None:
        """When to look again, as far as is known. rounds: when jobs are looked for."""
        run_us, job_us = self._runs.next_us(), self._jobs.next_us()
        instants = [
            None if job_us is None else rounds.next_us(job_us),
            None if run_us is None else run_us - ahead_us,
            self._gated.next_due_us(),
        ]
        return min((at for at in instants if at is not None), default=None)

    def is_clear_of_jobs(self, now_us: int) -> bool:
        """Whether no job's pending occurrence has come since pop_due gave what had."""
        return self._jobs.is_clear(now_us)

    def retry_job(self, job_id: bytes, at_us: int) -> None:
        """Look at the job again later: deciding its occurrence did not work."""
        self._jobs.wheel.add(job_id, at_us)

    def _collect(self, fired: Fired, run_id: bytes, now_us: int, *, admitted: bool = False, ahead_us: int = 0) -> None:
        found = self.state.waiting(run_id)
        if found is None:
            return
        due_us, run = found
        if due_us > now_us + ahead_us:
            self._runs.retime(run_id, due_us)
        elif due_us > now_us and run.gated:
            self._gated.add(run_id, due_us)
        elif now_us - due_us > GRACE_US and self._is_undecided(run_id, run.job_id, now_us):
            self._withheld[run.job_id] = run_id
        elif run.gated and not admitted:
            fired.gated.append(run_id)
        else:
            self._hint(fired, run_id, run, due_us, now_us)

    def _hint(self, fired: Fired, run_id: bytes, run: WaitingRun, due_us: int, now_us: int) -> None:
        if due_us > now_us:
            fired.soon.setdefault(run.where, []).append((due_us, run_id))
        else:
            fired.runs.setdefault(run.where, []).append(run_id)
        if fired.oldest_due_us is None:
            fired.oldest_due_us = due_us
        self._keep_watching(run_id, run.where, now_us - due_us, now_us)

    def _keep_watching(self, run_id: bytes, where: Waiting, waited_us: int, now_us: int) -> None:
        """The longer it has waited, the rarer it is hinted: for a queue without workers a hint a minute is plenty."""
        if waited_us <= REHINT_AT_MOST_EVERY_US:
            limit, pause_us = WATCHED_LIMIT, max(waited_us, REHINT_AFTER_US)
        elif self._speaks(run_id, where):
            limit, pause_us = WATCHED_LIMIT, _scattered(run_id, REHINT_AT_MOST_EVERY_US)
        else:
            limit, pause_us = LONG_WATCHED_LIMIT, _scattered(run_id, REHINT_SPOKEN_FOR_EVERY_US)
        if len(self._watched) < limit:
            self._watched.add(run_id, now_us + pause_us)
        else:
            self._any_unwatched = self._met_unwatched = True

    def _speaks(self, run_id: bytes, where: Waiting) -> bool:
        """Whether the run speaks for all that wait there: it did, or whoever did is not under watch any more."""
        speaker = self._speakers.get(where, run_id)
        if speaker != run_id and speaker in self._watched:
            return False
        if len(self._speakers) > _SPEAKERS_AT_LEAST + 2 * len(self._watched):
            self._speakers = {where: each for where, each in self._speakers.items() if each in self._watched}
        self._speakers[where] = run_id
        return True

    def _is_undecided(self, run_id: bytes, job_id: bytes, now_us: int) -> bool:
        """Whether the run is that of its job's pending occurrence, which has come: somebody is about to decide it."""
        job = self.state.job(job_id)
        if job is None or job.cursor_us > now_us or job_id in self.undecidable:
            return False
        partition = partition_of_run(UUID(bytes=run_id))
        return run_id == run_id_for(UUID(bytes=job_id), from_us(job.cursor_us), partition).bytes


def _scattered(run_id: bytes, pause_us: int) -> int:
    """Up to a quarter less: what was hinted all at once, at a start, does not come back all at once."""
    return pause_us * (768 + run_id[-1]) // 1024
