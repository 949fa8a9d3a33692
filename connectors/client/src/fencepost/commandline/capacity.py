"""`fencepost capacity`: what a load comes to, and what it needs of an installation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import click
import msgspec

from fencepost.capacity.costs import MeasuredCost, measured_costs, values, with_given
from fencepost.capacity.inputs import Inputs
from fencepost.capacity.sizing import Figure, sizing
from fencepost.commandline.parameters import json_option
from fencepost.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])

SCALES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}


class AmountParam(click.ParamType):
    """300M, 20k, 1.5, 70%."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?)([kMG%]?)", str(value), re.ASCII)
        if found is None:
            self.fail(f"{value!r} is no number such as 300M, 20k, 1.5 or 70%", param, ctx)
        return float(found[1]) * (0.01 if found[2] == "%" else SCALES[found[2]])


class CostParam(click.ParamType):
    """NAME=VALUE."""

    name = "cost"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        name, equals, amount = str(value).partition("=")
        if not equals:
            self.fail(f"{value!r} is no cost such as postgres_us=40", param, ctx)
        return name, AmountParam().convert(amount, param, ctx)


def amount(name: str, usual: str, told: str) -> Callable[[F], F]:
    """An input as an option."""
    return click.option(name, type=AmountParam(), default=usual, show_default=True, metavar="NUMBER", help=told)


@click.command()
@amount("--runs-per-day", "300M", "Runs of a whole day.")
@amount("--peak-factor", "10.08", "The busiest second over the average one: the top of the hour.")
@amount("--run-seconds", "10", "How long a run is executed, on average; `fencepost forecast` tells yours.")
@amount("--visibility-seconds", "30", "How long a lease lasts without a heartbeat.")
@amount("--live-jobs", "20M", "Recurring jobs, and one-offs that wait.")
@amount("--history-days", "30", "How long the history is kept.")
@amount("--lookahead-seconds", "30", "How much of the near future owners hold in memory.")
@amount("--busy", "70%", "How busy a shard may be at the peak.")
@click.option(
    *("--cost", "given"), type=CostParam(), multiple=True, metavar="NAME=VALUE", help="Another cost than the measured."
)
@json_option
def capacity(given: Iterable[tuple[str, float]], as_json: bool, **inputs: float) -> None:
    """Compute what a load comes to and what it needs: rates, shards, runs in execution, disk, memory, cores.

    Needs no server. Each line says its formula. It starts from eight inputs, and from what a run costs this build: the
    costs are listed with how and when they were measured, on two noisy cores with the clients on them. Trust their
    ratios; measure your own machine with the command that is named, and say what you found with --cost.

    \b
    Examples
      fencepost capacity
      fencepost capacity --runs-per-day 20M --run-seconds 45 --history-days 90
      fencepost capacity --peak-factor 100.8                 # ten times the usual peak
      fencepost capacity --cost postgres_us=20 --cost shard_writes_per_second=90k
      fencepost capacity --json | jq .figures.shards.value
    """
    try:
        load = Inputs(**inputs)
        costs = with_given(measured_costs(), dict(given))
    except InvalidInput as error:
        told = str(error).removeprefix(f"{error.field}: ")
        hint = f"--{error.field.replace('_', '-')}" if error.field else None
        raise click.BadParameter(told, param_hint=hint) from error
    figures = sizing(load, values(costs))
    if as_json:
        answer = {"inputs": load, "figures": figures, "costs": costs}
        click.echo(msgspec.json.format(msgspec.json.encode(answer)))
        return
    click.echo("\n".join([*_figure_lines(figures), "", *_cost_lines(costs)]))


TITLES = {
    "due_average": "due, on average",
    "due_peak": "due, at the peak",
    "executing_average": "executing, on average",
    "executing_peak": "executing, at the peak",
    "heartbeats_average": "heartbeats, on average",
    "heartbeats_peak": "heartbeats, at the peak",
    "writes_average": "ledger writes, on average",
    "writes_peak": "ledger writes, at the peak",
    "shard_busy": "each of them busy, at the peak",
    "live": "live jobs and their runs",
    "lookahead": "look-ahead",
    "wal_peak": "WAL, at the peak",
}


def _figure_lines(figures: Mapping[str, Figure]) -> Iterable[str]:
    rows = [(_title(figure), _amount(figure), figure.unit, figure.formula) for figure in figures.values()]
    title, value, unit = (max(len(row[column]) for row in rows) for column in range(3))
    for row in rows:
        yield f"{row[0]:<{title}}  {row[1]:>{value}} {row[2] if row[2] != 'share' else '':<{unit}}  {row[3]}"


def _title(figure: Figure) -> str:
    if figure.name.startswith("cores_"):
        return f"CPU of {figure.name.removeprefix('cores_')}, at the peak"
    return TITLES.get(figure.name, figure.name)


def _amount(figure: Figure) -> str:
    if figure.unit == "share":
        return f"{figure.value:.0%}"
    return _number(figure.value)


def _number(value: float) -> str:
    """Three digits of what is small, all of what is large."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}" if value else "0"


def _cost_lines(costs: Sequence[MeasuredCost]) -> Iterable[str]:
    width = max(len(cost.name) for cost in costs)
    yield "What this build costs; say otherwise with --cost NAME=VALUE"
    for how, alike in groupby(costs, _provenance):
        yield f"  {how}"
        for cost in alike:
            yield f"    {cost.name:<{width}}  {_number(cost.value):>6} {cost.unit}: {cost.what}"


def _provenance(cost: MeasuredCost) -> str:
    return "as given" if cost.source == "given" else f"{cost.date}, {cost.how}"
