"""How many slots a queue needs, and what spreading the heaviest schedules would save."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.forecast.second_loads import Busy, SecondLoads, Spread
from fencepost.forecast.slots import queue_slots
from tests.connectors.client.forecast.test_exact_load import START, forecast, job

SECONDS = 300
runs_by_second = st.dictionaries(st.integers(0, SECONDS), st.integers(1, 50), max_size=40)


def loads_of(runs: dict[int, int]) -> SecondLoads:
    loads = SecondLoads(0, SECONDS)
    loads.add(runs)
    return loads


@given(runs=runs_by_second, taken=st.floats(0.1, 400))
def test_most_slots_at_once_are_those_of_runs_that_overlap(runs: dict[int, int], taken: float) -> None:
    slots = queue_slots("mail", runs, seconds_per_run=taken, observed=True, horizon_s=SECONDS)
    at_once = {now: sum(n for at, n in runs.items() if at <= now < at + taken) for now in runs}
    assert slots.peak_slots == max(at_once.values(), default=0)
    assert slots.mean_slots == pytest.approx(sum(runs.values()) * taken / SECONDS)
    if at_once:
        assert slots.peak_at == datetime.fromtimestamp(min(t for t, n in at_once.items() if n == slots.peak_slots), UTC)


@given(
    runs=runs_by_second,
    spread=st.lists(st.tuples(st.integers(0, SECONDS), st.integers(1, 90), st.integers(1, 120)), max_size=5),
)
def test_the_peak_with_runs_spread_is_that_of_moving_them_one_by_one(
    runs: dict[int, int], spread: list[tuple[int, int, int]]
) -> None:
    before = Counter(runs)
    for second, count, _ in spread:
        before[second] += count
    after = Counter(runs)
    for second, count, width in spread:
        for number in range(count):
            after[second + number % width] += 1
    inside = {second: count for second, count in after.items() if second <= SECONDS and count}
    peak = loads_of(dict(before)).peak_without(Spread(*each) for each in spread)
    if not inside:
        assert peak is None
        return
    most = max(inside.values())
    assert peak == Busy(datetime.fromtimestamp(min(s for s, n in inside.items() if n == most), UTC), most)


def test_spreading_more_of_the_heaviest_saves_more_and_an_hour_more_than_a_minute() -> None:
    jobs = [job({"cron": "0 0 * * *"}, n) for n in range(600)] + [job({"cron": "0 * * * *"}, n) for n in range(120)]
    one, two = forecast(*jobs).savings
    assert [(one.schedules, one.jobs), (two.schedules, two.jobs)] == [(1, 600), (2, 720)]
    assert one.over_minute is not None
    assert one.over_hour is not None
    assert (one.over_minute.runs, one.over_hour.runs) == (120 + 10, 120 + 1)
    assert two.over_minute is not None
    assert two.over_hour is not None
    assert (two.over_minute.runs, two.over_hour.runs) == (12, 2)


def test_a_schedule_is_not_spread_over_more_than_its_shortest_pause() -> None:
    [saving] = forecast(*(job({"cron": "*/5 * * * *"}, n) for n in range(600))).savings
    assert saving.over_hour is not None
    assert saving.over_hour.runs == 2


def test_a_hashed_schedule_is_the_heaviest_at_its_own_minute() -> None:
    [saving] = forecast(job({"cron": "H 3 * * *"}, 1), job({"cron": "H 3 * * *"}, 1)).savings
    assert (saving.schedules, saving.jobs) == (1, 2)


def test_what_has_jitter_is_not_spread_again() -> None:
    jobs = [job({"cron": "0 0 * * *", "jitterSeconds": 3_600}, n) for n in range(300)]
    made = forecast(*jobs, end=START + timedelta(hours=9))
    assert made.worst_seconds[0].runs < 10
    assert made.savings == []


def test_nothing_to_do_is_no_forecast_of_trouble() -> None:
    made = forecast()
    assert (made.runs, made.worst_seconds, made.savings, made.queues) == (0, [], [], [])
