"""The checker can fail: each rule finds its own kind of damage in a history that was sound, and finds no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fencepost.verification.events import Event, JobEvent, RunEvent
from fencepost.verification.run_ids import scheduled_run_id
from tests.chaos.checker import RULES, check
from tests.chaos.history import (
    EpochSample,
    History,
    LedgerReadout,
    TopicCommand,
    TopicEvent,
    WorkerEntry,
    read_worker_log,
)

DUE = datetime(2026, 3, 1, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return DUE + timedelta(seconds=seconds)


def event(job: int, version: int, kind: str, seconds: float, **more: Any) -> TopicEvent:
    return TopicEvent(f"{job}-{version}", kind, after(seconds), f"job-{job}", f"run-{job}", version, **more)


def entry(job: int, kind: Any, seconds: float, token: int = 1, worker: str = "w", **more: Any) -> WorkerEntry:
    return WorkerEntry(kind, after(seconds), worker, f"run-{job}", token, **more)


def lease(job: int, version: int, seconds: float, token: int, worker: str = "w") -> TopicEvent:
    terms = {"token": token, "worker": worker, "due_at": DUE, "expires_at": after(seconds + 5)}
    return event(job, version, "run_leased", seconds, **terms)


def sound() -> History:
    """Two one-offs: the first is completed at once; of the second an attempt expired, without reaching its end."""
    return History(
        one_offs={"job-1": DUE, "job-2": DUE},
        entries=[
            entry(1, "leased", 0.1),
            entry(1, "started", 0.1),
            entry(1, "finished", 0.2),
            entry(1, "answered", 0.3, status=200),
            entry(2, "leased", 0.1, worker="frozen"),
            entry(2, "started", 0.1, worker="frozen"),
            entry(2, "leased", 7.0, token=2),
            entry(2, "started", 7.0, token=2),
            entry(2, "finished", 7.1, token=2),
            entry(2, "answered", 7.2, token=2, status=200),
            entry(2, "answered", 9.0, worker="frozen", status=409),
        ],
        events=[
            event(1, 1, "run_scheduled", -5),
            event(2, 1, "run_scheduled", -5),
            lease(1, 2, 0.1, token=1),
            lease(2, 2, 0.1, token=1, worker="frozen"),
            event(1, 3, "run_completed", 0.3, token=1, worker="w"),
            event(2, 3, "run_retried", 5.2, token=1, worker="frozen", due_at=after(6), reason="lease expired"),
            lease(2, 4, 7.0, token=2),
            event(2, 5, "run_completed", 7.2, token=2, worker="w"),
        ],
        commands=[TopicCommand("c-1", "job-1", "CreateJob"), TopicCommand("c-2", "job-2", "CreateJob")],
        epochs=[
            EpochSample(after(-1), {0: (3, "a"), 1: (5, "a")}),
            EpochSample(after(1), {0: (3, None), 1: (5, "a")}),
            EpochSample(after(2), {0: (4, "b"), 1: (5, "a")}),
        ],
        ledger=LedgerReadout(outcomes={"c-1": "applied", "c-2": "applied"}),
        faults=["SIGSTOP frozen"],
    )


def test_a_sound_history_has_no_violation() -> None:
    report = check(sound())
    assert report.violations == []
    assert (report.runs, report.completed, report.attempts, report.duplicates) == (2, 2, 3, 0)
    assert report.lateness_s_max == pytest.approx(0.1)


def test_a_redelivered_event_is_no_violation() -> None:
    history = sound()
    history.events += history.events[2:5]
    assert check(history).violations == []


def test_what_the_topic_tells_of_jobs_is_judged_with_it() -> None:
    history = sound()
    history.told = [*history.events, *told_of_a_job("skip", 1, 2, 3), leased_run_of_a_job(1, 60)]
    assert check(history).violations == []


def test_a_handler_that_ran_twice_after_a_fault_is_counted() -> None:
    history = sound()
    history.entries.append(entry(2, "finished", 8.0, worker="frozen"))
    report = check(history)
    assert report.violations == []
    assert report.duplicates == 1


# --- damage ---


def change(history: History, event_id: str, **fields: Any) -> None:
    history.events = [replace(each, **fields) if each.event_id == event_id else each for each in history.events]


def without(history: History, *event_ids: str) -> None:
    history.events = [each for each in history.events if each.event_id not in event_ids]


def a_run_is_gone(history: History) -> None:
    without(history, "1-1", "1-2", "1-3")
    history.entries = [each for each in history.entries if each.run_id != "run-1"]


def a_run_is_never_completed(history: History) -> None:
    without(history, "1-3")
    history.entries = [each for each in history.entries if (each.run_id, each.kind) != ("run-1", "answered")]


def a_job_has_two_runs(history: History) -> None:
    history.events += [
        replace(each, event_id=f"again-{each.event_id}", run_id="run-1-again")
        for each in history.events
        if each.run_id == "run-1"
    ]


def an_acknowledged_create_is_not_on_the_topic(history: History) -> None:
    history.commands.pop()


def a_command_has_no_outcome(history: History) -> None:
    history.ledger = replace(history.ledger, outcomes={"c-1": "applied"})


def a_command_was_rejected(history: History) -> None:
    history.ledger = replace(history.ledger, outcomes={"c-1": "applied", "c-2": "invalid"})


def an_event_is_missing(history: History) -> None:
    change(history, "1-3", version=4)


def an_event_overtakes_another(history: History) -> None:
    first, second = history.events[2], history.events[4]
    history.events[2], history.events[4] = second, first


def a_second_lease_while_the_first_lives(history: History) -> None:
    change(history, "2-3", type="run_leased", token=2, worker="w", due_at=DUE)
    change(history, "2-4", type="run_retried", reason="it failed")


def life_goes_on_after_completion(history: History) -> None:
    history.events += [event(1, 4, "run_retried", 6, due_at=after(6))]


def two_completions_are_recorded(history: History) -> None:
    history.events += [event(1, 4, "run_completed", 6, token=1)]


def two_workers_are_told_that_they_completed_it(history: History) -> None:
    history.entries[-1] = entry(2, "answered", 9.0, worker="frozen", status=200)


def a_completion_is_accepted_and_not_recorded(history: History) -> None:
    change(history, "1-3", token=7)


def a_lease_comes_before_its_due_time(history: History) -> None:
    change(history, "1-2", at=after(-0.001))


def a_lease_comes_before_what_was_asked_for(history: History) -> None:
    change(history, "1-2", at=after(-1), due_at=after(-2))
    history.entries = [each for each in history.entries if (each.run_id, each.kind) != ("run-1", "started")]


def a_handler_starts_before_its_due_time(history: History) -> None:
    history.entries[1] = entry(1, "started", -0.001)


def a_retry_starts_before_its_own_due_time(history: History) -> None:
    change(history, "2-4", due_at=after(7.001))


def a_lease_is_cut_short(history: History) -> None:
    change(history, "2-3", at=after(5.0))


def a_token_is_given_twice(history: History) -> None:
    change(history, "2-4", token=1)
    change(history, "2-5", token=1)
    history.entries = [msgspec.structs.replace(each, token=1) for each in history.entries]


def a_worker_holds_a_lease_that_nobody_recorded(history: History) -> None:
    history.entries.append(entry(2, "leased", 8.0, token=3))


def a_handler_starts_without_a_lease(history: History) -> None:
    history.entries = [each for each in history.entries if (each.run_id, each.kind) != ("run-1", "leased")]


def two_workers_hold_one_lease(history: History) -> None:
    history.entries.append(entry(1, "leased", 0.2, worker="other"))


def an_attempt_is_ended_by_another_worker(history: History) -> None:
    change(history, "1-3", worker="other")


RECURRING = "00000000-0000-7000-8000-000000000001"


def told_of_a_job(overlap: str, *minutes: int) -> list[Event]:
    """A job that fires every minute: its creation, and runs of these minutes."""
    definition = json.dumps({"schedule": {"everySeconds": 60}, "overlap": overlap})
    created = JobEvent("0-1-0", "job_created", after(0), RECURRING, 1, after(0), after(60), definition=definition)
    runs: list[Event] = []
    for minute in minutes:
        nominal, run_id = after(60 * minute), scheduled_run_id(RECURRING, after(60 * minute), 0)
        made = RunEvent(f"made-{minute}", "run_scheduled", after(60 * minute - 60), RECURRING, run_id, 1)
        runs.append(replace(made, due_at=nominal, scheduled_for=nominal))
    return [created, *runs]


def leased_run_of_a_job(minute: int, seconds: float) -> RunEvent:
    run_id = scheduled_run_id(RECURRING, after(60 * minute), 0)
    leased = RunEvent(f"leased-{minute}", "run_leased", after(seconds), RECURRING, run_id, 2, token=1)
    return replace(leased, due_at=after(60 * minute), expires_at=after(seconds + 5))


def an_occurrence_has_no_decision(history: History) -> None:
    history.told = [*history.events, *told_of_a_job("allow", 1, 3)]


def two_runs_of_a_job_are_leased_at_once(history: History) -> None:
    leased = leased_run_of_a_job(1, 130), leased_run_of_a_job(2, 131)
    history.told = [*history.events, *told_of_a_job("skip", 1, 2), *leased]


def a_job_gets_no_run(history: History) -> None:
    history.told = [*history.events, *told_of_a_job("allow")]


def an_epoch_falls(history: History) -> None:
    history.epochs.append(EpochSample(after(3), {0: (3, "b"), 1: (5, "a")}))


def an_owner_changes_under_one_epoch(history: History) -> None:
    history.epochs.append(EpochSample(after(3), {0: (4, "c"), 1: (5, "a")}))


def a_handler_runs_twice_though_nothing_was_broken(history: History) -> None:
    history.entries.append(entry(2, "finished", 8.0, worker="frozen"))
    history.faults = []


def a_run_stays_in_the_ledger(history: History) -> None:
    history.ledger = replace(history.ledger, live_runs=frozenset({"run-2"}))


def a_run_died(history: History) -> None:
    history.ledger = replace(history.ledger, dead_runs=frozenset({"run-2"}))


def an_event_is_never_published(history: History) -> None:
    history.ledger = replace(history.ledger, outbox_rows=1)


Damage = Callable[[History], None]

# Which rules find which damage: those that are named, and no other.
FOUND_BY: dict[Damage, set[str]] = {
    a_run_is_gone: {"nothing_is_lost"},
    a_run_is_never_completed: {"nothing_is_lost"},
    a_job_has_two_runs: {"nothing_is_lost"},
    an_acknowledged_create_is_not_on_the_topic: {"every_command_is_applied"},
    a_command_has_no_outcome: {"every_command_is_applied"},
    a_command_was_rejected: {"every_command_is_applied"},
    an_event_is_missing: {"versions_are_contiguous"},
    an_event_overtakes_another: {"versions_arrive_in_order"},
    a_second_lease_while_the_first_lives: {"lives_are_legal", "nothing_starts_again_unprovoked"},
    life_goes_on_after_completion: {"lives_are_legal"},
    two_completions_are_recorded: {"completed_at_most_once", "lives_are_legal"},
    two_workers_are_told_that_they_completed_it: {"completed_at_most_once"},
    a_completion_is_accepted_and_not_recorded: {"completed_at_most_once", "ends_name_their_lease"},
    a_lease_comes_before_its_due_time: {"nothing_is_early"},
    a_lease_comes_before_what_was_asked_for: {"nothing_is_early"},
    a_handler_starts_before_its_due_time: {"nothing_is_early"},
    a_retry_starts_before_its_own_due_time: {"nothing_is_early"},
    a_lease_is_cut_short: {"leases_end_no_sooner_than_promised"},
    a_token_is_given_twice: {"tokens_only_grow"},
    a_worker_holds_a_lease_that_nobody_recorded: {"workers_hold_what_the_topic_says"},
    a_handler_starts_without_a_lease: {"workers_hold_what_the_topic_says"},
    two_workers_hold_one_lease: {"workers_hold_what_the_topic_says"},
    an_attempt_is_ended_by_another_worker: {"ends_name_their_lease"},
    an_occurrence_has_no_decision: {"occurrences_are_decided_once"},
    two_runs_of_a_job_are_leased_at_once: {"one_lease_a_job"},
    a_job_gets_no_run: {"nothing_is_lost"},
    an_epoch_falls: {"epochs_only_grow"},
    an_owner_changes_under_one_epoch: {"epochs_only_grow"},
    a_handler_runs_twice_though_nothing_was_broken: {"nothing_runs_twice_unprovoked"},
    a_run_stays_in_the_ledger: {"the_ledger_is_empty"},
    a_run_died: {"the_ledger_is_empty"},
    an_event_is_never_published: {"the_ledger_is_empty"},
}


@pytest.mark.parametrize("damage", FOUND_BY, ids=lambda damage: damage.__name__)
def test_damage_is_found_by_its_rule(damage: Damage) -> None:
    history = sound()
    damage(history)
    assert {violation.rule for violation in check(history).violations} == FOUND_BY[damage]


def test_every_rule_finds_some_damage() -> None:
    assert set().union(*FOUND_BY.values()) == set(RULES)


def test_half_a_line_of_a_killed_worker_is_not_read_before_it_is_whole(tmp_path: Path) -> None:
    log, lines = tmp_path / "w.jsonl", [msgspec.json.encode(entry(1, "leased", 0)) + b"\n" for _ in range(2)]
    log.write_bytes(lines[0] + lines[1][:10])
    entries, offset = read_worker_log(log)
    assert (len(entries), offset) == (1, len(lines[0]))
    log.write_bytes(b"".join(lines))
    assert len(read_worker_log(log, offset)[0]) == 1
