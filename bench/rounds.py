"""What benchmarks of one process share: their options, topics of their own, the medians of their rounds."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from bench.cluster import report, say
from bench.commands import PARTITIONS
from bench.run_lives import EVENTS_A_RUN
from streams.topics import Topics, create_topics


def parse(about: str | None) -> argparse.Namespace:
    """runs, rounds and rate of the command line."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000, help=f"runs a measurement, {EVENTS_A_RUN} events each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=int, default=6000, help="events a second, where they come in time")
    return parser.parse_args()


def new_topics(bootstrap: str) -> Topics:
    topics = Topics(f"bench-{uuid4().hex[:8]}")
    create_topics(bootstrap, topics, PARTITIONS)
    return topics


def report_rounds(name: str, count: int, one_round: Callable[[], dict[str, float]], **size: int) -> None:
    """Measure so often, telling each round, and report the medians beside the size."""
    rounds = []
    for number in range(count):
        rounds.append(one_round())
        say(f"round {number + 1}: " + ", ".join(f"{key} {value:,.1f}" for key, value in rounds[-1].items()))
    figures: dict[str, Any] = {**size, "rounds": count}
    for key in rounds[0]:
        figures[key] = statistics.median(each[key] for each in rounds)
    report(name, figures)
