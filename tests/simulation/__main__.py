"""`python -m tests.simulation`: many seeds, or one of them with its trace."""

from __future__ import annotations

import logging
import sys
import time

import click

from tests.simulation.rules import MUTANTS
from tests.simulation.runs import judge_in_processes
from tests.simulation.trace import trace
from tests.simulation.world import simulate

PROGRESS_S = 5.0
MOST_SHOWN = 5


@click.command()
@click.option("--seeds", default=1_000, show_default=True, help="How many to simulate.")
@click.option("--first", default=0, show_default=True, help="The first of them.")
@click.option("--processes", default=2, show_default=True)
@click.option("--seed", type=int, help="Replay this one, and show what happened.")
@click.option("--without", type=click.Choice(sorted(MUTANTS)), help="Break the protocol: leave this rule out.")
def main(seeds: int, first: int, processes: int, seed: int | None, without: str | None) -> None:
    """Owners, API, workers and ledger under a virtual clock, hurt and healed; every promise is checked."""
    if seed is not None:
        sys.exit(replay(seed, without))
    sys.exit(simulate_all(range(first, first + seeds), processes, without))


def replay(seed: int, without: str | None) -> int:
    outcome = simulate(seed, without)
    for line in trace(outcome):
        click.echo(line)
    for violation in outcome.violations:
        click.echo(f"BROKEN {violation.rule}: {violation.subject}: {violation.detail}")
    click.echo(f"seed {seed}: {len(outcome.violations)} violations, {outcome.steps} steps, trace {outcome.digest()}")
    return 1 if outcome.violations else 0


def simulate_all(seeds: range, processes: int, without: str | None) -> int:
    began = told_at = time.monotonic()
    done = steps = commits = 0
    failures: list[tuple[int, list[str]]] = []
    for verdict in judge_in_processes(seeds, processes, without):
        done, steps, commits = done + verdict.seeds, steps + verdict.steps, commits + verdict.commits
        failures += verdict.failures
        for seed, broken in verdict.failures:
            _tell_failure(seed, broken, without)
        if time.monotonic() - told_at >= PROGRESS_S:
            told_at = time.monotonic()
            click.echo(f"{done} of {len(seeds)} seeds, {len(failures)} failed, {told_at - began:.0f} s", err=True)
    took_s = time.monotonic() - began
    pace = f"{done * 60 / took_s:.0f} seeds a minute, {steps} steps, {commits} transactions with an effect"
    click.echo(f"{done} seeds in {took_s:.1f} s, {len(failures)} failed; {pace}")
    return 1 if failures else 0


def _tell_failure(seed: int, broken: list[str], without: str | None) -> None:
    click.echo(f"seed {seed} broke {len(broken)} promises:")
    for each in broken[:MOST_SHOWN]:
        click.echo(f"  {each}")
    lacking = f" --without '{without}'" if without else ""
    click.echo(f"  again, with its trace: python -m tests.simulation --seed {seed}{lacking}")


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # what the product warns of is what is done to it here
    main()
