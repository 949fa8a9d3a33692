"""The protocol keeps its promises under faults, and a seed is the same each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.simulation.__main__ import main
from tests.simulation.runs import judge_seeds
from tests.simulation.trace import trace
from tests.simulation.world import simulate

ROOT = Path(__file__).parents[2]
SEEDS = 150  # CI simulates 10,000 beside the suite, see .ci/run
EDITS_AND_LEASES = 636  # a batch of edits locked runs out of the order of their ids, and a lease call waited for them


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_no_promise_is_broken_however_the_protocol_is_hurt(first: int) -> None:
    assert judge_seeds(range(first, first + 50)).failures == []


@pytest.mark.parametrize("seed", [EDITS_AND_LEASES])
def test_a_seed_that_has_found_something_finds_nothing_any_more(seed: int) -> None:
    assert judge_seeds(range(seed, seed + 1)).failures == []


def test_a_simulation_has_much_of_everything() -> None:
    outcomes = [simulate(seed) for seed in range(60)]
    told = {each.event for outcome in outcomes for each in outcome.seen.told}
    acts = {act[0] for outcome in outcomes for commit in outcome.seen.commits for act in commit.acts}
    assert told >= {
        "job_created", "job_paused", "job_resumed", "job_updated", "job_deleted", "occurrences_skipped",
        "run_scheduled", "run_leased", "run_completed", "run_retried", "run_released", "run_dead", "run_held",
        "run_cancelled", "run_skipped",
    }  # fmt: skip
    assert acts == {"taken over", "outcome", "extended", "decided through"}
    assert {each.status for outcome in outcomes for each in outcome.seen.of_kind("answered")} >= {200, 409}
    assert any(outcome.faults for outcome in outcomes)


def test_a_seed_replays_exactly() -> None:
    assert simulate(3).digest() == simulate(3).digest()
    assert trace(simulate(3)) == trace(simulate(3))
    assert simulate(3).digest() != simulate(4).digest()


def test_a_seed_replays_exactly_in_another_process() -> None:
    """Whatever its strings hash to."""
    digests = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation", "--seed", "5"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        digests.add(ran.stdout.rsplit("trace ", 1)[1].strip())
    assert digests == {simulate(5).digest()}


def test_a_failing_seed_is_named_and_its_trace_shown() -> None:
    ran = CliRunner().invoke(main, ["--seeds", "25", "--processes", "1", "--without", "token grows"])
    assert ran.exit_code == 1
    again = next(line for line in ran.output.splitlines() if "--seed " in line)
    seed = again.split("--seed ")[1].split()[0]
    replayed = CliRunner().invoke(main, ["--seed", seed, "--without", "token grows"])
    assert replayed.exit_code == 1
    assert "BROKEN tokens_grow" in replayed.output
    assert "run_leased" in replayed.output
