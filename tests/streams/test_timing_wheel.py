"""The timing wheel against a plain list of timers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.timing_wheel import SLOT_US, TimingWheel

NOW_US = 1_700_000_000_000_000

keys = st.integers(0, 8)
instants = st.integers(NOW_US, NOW_US + 20 * SLOT_US)
adds = st.tuples(st.just("add"), keys, instants)
removals = st.tuples(st.just("remove"), keys, st.just(0))
pops = st.tuples(st.just("pop"), st.integers(1, 5), st.integers(0, 3 * SLOT_US))


@given(st.lists(st.one_of(adds, removals, pops), max_size=80))
def test_a_wheel_fires_what_a_sorted_list_would(steps: list[tuple[str, int, int]]) -> None:
    wheel: TimingWheel[int] = TimingWheel()
    timers: dict[int, int] = {}
    now_us = NOW_US
    for step, number, us in steps:
        if step == "add":
            wheel.add(number, us)
            timers[number] = us
        elif step == "remove":
            wheel.remove(number)
            timers.pop(number, None)
        else:
            now_us += us
            due = sorted((at, key) for key, at in timers.items() if at <= now_us)[:number]
            assert wheel.pop_due(now_us, number) == [key for _, key in due]
            for _, key in due:
                del timers[key]
        assert len(wheel) == len(timers)
        assert all(key in wheel for key in timers)
    wake_us = wheel.next_due_us()
    assert not timers or (wake_us is not None and wake_us <= min(timers.values()))


@given(st.dictionaries(keys, instants, min_size=1))
def test_waking_when_the_wheel_says_fires_each_timer_at_its_instant(timers: dict[int, int]) -> None:
    wheel: TimingWheel[int] = TimingWheel()
    for key, at_us in timers.items():
        wheel.add(key, at_us)
    fired, wakes = {}, 0
    while (wake_us := wheel.next_due_us()) is not None:
        wakes += 1
        fired.update(dict.fromkeys(wheel.pop_due(wake_us), wake_us))
    assert fired == timers
    assert wakes <= 2 * len(timers)  # once for its slot, once for itself


def test_a_timer_that_was_moved_does_not_fire_at_its_old_time() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.add("run", NOW_US)
    wheel.add("run", NOW_US + 5)
    assert wheel.pop_due(NOW_US + 4) == []
    assert wheel.pop_due(NOW_US + 5) == ["run"]


def test_a_timer_that_was_removed_and_added_again_fires_once() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.add("run", NOW_US)
    wheel.remove("run")
    wheel.add("run", NOW_US)
    assert wheel.pop_due(NOW_US) == ["run"]
    assert wheel.pop_due(NOW_US + SLOT_US) == []


def test_a_timer_added_for_the_past_fires_at_the_next_look() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.add("later", NOW_US)
    assert wheel.pop_due(NOW_US) == ["later"]
    wheel.add("overdue", NOW_US - 10 * SLOT_US)
    assert wheel.next_due_us() is not None
    assert wheel.pop_due(NOW_US) == ["overdue"]


def test_an_empty_wheel_asks_for_no_wake_up() -> None:
    assert TimingWheel[str]().next_due_us() is None
