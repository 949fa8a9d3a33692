"""What a run costs with more shards, owners or APIs: its whole life, from the command on Kafka to the history.

    python -m bench.shards [--runs 20000] [--rounds 1]

CPU time a run, of all processes of a kind together: where two cores have to do for everything no wall time tells how
far more machines would go. What counts is by how much the sum grows with their number: that much less is gained by
them. Each layout is a stack of its own, of which a process more costs what it does beside the runs, too.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import click

from bench.cluster import cluster, cpu_seconds, report, say, wait_until
from bench.drain import drain, fill, history_lag_s
from fencepostd.local import Local

WARM_UP_RUNS = 500


class Layout(NamedTuple):
    """How many there are of each."""

    shards: int = 1
    owners: int = 1
    apis: int = 1


LAYOUTS: Mapping[str, Layout] = {
    "one of each": Layout(),
    "2 shards": Layout(shards=2),
    "4 shards": Layout(shards=4),
    "2 owners": Layout(owners=2),
    "4 owners": Layout(owners=4),
    "2 APIs": Layout(apis=2),
    "4 APIs": Layout(apis=4),
    "4 of each": Layout(4, 4, 4),
}


def measured(layout: Layout, runs: int) -> dict[str, float]:
    """CPU time a run, by kind of process, and how fast a worker for each API drained them all."""
    with cluster(**layout._asdict()) as local:
        live(local, "warm-up", WARM_UP_RUNS, layout)
        before = cpu_seconds(local)
        seconds = live(local, "bench", runs, layout)
        used: Counter[str] = Counter()
        for part, cpu_s in cpu_seconds(local).items():
            used[re.sub(r"-\d+$", "", part)] += (cpu_s - before[part]) / runs * 1e6  # type: ignore[assignment]
    of_ours = sum(used[kind] for kind in ("postgres", "streams", "api", "relay"))
    return {**used, "ours and postgres": of_ours, "drained": runs / seconds}


def live(local: Local, name: str, runs: int, layout: Layout) -> float:
    """Create, drain and remember runs; the seconds that draining took. Each API has a queue and a worker of its own."""
    queues, share = [f"{name}-{number}" for number in range(layout.apis)], runs // layout.apis
    for queue in queues:
        fill(local, queue, share)
    with ThreadPoolExecutor(layout.apis) as pool:
        urls = [f"http://127.0.0.1:{local.stack.port_for(f'api-{n}' if n else 'api')}" for n in range(layout.apis)]
        seconds = max(pool.map(lambda queue, url: drain(local, queue, share, url), queues, urls))
    for queue in queues:
        history_lag_s(local, queue, share)
    wait_until(local.stack.dsns, "SELECT count(*) FROM outbox", 0)
    return seconds


@click.command(help=__doc__)
@click.option("--runs", default=20_000, show_default=True)
@click.option("--rounds", default=1, show_default=True, help="how often each layout has its turn")
@click.option("--only", default=",".join(LAYOUTS), help="names of layouts with commas between; all of them unless told")
def main(runs: int, rounds: int, only: str) -> None:
    chosen = only.split(",")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in LAYOUTS if name in chosen}
    for _ in range(rounds):
        for name, each in found.items():
            each.append(measured(LAYOUTS[name], runs))
            say(f"{name}: {each[-1]}")
    figures: dict[str, float] = {}
    for name, each in found.items():
        for kind in each[0]:
            unit = "runs/s" if kind == "drained" else "µs/run"
            figures[f"{name}: {kind}, {unit}"] = statistics.median(one[kind] for one in each)
    report("shards", figures | {"runs": runs, "rounds": rounds})


if __name__ == "__main__":
    main()
