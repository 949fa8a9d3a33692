"""A sound history breaks no rule about jobs, and for each rule one that is not sound does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.chaos.history import EntryKind, TopicEvent, WorkerEntry
from tests.chaos.job_rules import RULES, Edited, Fault, Holding, Promises, Still, broken, counted

START = datetime(2026, 3, 1, 9, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def event(run: str, version: int, kind: str, seconds: float, **more: Any) -> TopicEvent:
    job = run.partition("/")[0]
    return TopicEvent(f"{run} {version}", f"run_{kind}", at(seconds), job, run, version, **more)


def entry(run: str, kind: EntryKind, seconds: float, token: int = 1, attempt: int = 0) -> WorkerEntry:
    return WorkerEntry(kind, at(seconds), "worker", run, token, attempt)


def life(run: str, seconds: float, *middle: str) -> list[TopicEvent]:
    """Of a run that is due then, through some events, a second apart."""
    kinds = ("scheduled", *middle)
    tokens = [kinds[: place + 1].count("leased") for place in range(len(kinds))]
    return [
        event(run, place + 1, kind, seconds + place, token=tokens[place], scheduled_for=at(seconds))
        for place, kind in enumerate(kinds)
    ]


SOUND = Promises(
    [
        *life("quick/0", 0, "leased", "completed"),
        *life("quick/3", 3, "leased", "completed"),
        *life("doomed/1", 0, "leased", "retried", "leased", "released", "leased", "dead"),
        *life("edited/2", 2, "leased", "completed"),
    ],
    [
        entry("quick/0", "leased", 1, attempt=1),
        entry("quick/0", "finished", 2),
        entry("doomed/1", "leased", 1, token=1, attempt=1),
        entry("doomed/1", "leased", 3, token=2, attempt=2),
        entry("doomed/1", "leased", 5, token=3, attempt=2),
    ],
    dead_runs=frozenset({"doomed/1"}),
    doomed={"doomed": 2},
    still=[Still(frozenset({"quick"}), at(20), at(30))],
    edited=[Edited("edited", at(2.5), at(100))],
    holdings=[{0: Holding("streams-0", ("streams-0",), 7, 7)}],
    faults=[Fault(at(50), at(60))],
    in_history=3,
)
TWICE = [entry("quick/0", "finished", 2), entry("quick/0", "finished", 9)]

UNSOUND: dict[str, dict[str, Any]] = {
    "pauses_hold": {"still": [Still(frozenset({"quick"}), at(0.5), at(1.5))]},
    "edits_hold": {"edited": [Edited("edited", at(1), at(100))]},
    "attempts_are_charged": {"entries": [entry("doomed/1", "leased", 3, token=2, attempt=1)]},
    "the_doomed_die": {"dead_runs": frozenset()},
    "partitions_are_owned": {"holdings": [{0: Holding("streams-0", ("streams-0", "streams-1"), 7, 7)}]},
    "decisions_are_as_far_as_is_said": {"undecided": {"quick": at(9)}},
    "the_history_is_complete": {"in_history": 2},
    "duplicates_have_a_fault": {"entries": TWICE},
}


def test_a_sound_history_breaks_no_rule() -> None:
    assert broken(SOUND) == []


def test_every_rule_is_broken_by_a_case_here() -> None:
    assert UNSOUND.keys() == RULES.keys()


@pytest.mark.parametrize("rule", UNSOUND)
def test_what_is_not_sound_breaks_its_rule_and_no_other(rule: str) -> None:
    found = broken(replace(SOUND, **UNSOUND[rule]))
    assert {each.rule for each in found} == {rule}


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"doomed": {}}, "was not to"),
        ({"doomed": {"doomed": 3}}, "after 2 attempts of 3"),
        ({"holdings": [{0: Holding("", (), 7, 7)}]}, "nobody works on it, the ledger has nobody"),
        ({"holdings": [{0: Holding("streams-0", ("streams-0",), 6, 7)}]}, "its commands end at 7, applied up to 6"),
    ],
)
def test_what_is_wrong_is_told(change: dict[str, Any], detail: str) -> None:
    assert any(detail in each.detail for each in broken(replace(SOUND, **change)))


def test_a_duplicate_is_excused_by_a_fault_between_its_two_ends_and_where_nothing_is_said_of_faults() -> None:
    assert broken(replace(SOUND, entries=TWICE, faults=[Fault(at(8), at(20))])) == []
    assert broken(replace(SOUND, entries=TWICE, faults=None)) == []


def test_an_event_that_is_delivered_again_counts_once() -> None:
    assert broken(replace(SOUND, events=[*SOUND.events, *SOUND.events])) == []


def test_violations_are_counted_by_their_rule() -> None:
    found = broken(replace(SOUND, dead_runs=frozenset(), entries=TWICE))
    assert counted(found) == "the_doomed_die (1), duplicates_have_a_fault (1)"
