"""The arithmetic of capacity: what a load comes to, and what it needs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import Struct

from fencepost.capacity.costs import Costs
from fencepost.capacity.inputs import DAY_S, Inputs

PARTS = ("postgres", "kafka", "history", "relay", "owners", "api")


class Figure(Struct, frozen=True, kw_only=True):
    """formula: in words, with the names of inputs and costs."""

    name: str
    value: float
    unit: str
    formula: str


def sizing(load: Inputs, costs: Costs) -> dict[str, Figure]:
    """Every figure by its name, in the order in which they follow from each other."""
    return {figure.name: figure for figure in (*_rates(load, costs), *_needs(load, costs), *_cores(load, costs))}


def shards_for(writes: float, writes_a_shard: float, busy: float) -> int:
    """The fewest shards that are at most so busy, rounded up to a power of two: partitions spread evenly over them."""
    least = max(1, math.ceil(writes / (writes_a_shard * busy)))
    return int(1 << (least - 1).bit_length())


def average_due(load: Inputs) -> float:
    return load.runs_per_day / DAY_S


def peak_due(load: Inputs) -> float:
    return average_due(load) * load.peak_factor


def _executing(due: float, load: Inputs) -> float:
    """Little's law."""
    return due * load.run_seconds


def _heartbeats(due: float, load: Inputs, costs: Costs) -> float:
    return _executing(due, load) * costs["beats_per_visibility"] / load.visibility_seconds


def _writes(due: float, load: Inputs, costs: Costs) -> float:
    return due * costs["writes_per_run"] + _heartbeats(due, load, costs)


def _rates(load: Inputs, costs: Costs) -> Iterator[Figure]:
    average, peak = average_due(load), peak_due(load)
    little = "runs due a second × run-seconds (Little's law)"
    beats = "executing × beats_per_visibility ÷ visibility-seconds, as if every run outlived a beat"
    writes = "runs due a second × writes_per_run + heartbeats"
    for name, due, formula in (
        ("average", average, "runs-per-day ÷ 86,400 s"),
        ("peak", peak, "average due × peak-factor"),
    ):
        yield Figure(name=f"due_{name}", value=due, unit="runs/s", formula=formula)
    for name, due in (("average", average), ("peak", peak)):
        yield Figure(name=f"executing_{name}", value=_executing(due, load), unit="runs", formula=little)
    for name, due in (("average", average), ("peak", peak)):
        yield Figure(name=f"heartbeats_{name}", value=_heartbeats(due, load, costs), unit="beats/s", formula=beats)
    for name, due in (("average", average), ("peak", peak)):
        yield Figure(name=f"writes_{name}", value=_writes(due, load, costs), unit="rows/s", formula=writes)


def _needs(load: Inputs, costs: Costs) -> Iterator[Figure]:
    peak, power = peak_due(load), costs["shard_writes_per_second"]
    writes = _writes(peak, load, costs)
    shards = shards_for(writes, power, load.busy)
    fewest = "peak writes ÷ (shard_writes_per_second × busy), up to a power of two"
    yield Figure(name="shards", value=shards, unit="shards", formula=fewest)
    share = "peak writes ÷ (shards × shard_writes_per_second)"
    yield Figure(name="shard_busy", value=writes / (shards * power), unit="share", formula=share)
    kept = load.runs_per_day * load.history_days * costs["history_bytes"] / 1e12
    yield Figure(name="history", value=kept, unit="TB", formula="runs-per-day × history-days × history_bytes")
    live = load.live_jobs * costs["live_job_bytes"] / 1e9
    yield Figure(name="live", value=live, unit="GB", formula="live-jobs × live_job_bytes, in the ledger")
    ahead = peak * load.lookahead_seconds * costs["lookahead_bytes"] / 1e6
    formula = "peak due × lookahead-seconds × lookahead_bytes, in the owners' memory"
    yield Figure(name="lookahead", value=ahead, unit="MB", formula=formula)
    wal = peak * costs["wal_bytes"] / 1e6
    yield Figure(name="wal_peak", value=wal, unit="MB/s", formula="peak due × wal_bytes, from lease to history")


def _cores(load: Inputs, costs: Costs) -> Iterator[Figure]:
    """Of CPU, by the parts of an installation."""
    peak = peak_due(load)
    for part in PARTS:
        value = peak * costs[f"{part}_us"] / 1e6
        yield Figure(name=f"cores_{part}", value=value, unit="cores", formula=f"peak due × {part}_us")
