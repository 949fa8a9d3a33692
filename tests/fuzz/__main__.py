"""`make fuzz`: every target for a while, each in a process of its own; 1 is the exit code when something is found."""

from __future__ import annotations

import ast
import secrets
import sys
from collections.abc import Sequence

import click

from tests.fuzz.apart import trial_apart
from tests.fuzz.targets import TARGETS


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="For each target.")
@click.option("--seed", type=int, help="What it draws from; another each time unless given.")
@click.option("--only", "names", multiple=True, type=click.Choice(sorted(TARGETS)))
@click.option("--input", "literal", help="Feed this one input, as it was printed, to the target of --only.")
def main(seconds: float, seed: int | None, names: Sequence[str], literal: str | None) -> None:
    """Feed the parsers with what tenants could send."""
    if literal is not None:
        [name] = names
        TARGETS[name].feed(ast.literal_eval(literal))
        return
    seeded = secrets.randbits(32) if seed is None else seed
    click.echo(f"seed {seeded}\n{'target':<14}{'inputs':>10}{'slowest':>11}{'growth':>10}")
    sound = [try_out(name, seconds, seeded) for name in names or TARGETS]
    sys.exit(0 if all(sound) else 1)


def try_out(name: str, seconds: float, seeded: int) -> bool:
    """Whether nothing was found in so many seconds; tells either."""
    report = trial_apart(name, seeded=seeded, seconds=seconds)
    click.echo(
        f"{name:<14}{report.tried:>10,}{report.slowest_s:>9.3f} s{report.growth_bytes / 2**20:>6.0f} MiB"
        f"  {'' if report.finding is None else 'FOUND'}"
    )
    if report.finding is not None:
        click.echo(f"{name}: {report.finding.reason}\n{name}: --only {name} --input {report.finding.value!r}")
    return report.finding is None


if __name__ == "__main__":
    main()
