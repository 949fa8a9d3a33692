"""The estimate of the ledger's clock."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.clock import LedgerClock, monotonic_us
from ledger.connection import Pool, ledger_now, session
from streams.timers import to_us

delays = st.integers(0, 50_000)


def offset_us(clock: LedgerClock) -> int:
    assert clock._best is not None
    return clock._best[1]


@given(st.integers(-(10**9), 10**9), st.lists(st.tuples(delays, delays), min_size=1, max_size=40))
def test_the_estimate_is_never_ahead_and_late_by_the_shortest_round_trip_at_most(
    truth_us: int, trips: list[tuple[int, int]]
) -> None:
    clock = LedgerClock()
    for there_us, back_us in trips:
        clock.learn(there_us + back_us, truth_us - back_us)
    shortest_us = min(there + back for there, back in trips[-24:])
    assert truth_us - shortest_us <= offset_us(clock) <= truth_us


@given(st.integers(-(10**9), 10**9), st.lists(st.tuples(delays, delays), min_size=1, max_size=20), delays)
def test_an_instant_of_the_ledger_s_has_come_when_our_clock_says_so(
    truth_us: int, trips: list[tuple[int, int]], instant_us: int
) -> None:
    clock = LedgerClock()
    for there_us, back_us in trips:
        clock.learn(there_us + back_us, truth_us - back_us)
    local_us = clock.locally_us(instant_us)
    assert local_us is not None
    assert local_us + truth_us >= instant_us


def test_without_a_sample_no_instant_is_known() -> None:
    assert LedgerClock().locally_us(1_000_000) is None


def test_a_ledger_whose_clock_was_put_back_is_believed_at_once() -> None:
    clock = LedgerClock()
    clock.learn(100, 1_000_000)
    clock.learn(5_000, 400_000)
    assert offset_us(clock) == 400_000


def test_a_ledger_whose_clock_was_put_forward_is_believed_at_once() -> None:
    clock = LedgerClock()
    clock.learn(100, 1_000_000)
    clock.learn(5_000, 2_000_000)
    assert offset_us(clock) == 2_000_000


@pytest.mark.parametrize("ahead_s", [2.0, -3.0])
def test_a_process_whose_clock_is_off_is_told_by_how_much_for_certain(ahead_s: float) -> None:
    clock = LedgerClock()
    clock.learn(100_000, 5_000_000)
    before_us = monotonic_us() + 5_000_000  # the ledger's clock, or up to 0.1 s later
    skew_s = clock.skew_s(before_us + round(1e6 * ahead_s))
    elapsed_s = (clock.now_us() - before_us) / 1e6
    least, most = sorted((abs(ahead_s) - 0.1 - elapsed_s, abs(ahead_s) + elapsed_s))
    assert least <= abs(skew_s) <= most
    assert (skew_s > 0) == (ahead_s > 0)


def test_a_skew_within_the_round_trip_is_none_and_without_a_sample_it_is_unknown() -> None:
    clock = LedgerClock()
    assert math.isnan(clock.skew_s())
    clock.learn(60_000_000, 5_000_000)
    assert clock.skew_s(clock.now_us() + 30_000_000) == 0


async def test_the_ledger_s_time_is_told_within_a_round_trip(ledger_pool: Pool) -> None:
    clock = LedgerClock()
    await clock.sample(ledger_pool)
    async with session(ledger_pool) as conn:
        began = time.monotonic()
        estimate_us = clock.now_us()
        now_us = to_us(await ledger_now(conn))
        assert estimate_us <= now_us
        assert now_us - estimate_us < 1e6 * (time.monotonic() - began) + 1_000_000
