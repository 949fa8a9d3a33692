"""What was asked for and what is known to a harness alone: pauses, edits, attempts, who owns what, what was broken.

Beside what `checker` holds against every history. A model of its own again, that imports nothing of the product.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, pairwise
from typing import NamedTuple

from tests.chaos.checker import Violation
from tests.chaos.history import TopicEvent, WorkerEntry


class Still(NamedTuple):
    """Nothing of these jobs is to be leased between the two instants.

    since: when it was seen that the ledger has the pause. until: just before it was asked to end.
    """

    jobs: frozenset[str]
    since: datetime
    until: datetime


class Edited(NamedTuple):
    """A job's old schedule is over: since it was seen that the ledger has the edit, until the new one's first fire."""

    job: str
    since: datetime
    until: datetime


class Holding(NamedTuple):
    """Who holds a partition at the end: by the ledger, and by what the processes say; and how far its commands are."""

    by_ledger: str
    by_word: tuple[str, ...]
    consumed: int
    topic_end: int


class Fault(NamedTuple):
    """Something was broken between the two instants."""

    since: datetime
    until: datetime


@dataclass
class Promises:
    """What was asked for, and what is known beside the runs' own history.

    events: in topic order. doomed: jobs whose run must die, after so many attempts. holdings: as they were read, once
    or more often. faults: None where nothing is said of duplicates. in_history: how many completed runs the history
    tells of, where that was asked. undecided: recurring jobs whose pending occurrence came before the instant up to
    which, at the same moment, all were said to be decided.
    """

    events: Sequence[TopicEvent]
    entries: Sequence[WorkerEntry]
    dead_runs: frozenset[str] = frozenset()
    doomed: Mapping[str, int] = field(default_factory=dict)
    still: Sequence[Still] = ()
    edited: Sequence[Edited] = ()
    holdings: Sequence[Mapping[int, Holding]] = ()
    faults: Sequence[Fault] | None = None
    in_history: int | None = None
    undecided: Mapping[str, datetime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lives: dict[str, list[TopicEvent]] = defaultdict(list)
        self.leases: dict[str, list[TopicEvent]] = defaultdict(list)  # of a job's runs
        for event in {event.event_id: event for event in self.events}.values():
            self.lives[event.run_id].append(event)
            if event.type == "run_leased":
                self.leases[event.job_id].append(event)


Found = Iterator[tuple[str, str]]


def pauses_hold(promises: Promises) -> Found:
    """Nothing is leased of what is paused."""
    for still in promises.still:
        for lease in chain.from_iterable(promises.leases[job] for job in still.jobs):
            if still.since < lease.at < still.until:
                yield lease.job_id, f"run {lease.run_id} was leased at {lease.at}, in a pause since {still.since}"


def edits_hold(promises: Promises) -> Found:
    """After an edit nothing starts any more that the old schedule would have made due."""
    for job, since, until in promises.edited:
        for lease in promises.leases[job]:
            fired = lease.scheduled_for
            if fired is not None and since < fired < until:
                yield job, f"run {lease.run_id} of {fired} is of a schedule that ended at {since}"


def attempts_are_charged(promises: Promises) -> Found:
    """Each lease is an attempt more, unless the one before was given back; and workers are told which it is."""
    numbers: dict[tuple[str, int], int] = {}
    for run_id, life in promises.lives.items():
        charged = 0
        for event, following in pairwise([*life, None]):
            assert event is not None
            if event.type == "run_leased":
                charged += 1
                numbers[run_id, event.token or 0] = charged
                if following is not None and following.type == "run_held":
                    break  # held as it failed, or as it was given back: the event does not tell
            charged -= event.type == "run_released"
    for entry in promises.entries:
        expected = numbers.get((entry.run_id, entry.token))
        if entry.kind == "leased" and expected is not None and entry.attempt != expected:
            yield entry.run_id, f"token {entry.token} came as attempt {entry.attempt}, and is the {expected}th"


def the_doomed_die(promises: Promises) -> Found:
    """A run that never succeeds is tried as often as its job says, and kept; no other run dies."""
    for run_id, life in promises.lives.items():
        attempts = promises.doomed.get(life[0].job_id)
        kinds = Counter(event.type for event in life)
        leases = kinds["run_leased"] - kinds["run_released"]
        if attempts is None and (life[-1].type == "run_dead" or run_id in promises.dead_runs):
            yield run_id, "died, and was not to"
        elif attempts is not None and (life[-1].type != "run_dead" or run_id not in promises.dead_runs):
            yield run_id, f"never succeeds, and is {life[-1].type}"
        elif attempts is not None and leases != attempts:
            yield run_id, f"died after {leases} attempts of {attempts}"


def partitions_are_owned(promises: Promises) -> Found:
    """Each partition has one owner, by the ledger and by its own word, who has applied all of its commands."""
    for partition, holding in chain.from_iterable(reading.items() for reading in promises.holdings):
        if holding.by_word != (holding.by_ledger,):
            said = ", ".join(holding.by_word) or "nobody"
            yield f"partition {partition}", f"{said} works on it, the ledger has {holding.by_ledger or 'nobody'}"
        if holding.consumed != holding.topic_end:
            yield f"partition {partition}", f"its commands end at {holding.topic_end}, applied up to {holding.consumed}"


def decisions_are_as_far_as_is_said(promises: Promises) -> Found:
    """Up to the instant that an owner tells every occurrence has its decision."""
    for job, through in promises.undecided.items():
        yield job, f"has an occurrence without a decision, though all are said to be decided up to {through}"


def the_history_is_complete(promises: Promises) -> Found:
    """It tells of every run that was completed, whatever became of the process that keeps it."""
    completed = sum(any(event.type == "run_completed" for event in life) for life in promises.lives.values())
    if promises.in_history not in (None, completed):
        yield "history", f"tells of {promises.in_history} completed runs, the topic of {completed}"


def duplicates_have_a_fault(promises: Promises) -> Found:
    """A handler that ran to its end runs to it again only when something was broken in between."""
    if promises.faults is None:
        return
    for run_id, finishes in finished_twice(promises.entries).items():
        since, until = min(finishes), max(finishes)
        if not any(fault.since <= until and since <= fault.until for fault in promises.faults):
            yield run_id, f"its handler ended at {since} and at {until}, and nothing was broken then"


def finished_twice(entries: Iterable[WorkerEntry]) -> dict[str, list[datetime]]:
    """The instants at which handlers ended, of runs of which more than one did."""
    finishes: dict[str, list[datetime]] = defaultdict(list)
    for entry in entries:
        if entry.kind == "finished":
            finishes[entry.run_id].append(entry.at)
    return {run_id: instants for run_id, instants in finishes.items() if len(instants) > 1}


RULES = {
    rule.__name__: rule
    for rule in (
        pauses_hold,
        edits_hold,
        attempts_are_charged,
        the_doomed_die,
        partitions_are_owned,
        decisions_are_as_far_as_is_said,
        the_history_is_complete,
        duplicates_have_a_fault,
    )
}


def broken(promises: Promises) -> list[Violation]:
    """Hold every rule against what was seen."""
    return [Violation(name, *found) for name, rule in RULES.items() for found in rule(promises)]


def counted(violations: Iterable[Violation]) -> str:
    """How often each rule was broken, in a line."""
    return ", ".join(f"{rule} ({count})" for rule, count in Counter(each.rule for each in violations).most_common())
