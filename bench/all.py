"""Every benchmark on one stage, one after the other: one table at the end, and JSON under bench/results/.

    python -m bench.all [--peers all] [--rounds N] [--scale 1.0] [--only drain,enqueue]

Each contender has its turn in every round: ours, the floor, the peers, ours again. How to read the figures is told in
bench/README.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import click

from bench import drain, enqueue, heartbeats, idle, lateness, mix, overload, takeover
from bench.benchmark import PEERS_HELP, Benchmark, Stage, names_of, stage
from bench.cluster import RESULTS, say
from bench.compare import OURS, Comparison, table

# Idle is last: its schedules stay, and before them there is nothing to wait for.
BENCHES = {
    each.BENCH.name: each.BENCH for each in (lateness, mix, drain, enqueue, heartbeats, overload, takeover, idle)
}
APART = ("relay", "history", "feed")  # these have servers of their own
APART_RUNS, APART_ROUNDS = 20_000, 5
SMALL = 10  # what is less is not scaled down
UNSCALED = ("batch", "notice", "load", "step", "pause")  # these are no loads


def scaled(size: Any, scale: float) -> Any:
    """The same size, larger or smaller; what is small already stays."""
    loads = {name: value for name, value in size._asdict().items() if name not in UNSCALED}
    return size._replace(**{name: _scaled(value, scale) for name, value in loads.items()})


def _scaled(value: float, scale: float) -> float:
    return type(value)(max(value * scale, min(value, SMALL)))


def measure(bench: Benchmark, on: Stage, rounds: int | None, scale: float) -> Comparison:
    say(f"== {bench.name}: {bench.about}")
    return bench.run(on, scaled(bench.size, scale), min(rounds or bench.rounds, bench.rounds))


def apart(name: str, rounds: int | None, scale: float) -> Comparison:
    """A benchmark that is a program of its own; its figures are what it wrote, its floor's among them."""
    say(f"== {name}")
    size = ["--runs", str(int(APART_RUNS * scale)), "--rounds", str(min(rounds or APART_ROUNDS, APART_ROUNDS))]
    subprocess.run([sys.executable, "-m", f"bench.{name}", *size], check=True, stdout=sys.stderr)
    figures = json.loads((RESULTS / f"{name}.json").read_text())
    return Comparison(name, {OURS: {key: value for key, value in figures.items() if ", " in key}})


@click.command(help=__doc__)
@click.option("--peers", default="all", show_default=True, help=PEERS_HELP)
@click.option("--rounds", type=int, help="fewer of them for every benchmark")
@click.option("--scale", default=1.0, show_default=True, help="of all sizes: 0.05 is a first look")
@click.option("--only", default=",".join([*BENCHES, *APART]), help="names with commas between; all of them unless told")
def main(peers: str, rounds: int | None, scale: float, only: str) -> None:
    chosen = only.split(",")
    done: list[Comparison] = []
    with stage(names_of(peers)) as on:
        for name in (each for each in BENCHES if each in chosen):
            done.append(measure(BENCHES[name], on, rounds, scale))
    for name in (each for each in APART if each in chosen):
        done.append(apart(name, rounds, scale))
    click.echo(table(done))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "all.json").write_text(json.dumps({each.bench: each.flat() for each in done}, indent=2) + "\n")


if __name__ == "__main__":
    main()
