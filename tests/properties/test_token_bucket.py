"""A token bucket never gives more than rate × time + burst, in no stretch of time, and starves nobody."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from api.token_bucket import TokenBucket

RATES = st.floats(0.01, 10_000)
BURSTS = st.floats(1, 10_000)
STEPS = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 1_000), st.floats(0, 1)), min_size=1, max_size=30)
ROUNDING = 1e-6


@given(RATES, BURSTS, STEPS)
def test_no_stretch_of_time_gets_more_than_its_rate_and_one_burst(
    rate: float, burst: float, steps: list[tuple[float, int, float]]
) -> None:
    """Each step lets time pass, takes, and gives some of it back."""
    bucket = TokenBucket(rate, burst, 0.0)
    at, instants, given_out = 0.0, [0.0], [0]
    for passed, wanted, unused in steps:
        at += passed
        taken = bucket.take(wanted, at)
        assert 0 <= taken <= wanted
        back = int(taken * unused)
        bucket.give_back(back)
        instants.append(at)
        given_out.append(taken - back)
    so_far = list(accumulate(given_out))
    for first in range(len(so_far)):
        for last in range(first, len(so_far)):
            most = rate * (instants[last] - instants[first]) + burst
            assert so_far[last] - so_far[first] <= most * (1 + ROUNDING) + ROUNDING
    assert so_far[-1] <= rate * at * (1 + ROUNDING) + ROUNDING  # it begins empty


@given(st.lists(st.tuples(RATES, BURSTS, st.floats(0, 100), st.integers(0, 1_000)), min_size=1, max_size=30))
def test_a_bucket_that_is_resized_gives_no_more_than_its_rates_together_allow(
    steps: list[tuple[float, float, float, int]],
) -> None:
    bucket = TokenBucket(0.0, 1.0, 0.0)
    at, allowed, taken = 0.0, 0.0, 0
    for rate, burst, passed, wanted in steps:
        bucket.resize(rate, burst, at)
        at += passed
        allowed += rate * passed
        taken += bucket.take(wanted, at)
        assert taken <= allowed * (1 + ROUNDING) + ROUNDING


@given(RATES, BURSTS, st.integers(1, 1_000), st.floats(0, 100))
def test_whoever_waits_as_long_as_he_is_told_gets_what_he_waits_for(
    rate: float, burst: float, wanted: int, began: float
) -> None:
    bucket = TokenBucket(rate, burst, began)
    fits = min(wanted, int(burst))
    wait_s = bucket.wait_s(fits, began)
    assert wait_s <= fits / rate * (1 + ROUNDING)
    # A clock that is far on tells no instants that are nearer to each other than this.
    assert bucket.take(wanted, began + wait_s + ROUNDING) >= fits
