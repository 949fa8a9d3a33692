"""What is told ahead of time is given when its time has come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from api.held_hints import LONGEST_US, HeldHints

NOW_US = 10**15
steps = st.lists(
    st.one_of(
        st.tuples(st.just("tell"), st.integers(-5_000, 50_000)),
        st.tuples(st.just("pass"), st.integers(0, 20_000)),
    ),
    max_size=60,
)


@given(steps)
def test_whatever_is_told_is_given_once_in_due_order_and_never_before_its_time(steps: list[tuple[str, int]]) -> None:
    held, now_us = HeldHints[tuple[int, int]](), NOW_US
    told: list[tuple[int, int]] = []
    given: list[tuple[int, int]] = []
    for kind, us in steps:
        if kind == "tell":
            told.append(hint := (now_us + us, len(told)))
            held.hold(hint, hint[0], now_us)
        else:
            now_us += us
            popped = held.pop(now_us)
            assert popped == sorted(popped)
            assert all(until_us <= now_us for until_us, _ in popped)
            given += popped
        wait_us = held.wait_us(now_us)
        assert (wait_us is None) == (len(held) == 0)
        if wait_us:
            assert held.pop(now_us + wait_us - 1) == []
    while (wait_us := held.wait_us(now_us)) is not None:
        now_us += wait_us
        popped = held.pop(now_us)
        assert popped
        given += popped
    assert sorted(given) == sorted(told)


def test_what_no_owner_would_tell_so_far_ahead_is_given_at_once() -> None:
    """The clocks do not agree: the ledger judges."""
    held = HeldHints[str]()
    held.hold("far", NOW_US + LONGEST_US + 1, NOW_US)
    held.hold("near", NOW_US + LONGEST_US, NOW_US)
    assert held.pop(NOW_US) == ["far"]
    assert held.pop(NOW_US + LONGEST_US) == ["near"]
