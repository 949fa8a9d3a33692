"""Contenders measured in turn, round after round: medians, each beside ours.

A figure's name ends with its unit after a comma: `drained, runs/s`. Ratios are to ours of the same run, because only
these say something on a machine that others use too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.cluster import say

Figures = dict[str, float]
Contender = Callable[[], Figures]

OURS = "fencepost"
FLOOR = "floor"


class Lateness(NamedTuple):
    """How late so many runs were, each that started in time to be seen."""

    runs: int
    ms: list[float]


class Unmeasured(Exception):
    """A contender could not be measured; the text says why. The others go on without it."""


@dataclass(frozen=True)
class Comparison:
    """What one benchmark found. medians: by contender. skipped: the reason by contender."""

    bench: str
    medians: dict[str, Figures] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def flat(self) -> dict[str, float | str]:
        """One level, for `report`: ours by their names, the others' under theirs, with the ratio to ours."""
        ours = self.medians.get(OURS, {})
        flat: dict[str, float | str] = dict(ours)
        for contender, figures in self.medians.items():
            for name, value in figures.items() if contender != OURS else ():
                flat[f"{contender}: {name}"] = value
                if ours.get(name):
                    flat[f"{contender}: {name}, ratio to ours"] = value / ours[name]
        return flat | {f"{contender}: skipped": reason for contender, reason in self.skipped.items()}


def compare(
    bench: str, contenders: Mapping[str, Contender], rounds: int, skipped: Mapping[str, str] | None = None
) -> Comparison:
    """Measure each contender once a round, in turn, so that what disturbs the machine disturbs all of them."""
    found: dict[str, list[Figures]] = {name: [] for name in contenders}
    left_out = dict(skipped or {})
    for number in range(rounds):
        for name, measure in contenders.items():
            if name in left_out:
                continue
            try:
                found[name].append(figures := measure())
            except Unmeasured as reason:
                left_out[name] = str(reason)
                say(f"{bench}: {name} is left out: {reason}")
            else:
                told = ", ".join(f"{key} {value:,.4g}" for key, value in figures.items())
                say(f"{bench}, round {number + 1}, {name}: {told}")
    medians = {name: _medians(each) for name, each in found.items() if each and name not in left_out}
    return Comparison(bench, medians, left_out)


def _medians(rounds: list[Figures]) -> Figures:
    """Of each figure over the rounds that have it."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    return {name: statistics.median(each[name] for each in rounds if name in each) for name in names}


def table(comparisons: Iterable[Comparison]) -> str:
    """A row a figure, a column a contender; behind each value, in brackets, its ratio to ours."""
    done = list(comparisons)
    contenders = dict.fromkeys(name for each in done for name in each.medians)
    columns = sorted(contenders, key=lambda name: (name != OURS, not name.startswith(FLOOR)))
    rows = [["", *columns]]
    for comparison in done:
        names = dict.fromkeys(name for figures in comparison.medians.values() for name in figures)
        rows += [
            [f"{comparison.bench}: {name}", *(_cell(comparison, each, name) for each in columns)] for name in names
        ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            text.rjust(width) if at else text.ljust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    left_out = dict.fromkeys(f"skipped: {name}: {why}" for each in done for name, why in each.skipped.items())
    return "\n".join([*lines, *left_out])


def _cell(comparison: Comparison, contender: str, figure: str) -> str:
    value = comparison.medians.get(contender, {}).get(figure)
    if value is None:
        return "-"
    ours = comparison.medians.get(OURS, {}).get(figure)
    ratio = f" ({value / ours:.2f})" if ours and contender != OURS else ""
    return f"{value:,.0f}{ratio}" if abs(value) >= 100 else f"{value:.3g}{ratio}"
