"""Many seeds, in several processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.simulation.world import simulate

CHUNK = 25
COLLECTED_EVERY = 10


class Verdict(NamedTuple):
    """Of a chunk of seeds. failures: a seed and the promises that it broke, in words."""

    seeds: int
    steps: int
    commits: int
    failures: list[tuple[int, list[str]]]


def judge_seeds(seeds: range, without: str | None = None) -> Verdict:
    """Simulate these, one after the other."""
    steps = commits = 0
    failures: list[tuple[int, list[str]]] = []
    gc.disable()  # a world is garbage as a whole, once: to look through it again and again takes a third of the time
    try:
        for number, seed in enumerate(seeds, 1):
            outcome = simulate(seed, without)
            steps += outcome.steps
            commits += len(outcome.seen.commits)
            if outcome.violations:
                failures.append((seed, [f"{each.rule}: {each.subject}: {each.detail}" for each in outcome.violations]))
            if number % COLLECTED_EVERY == 0:
                gc.collect()
    finally:
        gc.enable()
    return Verdict(len(seeds), steps, commits, failures)


def judge_in_processes(seeds: range, processes: int, without: str | None = None) -> Iterator[Verdict]:
    """The same, a verdict for each chunk as it is done."""
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(processes, initializer=gc.freeze) as pool:
        yield from pool.map(judge_seeds, chunks, [without] * len(chunks))
