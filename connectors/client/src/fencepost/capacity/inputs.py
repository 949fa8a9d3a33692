"""What a load looks like: the eight numbers that capacity is computed from."""

from __future__ import annotations

import math

import msgspec
from msgspec import Struct

from fencepost.errors import InvalidInput

DAY_S = 86_400


class Inputs(Struct, rename="camel", frozen=True, kw_only=True):
    """The defaults are the scale that Fencepost is designed for: 300 M runs a day, 35,000/s at the top of the hour.

    peak_factor: the busiest second over the average one. run_seconds: how long a run is executed, on average.
    live_jobs: recurring jobs and waiting one-offs. busy: the share of its power that a shard gives at the peak.
    """

    runs_per_day: float = 300e6
    peak_factor: float = 35_000 / (300e6 / DAY_S)
    run_seconds: float = 10.0
    visibility_seconds: float = 30.0
    live_jobs: float = 20e6
    history_days: float = 30.0
    lookahead_seconds: float = 30.0
    busy: float = 0.7

    def __post_init__(self) -> None:
        """Raises InvalidInput, with the field, for what cannot be."""
        for field in msgspec.structs.fields(self):
            self._check(field.name, 0, math.inf)
        self._check("runs_per_day", 1, math.inf)
        self._check("peak_factor", 1, math.inf)
        self._check("visibility_seconds", 1, 3600)
        self._check("busy", 0.01, 1)

    def _check(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if not math.isfinite(value) or not low <= value <= high:
            bounds = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise InvalidInput(f"must be {bounds}, not {value:g}", field=name)
