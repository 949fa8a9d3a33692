"""What a run costs this build, as measured. The figures come with the package, in measured_costs.json.

They are of one noisy two-core machine, with the clients on it: trust their ratios, measure yours, and say so by --cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import resources
from typing import Literal

import msgspec
from msgspec import Struct

from fencepost.errors import InvalidInput

Costs = Mapping[str, float]


class MeasuredCost(Struct, frozen=True, kw_only=True):
    """how: the command that shows it, or where it was counted. source: `given` when an option said otherwise."""

    name: str
    value: float
    unit: str
    what: str
    how: str
    date: str
    source: Literal["measured", "given"] = "measured"


def measured_costs() -> list[MeasuredCost]:
    """Those that the package ships."""
    text = resources.files("fencepost.capacity").joinpath("measured_costs.json").read_bytes()
    return msgspec.json.decode(text, type=list[MeasuredCost])


def with_given(costs: list[MeasuredCost], given: Mapping[str, float]) -> list[MeasuredCost]:
    """The costs, some of them said otherwise. Raises InvalidInput for one that there is not, or that cannot be."""
    names = [cost.name for cost in costs]
    for name, value in given.items():
        if name not in names:
            raise InvalidInput(f"there is no cost {name!r}, only {', '.join(names)}", field="cost")
        if not math.isfinite(value) or value <= 0:
            raise InvalidInput(f"{name} must be more than 0, not {value:g}", field="cost")
    return [
        msgspec.structs.replace(cost, value=given[cost.name], source="given") if cost.name in given else cost
        for cost in costs
    ]


def values(costs: list[MeasuredCost]) -> dict[str, float]:
    return {cost.name: cost.value for cost in costs}
