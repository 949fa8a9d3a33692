"""Capacity: the design's numbers come out, and more load never needs less."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.capacity.costs import measured_costs, values, with_given
from fencepost.capacity.inputs import Inputs
from fencepost.capacity.sizing import PARTS, shards_for, sizing
from fencepost.errors import InvalidInput
from fencepost.leases import LeaseTerms
from streams.partition_memory import LOOKAHEAD_US

COSTS = values(measured_costs())
INPUTS = [field.name for field in msgspec.structs.fields(Inputs)]

loads = st.builds(
    Inputs,
    runs_per_day=st.floats(1, 1e12),
    peak_factor=st.floats(1, 1e3),
    run_seconds=st.floats(0, 1e5),
    visibility_seconds=st.floats(1, 3600),
    live_jobs=st.floats(0, 1e10),
    history_days=st.floats(0, 1e4),
    lookahead_seconds=st.floats(0, 3600),
    busy=st.floats(0.01, 1),
)


def figures(load: Inputs, **costs: float) -> dict[str, float]:
    return {name: figure.value for name, figure in sizing(load, COSTS | costs).items()}


# -- the design's own numbers


def test_the_scale_of_the_design_comes_out() -> None:
    """300 M runs a day are 3,472 a second, 35,000 at the top of the hour; ten times that is the stress."""
    found = figures(Inputs())
    assert found["due_average"] == pytest.approx(3_472.2, abs=0.1)
    assert found["due_peak"] == pytest.approx(35_000)
    assert figures(Inputs(peak_factor=100.8))["due_peak"] == pytest.approx(350_000)


def test_a_shard_at_the_design_s_floor_of_17_000_cycles_gives_four_shards_and_at_30_000_two() -> None:
    """DESIGN, Ledger speed: three fenced transactions a cycle, batches of 100 and of 500. Short runs beat no heart."""
    short = Inputs(run_seconds=0)
    by_batch = [(17_000, 4), (30_000, 2), (35_000, 2), (57_000, 1)]
    for cycles, shards in by_batch:
        power = {"writes_per_run": 1, "shard_writes_per_second": cycles}
        assert figures(short, **power)["shards"] == shards, cycles


def test_the_design_s_timers_are_49_bytes_each() -> None:
    """DESIGN, Timing state: 2 M timers took 98 MB. 35,000/s over the 30 s that wheels look ahead."""
    ahead = figures(Inputs(), lookahead_bytes=98e6 / 2e6)["lookahead"]
    assert ahead == pytest.approx(35_000 * 30 * 49 / 1e6) == pytest.approx(51.45)


@pytest.mark.parametrize(
    ("wal_bytes", "mb_per_second"),
    [(870, 30.45), (790, 27.65), (1_050, 36.75), (101, 3.535), (765, 26.775), (1_000, 35.0)],
)
def test_the_design_s_wal_of_a_run_at_the_peak(wal_bytes: float, mb_per_second: float) -> None:
    assert figures(Inputs(), wal_bytes=wal_bytes)["wal_peak"] == pytest.approx(mb_per_second)


@pytest.mark.parametrize(("postgres_us", "cores"), [(37, 1.295), (41, 1.435), (73, 2.555), (91, 3.185), (60, 2.1)])
def test_the_design_s_cpu_of_a_cycle_at_the_peak(postgres_us: float, cores: float) -> None:
    assert figures(Inputs(), postgres_us=postgres_us)["cores_postgres"] == pytest.approx(cores)


def test_runs_in_execution_are_little_s_law_and_beat_thrice_a_visibility() -> None:
    """DESIGN, Failure table: leases of 30 s."""
    found = figures(Inputs(run_seconds=60))
    assert found["executing_average"] == pytest.approx(300e6 / 86_400 * 60)
    assert found["executing_peak"] == pytest.approx(2_100_000)
    assert found["heartbeats_peak"] == pytest.approx(210_000)


def test_history_and_what_lives_are_bytes_times_count() -> None:
    found = figures(Inputs(history_days=365), history_bytes=200, live_job_bytes=1_000)
    assert found["history"] == pytest.approx(21.9)
    assert found["live"] == pytest.approx(20)


def test_the_usual_inputs_are_those_of_the_product() -> None:
    assert Inputs().lookahead_seconds * 1e6 == LOOKAHEAD_US
    terms = LeaseTerms(Inputs().visibility_seconds)
    assert COSTS["beats_per_visibility"] == pytest.approx(terms.visibility_s / (terms.beat_after_s + terms.tick_s))


# -- whatever the load


@given(load=loads, power=st.floats(1, 1e6))
def test_shards_are_a_power_of_two_that_is_busy_enough_and_half_of_them_would_not_do(
    load: Inputs, power: float
) -> None:
    found = figures(load, shard_writes_per_second=power)
    shards = int(found["shards"])
    assert shards & (shards - 1) == 0
    assert found["shard_busy"] <= load.busy * (1 + 1e-9)
    assert shards == 1 or found["writes_peak"] > shards // 2 * power * load.busy * (1 - 1e-9)


def test_shards_at_the_very_edge_are_not_doubled() -> None:
    assert [shards_for(writes, 100, 0.5) for writes in (0, 50, 51, 100, 101, 200)] == [1, 1, 2, 2, 4, 4]


@given(load=loads, name=st.sampled_from([each for each in INPUTS if each not in ("busy", "visibility_seconds")]))
def test_more_of_an_input_never_needs_less_of_anything(load: Inputs, name: str) -> None:
    more = msgspec.structs.replace(load, **{name: getattr(load, name) * 2 + 1})
    before, after = figures(load), figures(more)
    assert {key for key in before if after[key] < before[key] * (1 - 1e-12)} <= {"shard_busy"}


@given(load=loads)
def test_a_longer_lease_beats_less_and_a_busier_shard_needs_fewer(load: Inputs) -> None:
    longer = msgspec.structs.replace(load, visibility_seconds=min(3600, load.visibility_seconds * 2))
    assert figures(longer)["heartbeats_peak"] <= figures(load)["heartbeats_peak"]
    busier = msgspec.structs.replace(load, busy=min(1, load.busy * 2))
    assert figures(busier)["shards"] <= figures(load)["shards"]


@given(load=loads, name=st.sampled_from(sorted(COSTS.keys() - {"shard_writes_per_second"})))
def test_a_dearer_cost_never_needs_less(load: Inputs, name: str) -> None:
    before, after = figures(load), figures(load, **{name: COSTS[name] * 2})
    assert {key for key in before if after[key] < before[key] * (1 - 1e-12)} <= {"shard_busy"}


@given(load=loads)
def test_every_figure_is_a_number_with_its_formula(load: Inputs) -> None:
    for name, figure in sizing(load, COSTS).items():
        assert figure.name == name
        assert math.isfinite(figure.value)
        assert figure.value >= 0
        assert figure.formula


# -- what cannot be


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, value) for name in INPUTS for value in (-1, math.nan, math.inf)),
        ("runs_per_day", 0),
        ("peak_factor", 0.9),
        ("visibility_seconds", 0),
        ("visibility_seconds", 3601),
        ("busy", 0),
        ("busy", 1.01),
    ],
)
def test_an_input_that_cannot_be_is_named(field: str, value: float) -> None:
    wrong: dict[str, Any] = {field: value}
    with pytest.raises(InvalidInput) as caught:
        Inputs(**wrong)
    assert caught.value.field == field


# -- measured costs


def test_every_measured_cost_tells_its_unit_how_it_was_measured_and_when() -> None:
    costs = measured_costs()
    assert len({cost.name for cost in costs}) == len(costs)
    assert {f"{part}_us" for part in PARTS} < {cost.name for cost in costs}
    for cost in costs:
        assert cost.value > 0
        assert all((cost.unit, cost.what, cost.how))
        assert len(cost.date) == len("2026-11-29")


def test_a_given_cost_takes_the_place_of_the_measured_one_and_says_so() -> None:
    costs = with_given(measured_costs(), {"kafka_us": 5})
    assert values(costs) == COSTS | {"kafka_us": 5}
    assert [cost.name for cost in costs if cost.source == "given"] == ["kafka_us"]


@pytest.mark.parametrize(("name", "value"), [("kafka", 5), ("kafka_us", 0), ("kafka_us", math.nan)])
def test_a_cost_that_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=name) as caught:
        with_given(measured_costs(), {name: value})
    assert caught.value.field == "cost"
