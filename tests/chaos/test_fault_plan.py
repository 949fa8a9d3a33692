"""The plan of faults is its seed's, sees every kind, and hurts nothing that is being hurt already."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from tests.chaos.fault_plan import AT_ONCE, DECK, PlannedFault, Targets, plan_faults

TARGETS = Targets(
    roles=("streams-0", "streams-1", "api", "relay", "history"),
    servers=("postgres", "kafka"),
    workers=("worker-0", "worker-1"),
    links=("streams-0 to kafka", "api to postgres"),
    state_keepers=("streams-0", "history"),
    extras=("streams-2",),
)
SEEDS = range(30)


def plan(seed: int, minutes: float = 5) -> list[PlannedFault]:
    return plan_faults(seed, minutes * 60, TARGETS)


def test_the_same_seed_breaks_the_same() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    assert plan(7, 10)[: len(plan(7, 5))] == plan(7, 5)


@pytest.mark.parametrize("seed", SEEDS)
def test_within_minutes_everything_that_can_be_broken_is(seed: int) -> None:
    assert {each.kind for each in plan(seed)} == {card.kind for card in DECK.values()}


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_hurt_twice_at_a_time_and_all_is_over_in_the_end(seed: int) -> None:
    faults = plan(seed)
    assert max(each.until_s for each in faults) <= 300
    for one, other in combinations(faults, 2):
        apart = one.until_s < other.at_s or other.until_s < one.at_s
        assert apart or not set(one.targets) & set(other.targets)
    for each in faults:
        assert sum(other.at_s <= each.at_s < other.until_s for other in faults) <= AT_ONCE


def test_where_no_clock_can_be_set_all_else_is_broken() -> None:
    faults = plan_faults(7, 300, replace(TARGETS, can_skew=False))
    assert {each.kind for each in faults} == {card.kind for card in DECK.values()} - {"skew_clock"}


def test_only_what_is_asked_for_is_broken() -> None:
    assert {each.kind for each in plan_faults(7, 300, TARGETS, "link")} == {"cut", "silence", "delay"}
    with pytest.raises(ValueError, match="a full disk"):
        plan_faults(7, 300, TARGETS, "a flood")
