"""How contenders take turns, and what is told of them."""

from __future__ import annotations

from bench.all import scaled
from bench.compare import FLOOR, OURS, Comparison, Figures, Unmeasured, compare, table
from bench.drain import Size


def test_contenders_take_turns_and_medians_are_told() -> None:
    turns: list[str] = []
    rates = iter([3.0, 1.0, 2.0])

    def ours() -> Figures:
        turns.append(OURS)
        return {"drained, runs/s": next(rates)}

    def floor() -> Figures:
        turns.append(FLOOR)
        return {"drained, runs/s": 6.0}

    found = compare("drain", {OURS: ours, FLOOR: floor}, 3)
    assert turns == [OURS, FLOOR] * 3
    assert found.flat() == {
        "drained, runs/s": 2.0,
        "floor: drained, runs/s": 6.0,
        "floor: drained, runs/s, ratio to ours": 3.0,
    }


def test_a_contender_that_cannot_be_measured_is_named_with_the_reason_and_the_others_go_on() -> None:
    tries: list[str] = []

    def peer() -> Figures:
        tries.append("peer")
        raise Unmeasured("its worker started nothing")

    found = compare("drain", {OURS: lambda: {"drained, runs/s": 1.0}, "peer": peer}, 2, {"other": "npm is missing"})
    assert tries == ["peer"]
    assert found.medians == {OURS: {"drained, runs/s": 1.0}}
    assert found.skipped == {"peer": "its worker started nothing", "other": "npm is missing"}


def test_the_table_has_a_row_a_figure_and_each_ratio_to_ours() -> None:
    medians = {OURS: {"WAL, bytes/run": 800.0}, "peer": {"WAL, bytes/run": 1200.0, "drained of, runs": 5.0}}
    first, *rows, last = table([Comparison("drain", medians, {"other": "npm is missing"})]).splitlines()
    assert first.split() == [OURS, "peer"]
    assert [row.split("  ")[0] for row in rows] == ["drain: WAL, bytes/run", "drain: drained of, runs"]
    assert rows[0].endswith("1,200 (1.50)")
    assert rows[1].split()[-2:] == ["-", "5"]
    assert last == "skipped: other: npm is missing"


def test_a_smaller_scale_leaves_small_numbers_and_batches_as_they_are() -> None:
    assert scaled(Size(runs=20_000, batch=500), 0.01) == Size(runs=200, batch=500)
    assert scaled(Size(runs=50, batch=500), 0.01) == Size(runs=10, batch=500)
