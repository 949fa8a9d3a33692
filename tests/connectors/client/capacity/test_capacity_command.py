"""`fencepost capacity`, which needs no server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fencepost.capacity.costs import measured_costs, values
from fencepost.capacity.inputs import Inputs
from fencepost.capacity.sizing import sizing
from fencepost.cli import main


def capacity(*args: str) -> Result:
    return CliRunner().invoke(main, ["capacity", *args], env={"FENCEPOST_URL": ""}, catch_exceptions=False)


def told(*args: str) -> dict[str, Any]:
    result = capacity(*args, "--json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_the_options_are_the_inputs_with_the_same_defaults() -> None:
    answer = told()
    expected = sizing(Inputs(), values(measured_costs()))
    assert {name: each["value"] for name, each in answer["figures"].items()} == pytest.approx(
        {name: figure.value for name, figure in expected.items()}
    )
    assert answer["inputs"]["runsPerDay"] == 300e6


def test_each_line_has_its_formula_and_each_cost_where_it_comes_from() -> None:
    result = capacity()
    assert result.exit_code == 0
    [due] = [line for line in result.stdout.splitlines() if line.startswith("due, at the peak")]
    assert due.split("  ")[-1].strip() == "average due × peak-factor"
    assert "35,000 runs/s" in due
    assert "python -m bench.drain" in result.stdout
    for cost in measured_costs():
        assert cost.name in result.stdout


def test_numbers_may_be_written_short() -> None:
    figures = told("--runs-per-day", "86.4k", "--peak-factor", "2", "--busy", "50%")["figures"]
    assert (figures["due_average"]["value"], figures["due_peak"]["value"]) == pytest.approx((1, 2))
    assert told("--busy", "50%")["inputs"]["busy"] == 0.5


def test_a_cost_can_be_given() -> None:
    answer = told("--cost", "postgres_us=66", "--cost", "wal_bytes=1k")
    assert answer["figures"]["cores_postgres"]["value"] == pytest.approx(35_000 * 66e-6)
    assert {cost["name"] for cost in answer["costs"] if cost["source"] == "given"} == {"postgres_us", "wal_bytes"}
    assert "as given" in capacity("--cost", "postgres_us=66").stdout


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--runs-per-day", "0"),
        ("--runs-per-day", "many"),
        ("--peak-factor", "0.5"),
        ("--run-seconds", "-1"),
        ("--visibility-seconds", "0"),
        ("--live-jobs", "1e"),
        ("--history-days", "nan"),
        ("--lookahead-seconds", "inf"),
        ("--busy", "120%"),
        ("--cost", "postgres_us"),
        ("--cost", "postgres_us=0"),
        ("--cost", "sleep_us=3"),
    ],
)
def test_nonsense_is_refused_naming_the_option(option: str, value: str) -> None:
    result = capacity(option, value)
    assert result.exit_code == 2
    assert option in result.stderr
