"""Instants at a rate are never denser than the rate, in however many parts they are given."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from streams.pace import Pace

FIRST = datetime(2026, 5, 1, 8, 39, 30, 123456, tzinfo=UTC)
RATES = st.floats(1e-3, 300) | st.integers(1, 300) | st.fractions(1, 300).map(float)


def given_in_parts(rate_per_s: float, parts: list[int]) -> list[datetime]:
    instants, first = [], FIRST
    for part in parts:
        pace = Pace(rate_per_s, first)
        instants += [pace.take() for _ in range(part)]
        first = pace.next
    return instants


@given(RATES, st.lists(st.integers(1, 400), min_size=1, max_size=4))
def test_no_second_has_more_instants_than_the_rate_rounded_up(rate_per_s: float, parts: list[int]) -> None:
    instants = given_in_parts(rate_per_s, parts)
    most = math.ceil(rate_per_s)
    for earlier, later in zip(instants, instants[most:], strict=False):
        assert later - earlier >= timedelta(seconds=1, microseconds=-1)


@given(RATES, st.lists(st.integers(1, 400), min_size=1, max_size=4))
def test_what_the_rate_allows_is_given(rate_per_s: float, parts: list[int]) -> None:
    *_, last = given_in_parts(rate_per_s, parts)
    ideal_us = (sum(parts) - 1) * 1e6 / rate_per_s
    assert ideal_us - 1 <= (last - FIRST) / timedelta(microseconds=1) <= ideal_us + len(parts)


@given(st.floats(5e-324, 1e-12), st.integers(1, 100))
def test_the_tiniest_rate_stays_within_the_calendar(rate_per_s: float, count: int) -> None:
    instants = given_in_parts(rate_per_s, [count, count])
    assert instants == sorted(instants)
    assert instants[-1].year <= 9999
