"""Judges a history by a model of its own: it knows what a run's life may look like, and nothing of how we make it so.

What the topic tells is judged by the rules that `fencepost verify` has for everybody (fencepost.verification); here are
those about what only a trial sees: the workers' own words, the commands, the ledger and its epochs. None of them knows
anything of the server. Every rule can fail: test_checker.py breaks a good history once for each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from fencepost.verification.run_rules import RUN_RULES
from fencepost.verification.tally import ALONE, ARRIVAL, LOST, OCCURRENCES
from fencepost.verification.verifier import Verifier
from tests.chaos.history import History, TopicEvent


class Violation(NamedTuple):
    """rule: the name of the promise that was broken. subject: a run, job, command or partition."""

    rule: str
    subject: str
    detail: str


Found = Iterator[tuple[str, str]]


class Lives:
    """Every run's events in the order of their versions, each once, and each worker's word about the run."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.by_run: dict[str, list[TopicEvent]] = defaultdict(list)
        self.runs_of_job: dict[str, list[str]] = defaultdict(list)
        for event in {event.event_id: event for event in history.events}.values():
            self.by_run[event.run_id].append(event)
        for run_id, life in self.by_run.items():
            life.sort(key=lambda event: event.version)
            self.runs_of_job[life[0].job_id].append(run_id)
        self._judged = _judged(history)

    def of_type(self, run_id: str, kind: str) -> list[TopicEvent]:
        return [event for event in self.by_run[run_id] if event.type == kind]

    def broken(self, rule: str) -> Found:
        """What of the topic breaks one of the rules of fencepost.verification: run (or job), and how."""
        for violation in self._judged[rule]:
            subject = violation.subject
            story = f": {_story(self, subject)}" if subject in self.by_run else ""
            yield subject, f"{violation.detail}{story}"


def _judged(history: History) -> dict[str, list[Violation]]:
    verifier = Verifier(complete=True)
    for event in history.told or history.events:
        verifier.take(event)
    verifier.finish()
    found: defaultdict[str, list[Violation]] = defaultdict(list)
    for each in verifier.violations:
        found[each.rule].append(Violation(each.rule, each.subject, each.detail))
    return found


@dataclass(frozen=True)
class Report:
    """violations: none in a sound history. duplicates: runs whose handler ran to its end more than once."""

    violations: list[Violation]
    runs: int
    completed: int
    attempts: int
    duplicates: int
    lateness_s_max: float

    def __str__(self) -> str:
        counts = f"{self.runs} runs, {self.completed} completed in {self.attempts} attempts, {self.duplicates} twice"
        return f"{counts}, first lease at most {self.lateness_s_max:.2f} s late, {len(self.violations)} violations"


def check(history: History) -> Report:
    """Hold every rule against the history."""
    lives = Lives(history)
    violations = [Violation(name, *found) for name, rule in RULES.items() for found in rule(lives)]
    kinds = Counter(event.type for life in lives.by_run.values() for event in life)
    late = [(leases[0].at - due_of(leases[0])).total_seconds() for leases in _leases(lives) if leases]
    return Report(
        violations,
        runs=len(lives.by_run),
        completed=kinds["run_completed"],
        attempts=kinds["run_leased"],
        duplicates=len(_done_twice(lives)),
        lateness_s_max=max(late, default=0.0),
    )


def lateness_s(history: History, *, since: datetime | None = None, until: datetime | None = None) -> list[float]:
    """Of the first lease of each run that was due within, least first."""
    first = (leases[0] for leases in _leases(Lives(history)) if leases)
    return sorted(
        (lease.at - due_of(lease)).total_seconds()
        for lease in first
        if (since is None or due_of(lease) >= since) and (until is None or due_of(lease) < until)
    )


def due_of(lease: TopicEvent) -> datetime:
    """When a leased run was due. A lease without it is as early as can be."""
    return lease.due_at or datetime.max.replace(tzinfo=lease.at.tzinfo)


def nothing_is_lost(lives: Lives) -> Found:
    """Every accepted one-off has one run, and that run is completed."""
    yield from lives.broken(LOST)
    for job_id in lives.history.one_offs:
        run_ids = lives.runs_of_job.get(job_id, [])
        if len(run_ids) != 1:
            yield job_id, f"the one-off has {len(run_ids)} runs"
        for run_id in run_ids:
            if not lives.of_type(run_id, "run_completed"):
                yield run_id, f"was never completed: {_story(lives, run_id)}"


def every_command_is_applied(lives: Lives) -> Found:
    """What Kafka acknowledged is on the topic, and the ledger has an outcome for each command of it."""
    created = {command.job_id for command in lives.history.commands if command.kind == "CreateJob"}
    for job_id in lives.history.one_offs.keys() - created:
        yield job_id, "its acknowledged create is not on the topic"
    for command in lives.history.commands:
        outcome = lives.history.ledger.outcomes.get(command.command_id)
        if outcome not in ("applied", "unchanged"):
            yield command.command_id, f"{command.kind} of job {command.job_id}: {outcome}"


def completed_at_most_once(lives: Lives) -> Found:
    """One accepted completion a run, by the topic and by what the workers were told."""
    yield from lives.broken(completed_at_most_once.__name__)
    accepted: dict[str, set[int]] = defaultdict(set)
    for entry in lives.history.entries_of("answered"):
        if entry.status == 200:
            accepted[entry.run_id].add(entry.token)
    for run_id, life in lives.by_run.items():
        recorded = {event.token for event in life if event.type == "run_completed"}
        if not accepted[run_id] <= recorded:
            yield run_id, f"accepted under {sorted(accepted[run_id])}, recorded under {sorted(map(str, recorded))}"


def nothing_is_early(lives: Lives) -> Found:
    """No lease and no handler before the instant that was asked for, nor before the attempt's own due time."""
    yield from lives.broken(nothing_is_early.__name__)
    for leases in _leases(lives):
        for lease in leases:
            asked = lives.history.one_offs.get(lease.job_id)
            if asked is not None and lease.at < asked:
                yield lease.run_id, f"leased at {lease.at}, asked for {asked}"
    due = {(lease.run_id, lease.token): due_of(lease) for leases in _leases(lives) for lease in leases}
    for entry in lives.history.entries_of("started"):
        if entry.at < due.get((entry.run_id, entry.token), entry.at):
            yield entry.run_id, f"its handler started at {entry.at}, due {due[entry.run_id, entry.token]}"


def workers_hold_what_the_topic_says(lives: Lives) -> Found:
    """A lease that a worker got is one that was recorded, for that worker and under that token."""
    recorded = {(lease.run_id, lease.token, lease.worker) for leases in _leases(lives) for lease in leases}
    for entry in lives.history.entries_of("leased"):
        if (entry.run_id, entry.token, entry.worker) not in recorded:
            yield entry.run_id, f"{entry.worker} holds token {entry.token}, which was never recorded for it"
    held = {(entry.run_id, entry.token, entry.worker) for entry in lives.history.entries_of("leased")}
    for entry in lives.history.entries_of("started"):
        if (entry.run_id, entry.token, entry.worker) not in held:
            yield entry.run_id, f"{entry.worker} began it under token {entry.token}, and was never given that lease"


def epochs_only_grow(lives: Lives) -> Found:
    """A partition's epoch never falls, and grows whenever a new owner appears."""
    for before, after in pairwise(lives.history.epochs):
        for partition, (epoch, owner) in after.partitions.items():
            old_epoch, old_owner = before.partitions.get(partition, (0, None))
            if epoch < old_epoch:
                yield f"partition {partition}", f"epoch {old_epoch} before {epoch}"
            if epoch == old_epoch and owner not in (old_owner, None):
                yield f"partition {partition}", f"{owner} owns it under epoch {epoch}, which was {old_owner}'s"


def nothing_runs_twice_unprovoked(lives: Lives) -> Found:
    """A handler that ran to its end runs again only where a fault came between it and its completion."""
    if not lives.history.faults:
        for run_id in _done_twice(lives):
            yield run_id, f"its handler ran twice though nothing was broken: {_story(lives, run_id)}"


def the_ledger_is_empty(lives: Lives) -> Found:
    """At the end nothing waits: no run that lives or died, no event that was not published."""
    readout = lives.history.ledger
    for run_id in readout.live_runs:
        yield run_id, "is still in the ledger"
    for run_id in readout.dead_runs:
        yield run_id, "died"
    if readout.outbox_rows:
        yield "outbox", f"{readout.outbox_rows} rows wait"


def _of_the_topic(rule: str) -> Callable[[Lives], Found]:
    return lambda lives: lives.broken(rule)


_HERE = (
    nothing_is_lost,
    every_command_is_applied,
    completed_at_most_once,
    nothing_is_early,
    workers_hold_what_the_topic_says,
    epochs_only_grow,
    nothing_runs_twice_unprovoked,
    the_ledger_is_empty,
)
RULES: dict[str, Callable[[Lives], Found]] = {
    **{rule: _of_the_topic(rule) for rule in (*RUN_RULES, ARRIVAL, OCCURRENCES, ALONE)},
    **{rule.__name__: rule for rule in _HERE},
}


def _leases(lives: Lives) -> Iterator[list[TopicEvent]]:
    for run_id in lives.by_run:
        yield lives.of_type(run_id, "run_leased")


def _done_twice(lives: Lives) -> list[str]:
    times = Counter(entry.run_id for entry in lives.history.entries_of("finished"))
    return [run_id for run_id, count in times.items() if count > 1]


def _story(lives: Lives, run_id: str) -> str:
    return " ".join(f"{event.type.removeprefix('run_')}@{event.at:%H:%M:%S.%f}" for event in lives.by_run[run_id])
