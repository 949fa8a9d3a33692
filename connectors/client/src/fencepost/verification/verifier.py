"""Holds the rules against events as they come: a run's, a job's, each once, in the order of the topic.

Memory is bounded by what is alive: runs that are over are forgotten a horizon after their end, and jobs with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from fencepost.verification.certificate import Certificate, Unchecked, Verdict, Violation
from fencepost.verification.events import Event, JobEvent, RunEvent, instant_text
from fencepost.verification.occurrences import Finding, Occurrences
from fencepost.verification.overdue import Suspect, overdue_runs
from fencepost.verification.run_life import KINDS, LEASED, MAKINGS, RunLife
from fencepost.verification.run_rules import RUN_RULES
from fencepost.verification.tally import ALONE, ARRIVAL, LOST, OCCURRENCES, Tally

LOST_AFTER = timedelta(minutes=15)
HORIZON = timedelta(hours=1)
# A transaction of the server's is at most 10 s old, so nothing more of one comes after that.
SETTLED_AFTER = timedelta(seconds=15)


class Verifier:
    """complete: every run's events come from its first one on, and no run is ever forgotten.

    lost_after: how long something may be overdue. horizon: how long a run that is over is remembered.
    """

    def __init__(
        self, *, complete: bool = False, lost_after: timedelta = LOST_AFTER, horizon: timedelta = HORIZON
    ) -> None:
        self.newest: datetime | None = None  # event
        self._complete = complete
        self._lost_after = lost_after
        self._horizon = horizon
        self._tally = Tally()
        self._lives: dict[str, RunLife] = {}
        self._jobs: dict[str, Occurrences] = {}
        self._leased: dict[str, set[str]] = {}  # by job, of those that do not allow overlap
        self._gaps: dict[str, datetime] = {}  # runs of which an event is missing, and since when
        self._over: deque[tuple[datetime, str]] = deque()
        self._explained: set[str] = set()

    @property
    def violations(self) -> list[Violation]:
        """All that were found so far, but for those beyond the thousandth."""
        return self._tally.violations

    @property
    def events(self) -> int:
        """How many were judged."""
        return self._tally.counts["events"]

    # --- what comes in ---

    def unknown_runs(self, events: Iterable[Event]) -> dict[str, int]:
        """Those that seem to have begun before, with the version that comes first of each.

        Who can, tells of their past with `recall`, before these events.
        """
        seen: dict[str, int] = {}
        for event in events:
            if isinstance(event, RunEvent) and event.run_id not in self._lives:
                seen.setdefault(event.run_id, event.version)
        return {run_id: version for run_id, version in seen.items() if version > 1}

    def recall(self, event: RunEvent) -> None:
        """An event of the past: it is not judged."""
        life = self._life_of(event)
        if event.version > life.version:
            life.apply(event)

    def begin_job(self, defined: JobEvent, since: datetime, *, is_paused: bool) -> None:
        """A job as it was at `since`: `defined` is the newest event with its definition before that."""
        self._job_of(defined.job_id).begin(defined, since, is_paused=is_paused)

    def take(self, event: Event) -> None:
        """Judge one more event."""
        self._tally.counts["events"] += 1
        self.newest = event.at if self.newest is None else max(self.newest, event.at)
        if isinstance(event, JobEvent):
            self._note(event.job_id, self._job_of(event.job_id).tell(event))
        elif event.type in KINDS:
            self._take_run(event)
        else:
            self._tally.counts["unknown"] += 1

    def _take_run(self, event: RunEvent) -> None:
        life = self._life_of(event)
        if life.knows(event):
            self._tally.counts["redelivered"] += 1
            return
        if not life.version and event.type not in MAKINGS and self._may_be_older(event):
            self._tally.counts["adopted"] += 1
            self._hold("nothing_is_early", life, event)
            self._apply(life, event)
            return
        self._tally.facts[ARRIVAL] += 1
        newest = life.waiting_events[-1].version if life.waiting_events else life.version
        if event.version <= newest:
            detail = f"version {event.version} came after {newest}"
            self._tally.break_rule(ARRIVAL, life.run_id, detail, life, event)
        remade = event.type in MAKINGS and life.state == "cancelled"
        if life.version and event.version > life.version + 1 and not remade:
            life.waiting_events = sorted([*life.waiting_events, event], key=lambda each: each.version)
            self._gaps.setdefault(life.run_id, event.at)
        else:
            self._judge(life, event)
            self._judge_waiting(life, life.version + 1)

    def _may_be_older(self, event: RunEvent) -> bool:
        """Whether the run's first events may be from before all that was seen."""
        job = self._jobs.get(event.job_id)
        return not self._complete and not (job is not None and job.is_whole)

    def _judge_waiting(self, life: RunLife, through: int | None = None) -> None:
        """Those of the events that were kept back whose predecessor is there; without `through` all of them."""
        while life.waiting_events and (through is None or life.waiting_events[0].version <= life.version + 1):
            self._judge(life, life.waiting_events.pop(0))
        if not life.waiting_events:
            self._gaps.pop(life.run_id, None)

    # --- judging ---

    def _judge(self, life: RunLife, event: RunEvent) -> None:
        for name in RUN_RULES:
            self._hold(name, life, event)
        is_new = event.type in MAKINGS and life.state in ("unmade", "cancelled")
        self._apply(life, event)
        if is_new and (nominal := life.nominal) is not None:
            self._note(life.job_id, self._job_of(life.job_id).tell_made(event, nominal))

    def _hold(self, name: str, life: RunLife, event: RunEvent) -> None:
        found = RUN_RULES[name](life, event)
        if found is not None:
            self._tally.facts[name] += 1
            if found:
                self._tally.break_rule(name, life.run_id, found, life, event)

    def _note(self, job_id: str, findings: Iterator[Finding]) -> None:
        for finding in findings:
            self._tally.counts["occurrences"] += finding.decided
            self._tally.facts[OCCURRENCES] += finding.decided if finding.is_checked else 0
            if finding.wrong:
                self._tally.break_rule(OCCURRENCES, job_id, f"job {job_id}: {finding.wrong}")

    def _apply(self, life: RunLife, event: RunEvent) -> None:
        self._tally.counts[event.type] += 1
        if event.type == "run_leased":
            self._tally.counts["started"] += life.leases == 0
            self._tally.counts["started again"] += life.restart == "expired"
            self._note_lease(life, event)
        life.apply(event)
        if life.state not in LEASED and (leased := self._leased.get(life.job_id)) is not None:
            leased.discard(life.run_id)
            if not leased:
                del self._leased[life.job_id]
        if life.is_over:
            self._tally.facts[LOST] += 1
            self._over.append((event.at, life.run_id))
        self._explained.discard(life.run_id)

    def _note_lease(self, life: RunLife, event: RunEvent) -> None:
        job = self._jobs.get(life.job_id)
        if job is None or job.overlap == "allow":
            return
        self._tally.facts[ALONE] += 1
        leased = self._leased.setdefault(life.job_id, set())
        if others := leased - {life.run_id}:
            detail = f"leased at {instant_text(event.at)} while run {min(others)} of its job is"
            self._tally.break_rule(ALONE, life.run_id, detail, life, event)
        leased.add(life.run_id)

    def _life_of(self, event: RunEvent) -> RunLife:
        life = self._lives.get(event.run_id)
        if life is None:
            life = self._lives[event.run_id] = RunLife(event.run_id, event.job_id)
            self._tally.counts["runs"] += 1
        return life

    def _job_of(self, job_id: str) -> Occurrences:
        job = self._jobs.get(job_id)
        if job is None:
            job = self._jobs[job_id] = Occurrences(job_id)
            self._tally.counts["jobs"] += 1
        return job

    # --- what should have happened ---

    def settle(self, until: datetime) -> list[Suspect]:
        """All events before `until` are in: judge what is missing by then. Returns what is overdue, each once.

        Whoever can finds out what became of it, and tells by `explain`.
        """
        for run_id in [run_id for run_id, since in self._gaps.items() if since + SETTLED_AFTER < until]:
            self._judge_waiting(self._lives[run_id])
        runs = overdue_runs(self._lives.values(), until - self._lost_after)
        return [*self._undecided(until), *(each for each in runs if each.run_id not in self._explained)]

    def _undecided(self, until: datetime) -> Iterator[Suspect]:
        for job in self._jobs.values():
            self._note(job.job_id, job.look_before(until - SETTLED_AFTER))
            if job.created is not None and job.created.at + self._lost_after < until:
                self._look_for_run(job)
            since = job.undecided_since(until, self._lost_after)
            if since is not None and not job.is_stalled:
                job.is_stalled = True
                what = f"{instant_text(since)} has come, and by {instant_text(until)} nothing was decided since"
                yield Suspect(what, job.job_id, occurrence=job.following(since))

    def _look_for_run(self, job: Occurrences) -> None:
        if job.created is not None:
            detail = f"job {job.job_id} was created at {instant_text(job.created.at)}, and has no run"
            self._tally.break_rule(LOST, job.job_id, detail)
            job.created = None

    def explain(self, suspect: Suspect, why: str | None) -> None:
        """why: what keeps it, in a few words; None when nobody knows of it any more: it is lost."""
        if why is not None:
            self._tally.explained[why] += 1
        if suspect.run_id is None:
            if why is None:
                self._tally.break_rule(OCCURRENCES, suspect.job_id, f"job {suspect.job_id}: {suspect.what}")
            return
        self._explained.add(suspect.run_id)
        self._tally.facts[LOST] += 1
        if why is None:
            detail = f"{suspect.what}; the ledger does not know the run any more"
            self._tally.break_rule(LOST, suspect.run_id, detail, self._lives.get(suspect.run_id))

    def forget(self, until: datetime) -> None:
        """Drop runs that were over a horizon before, and jobs that can have no other."""
        while not self._complete and self._over and self._over[0][0] + self._horizon < until:
            life = self._lives.get(self._over.popleft()[1])
            if life is not None and life.is_over:
                del self._lives[life.run_id]
                if (job := self._jobs.get(life.job_id)) is not None:
                    self._note(life.job_id, job.look_before(until))
                    if (job.is_deleted or job.recurs is False) and life.job_id not in self._leased:
                        del self._jobs[life.job_id]

    def finish(self) -> None:
        """Nothing more comes: judge what was kept back."""
        for run_id in list(self._gaps):
            self._judge_waiting(self._lives[run_id])
        for job in self._jobs.values():
            self._note(job.job_id, job.look())
            if self._complete:
                self._look_for_run(job)

    def certificate(
        self,
        *,
        source: str,
        tenant: str | None,
        since: datetime,
        until: datetime,
        through: datetime | None,
        is_complete: bool,
        unchecked: list[Unchecked],
    ) -> Certificate:
        """is_complete: whether all events of the range were there to be judged. See Certificate."""
        counts, jobs = self._tally.counts, self._jobs.values()
        counts["open"] = sum(not life.is_over and life.state != "dead" for life in self._lives.values())
        counts["undefined"] = sum(job.recurs is None for job in jobs)
        counts["unreadable"] = sum(job.unreadable is not None for job in jobs)
        is_judged = is_complete and bool(self._lives or self._jobs or self.events)
        verdict: Verdict = "violated" if self._tally.broken else "holds" if is_judged else "not judged"
        return self._tally.certificate(verdict, source, tenant, (since, until), through, unchecked)
