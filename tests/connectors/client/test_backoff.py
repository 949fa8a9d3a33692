"""How long the client waits before it repeats a call."""

from __future__ import annotations

import pytest

from fencepost.backoff import BASE_S, CAP_S, wait_before_retry_s


def longest(repetition: int, retry_after_s: float | None = None) -> float:
    return wait_before_retry_s(repetition, retry_after_s, uniform=lambda _, high: high)


def test_ceiling_doubles_up_to_the_cap() -> None:
    assert [longest(repetition) for repetition in range(3)] == [BASE_S, 2 * BASE_S, 4 * BASE_S]
    assert longest(40) == longest(10_000) == CAP_S


def test_whoever_waits_is_back_well_within_2_s_of_a_server_s_return() -> None:
    assert longest(10_000) <= 1.5


def test_wait_is_anywhere_below_the_ceiling() -> None:
    waits = [wait_before_retry_s(3) for _ in range(200)]
    assert min(waits) < 2 * BASE_S
    assert max(waits) > 6 * BASE_S
    assert all(0 <= wait <= 8 * BASE_S for wait in waits)


def test_wait_begins_after_the_time_that_the_server_asked_for() -> None:
    assert wait_before_retry_s(0, 7, uniform=lambda low, _: low) == 7
    assert longest(0, 7) == pytest.approx(7 + BASE_S)
