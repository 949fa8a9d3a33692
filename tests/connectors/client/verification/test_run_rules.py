"""Each rule about a run finds the life that breaks it, and passes those that a run may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fencepost.verification.events import Event
from fencepost.verification.run_rules import RUN_RULES
from fencepost.verification.tally import ARRIVAL
from tests.connectors.client.verification.told import (
    at,
    broken,
    certificate_of,
    ended,
    expired,
    judged,
    leased,
    made,
    run_event,
    scheduled,
)

COMPLETED = [scheduled(), leased(2, 1, 1), ended(3, "run_completed", 2, 1)]
RETRIED = [scheduled(), leased(2, 1, 1), expired(3, 32, 1), leased(4, 40, 2), ended(5, "run_completed", 41, 2)]

LEGAL: dict[str, Sequence[Event]] = {
    "completed": COMPLETED,
    "completed after an expiry": RETRIED,
    "given back and leased again": [
        *COMPLETED[:2],
        ended(3, "run_released", 2, 1, due_at=at(0), worker=None),
        leased(4, 3, 2),
        ended(5, "run_dead", 4, 2, reason="no"),
    ],
    "skipped for its deadline after it was given back": [
        *COMPLETED[:2],
        ended(3, "run_released", 2, 1, due_at=at(0), worker=None),
        run_event(4, "run_skipped", 9, reason="start deadline"),
    ],
    "held, and resumed": [scheduled(), run_event(2, "run_held", -4, due_at=at(0)), scheduled(3, -3), leased(4, 1, 1)],
    "made for a paused job": [run_event(1, "run_held", -5), scheduled(2, -3), leased(3, 1, 1)],
    "held when its attempt failed": [*COMPLETED[:2], ended(3, "run_held", 2, 1, reason="boom"), scheduled(4, 9)],
    "edited in place": [scheduled(), scheduled(2, -4, reason="edited"), leased(3, 1, 1)],
    "made up for": [scheduled(reason="catch-up spread"), scheduled(2, -4, reason="catch-up spread")],
    "taken away by an edit, and made again by another": [
        scheduled(),
        run_event(2, "run_cancelled", -4, reason="edited"),
        scheduled(5, -3),
        leased(6, 1, 1),
    ],
    "made first by an edit": [scheduled(3), leased(4, 1, 1)],
    "cancelled while it is executed": [
        *COMPLETED[:2],
        ended(3, "run_cancel_requested", 2, 1, reason="cancelled"),
        ended(4, "run_cancelled", 3, 1, reason="cancelled"),
    ],
    "completed though it should be cancelled": [
        *COMPLETED[:2],
        ended(3, "run_cancel_requested", 2, 1, reason="cancelled"),
        ended(4, "run_completed", 3, 1),
    ],
    "dead, and replayed": [
        *COMPLETED[:2],
        ended(3, "run_dead", 2, 1, reason="no"),
        scheduled(4, 9, reason="replayed", due_at=at(9)),
        leased(5, 10, 2, attempt=1),
    ],
    "of an occurrence, at its time": [made(60), leased(2, 60, 1, run_id=made(60).run_id, due_at=at(60))],
    "that began before the range": RETRIED[2:],
    "told twice": [*RETRIED[:3], *RETRIED[1:]],
}  # fmt: skip


@pytest.mark.parametrize("life", LEGAL.values(), ids=LEGAL)
def test_a_life_that_a_run_may_have_breaks_no_rule(life: Sequence[Event]) -> None:
    assert broken(life) == set()


ILLEGAL: dict[str, tuple[Sequence[Event], set[str]]] = {
    "an event is missing": ([*COMPLETED[:2], replace(COMPLETED[2], version=4)], {"versions_are_contiguous"}),
    "its first event has an even number": ([scheduled(2)], {"versions_are_contiguous"}),
    "two differ under one number": (
        [*COMPLETED, ended(3, "run_completed", 2, 1, event_id="other")],
        {ARRIVAL, "versions_are_contiguous", "lives_are_legal", "completed_at_most_once"},
    ),
    "an event overtakes another": ([RETRIED[0], RETRIED[2], RETRIED[1], *RETRIED[3:]], {ARRIVAL}),
    "a second lease while the first lives": (
        [*COMPLETED[:2], leased(3, 2, 2)],
        {"lives_are_legal", "nothing_starts_again_unprovoked"},
    ),
    "leased after it was completed": (
        [*COMPLETED, leased(4, 3, 2)],
        {"lives_are_legal", "nothing_starts_again_unprovoked"},
    ),
    "completed twice": (
        [*COMPLETED, ended(4, "run_completed", 3, 1)],
        {"lives_are_legal", "completed_at_most_once"},
    ),
    "completed though another has replaced it": (
        [
            *COMPLETED[:2],
            ended(3, "run_cancel_requested", 2, 1, reason="replaced"),
            ended(4, "run_completed", 3, 1),
        ],
        {"lives_are_legal"},
    ),
    "put aside while it is leased": ([*COMPLETED[:2], run_event(3, "run_held", 2)], {"lives_are_legal"}),
    "scheduled again for no reason": ([scheduled(), scheduled(2, -4)], {"lives_are_legal"}),
    "alive again after it died": (
        [*COMPLETED[:2], ended(3, "run_dead", 2, 1, reason="no"), scheduled(4, 9)],
        {"lives_are_legal"},
    ),
    "made again after it was leased and cancelled": (
        [*COMPLETED[:2], ended(3, "run_cancelled", 2, 1, reason="deleted"), scheduled(5, 9)],
        {"lives_are_legal"},
    ),
    "skipped without a reason": ([scheduled(), run_event(2, "run_skipped", 1)], {"lives_are_legal"}),
    "leased before it is due": ([scheduled(), leased(2, -0.000001, 1)], {"nothing_is_early"}),
    "leased before it was told to be due": (
        [scheduled(due_at=at(5)), leased(2, 4, 1, due_at=at(0))],
        {"nothing_is_early"},
    ),
    "leased without a due time": ([scheduled(), leased(2, 1, 1, due_at=None)], {"nothing_is_early"}),
    "leased before its occurrence": (
        [replace(made(60), due_at=at(50)), leased(2, 55, 1, run_id=made(60).run_id, due_at=at(50))],
        {"nothing_is_early"},
    ),
    "given up before its lease is over": (
        [*COMPLETED[:2], expired(3, 30.9, 1)],
        {"leases_end_no_sooner_than_promised"},
    ),
    "a token is given twice": (
        [*RETRIED[:3], leased(4, 40, 1), ended(5, "run_completed", 41, 1)],
        {"tokens_only_grow"},
    ),
    "completed under an older token": ([*RETRIED[:4], ended(5, "run_completed", 41, 1)], {"ends_name_their_lease"}),
    "completed by another worker": (
        [*COMPLETED[:2], ended(3, "run_completed", 2, 1, worker="other")],
        {"ends_name_their_lease"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("life", "rules"), ILLEGAL.values(), ids=ILLEGAL)
def test_a_life_that_breaks_a_promise_is_found_by_its_rule(life: Sequence[Event], rules: set[str]) -> None:
    assert broken(life) == rules


def test_every_rule_about_a_run_finds_some_life() -> None:
    assert set().union(*(rules for _, rules in ILLEGAL.values())) == {*RUN_RULES, ARRIVAL}


def test_a_violation_has_the_run_s_events_until_then() -> None:
    [violation] = judged([*RETRIED[:4], ended(5, "run_completed", 41, 1)]).violations
    told = [(line.version, line.event, line.token) for line in violation.trace]
    assert told == [
        (1, "scheduled", None),
        (2, "leased", 1),
        (3, "retried", 1),
        (4, "leased", 2),
        (5, "completed", 1),
    ]


def test_a_certificate_counts_the_facts_that_each_rule_was_held_on() -> None:
    made = certificate_of(judged([*RETRIED, *RETRIED[1:3]]))
    facts = {rule.rule: rule.facts for rule in made.rules}
    assert made.verdict == "holds"
    assert (made.counts.events, made.counts.runs, made.counts.attempts, made.counts.redelivered) == (7, 1, 2, 2)
    assert facts["versions_are_contiguous"] == facts["lives_are_legal"] == 5
    assert (facts["nothing_is_early"], facts["tokens_only_grow"]) == (2, 2)
    assert (facts["completed_at_most_once"], facts["leases_end_no_sooner_than_promised"]) == (1, 1)
    assert facts["nothing_starts_again_unprovoked"] == 1


def test_runs_started_again_after_an_expiry_are_held_against_the_promise() -> None:
    again = certificate_of(judged(RETRIED)).started_again
    assert (again.runs, again.started, again.share, again.kept) == (1, 1, 1.0, False)
    assert certificate_of(judged(COMPLETED)).started_again.kept


def test_nothing_to_judge_is_no_certificate() -> None:
    assert certificate_of(judged([])).verdict == "not judged"
    assert certificate_of(judged(COMPLETED), is_complete=False).verdict == "not judged"
