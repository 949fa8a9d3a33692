"""The simulation can fail: whichever rule the protocol lacks, some seed shows it."""

from __future__ import annotations

import pytest

from tests.simulation.rules import MUTANTS
from tests.simulation.world import simulate

MOST_SEEDS = 200
# What shows the lack of a rule, where faults of all kinds would show it only in a seed of hundreds.
AIMED: dict[str, tuple[str, ...]] = {
    "fence": ("freeze_amid", "storm"),
    "fence lock": ("freeze_amid", "storm"),
    "fence read": ("freeze_amid", "storm", "slow_shard"),
    "takeover lock": ("freeze_amid", "storm"),
    "expiry check": ("freeze", "slow_shard"),
    "token check": ("freeze", "lose_packets"),
    "request ids": ("lose_packets",),
    "job states": ("freeze_amid",),
    "move lock": ("move", "freeze_amid", "slow_shard"),
    "move epoch": ("move", "slow_shard"),
    "prepared place": ("move",),
    "cursor": ("lose_commits", "slow_shard"),
    "copy fence": ("move",),
    "every missed event": ("storm", "storm", "kill_relay", "slow_broker"),
    "wait for the relay": ("storm", "storm", "kill_relay", "slow_broker"),
}


@pytest.mark.parametrize("without", MUTANTS)
def test_a_protocol_without_one_of_its_rules_is_caught(without: str) -> None:
    for seed in range(MOST_SEEDS):
        violations = simulate(seed, without, AIMED.get(without, ())).violations
        if violations:
            assert "nothing_crashes" not in {violation.rule for violation in violations}
            return
    pytest.fail(f"{MOST_SEEDS} seeds without {without!r} broke no promise")
