"""Which partitions are read again because their commands do not come, by the clock that is passed in."""

from __future__ import annotations

from itertools import pairwise

from streams.stalled_reads import LONGEST_PATIENCE_S, PATIENCE_S, StallWatch


def test_a_partition_at_its_end_or_moving_is_left_alone() -> None:
    watch = StallWatch()
    for second in range(100):
        assert watch.stalled({0: 7, 1: second}, {0: 7, 1: 1_000}, float(second)) == []


def test_one_that_stands_still_before_its_end_is_read_again_once_patience_is_over() -> None:
    watch = StallWatch()
    assert watch.stalled({3: 7}, {3: 8}, 0.0) == []
    assert watch.stalled({3: 7}, {3: 8}, PATIENCE_S - 0.1) == []
    assert watch.stalled({3: 7}, {3: 8}, PATIENCE_S) == [3]


def test_a_partition_of_which_nothing_was_fetched_is_read_again_too() -> None:
    watch = StallWatch()
    watch.stalled({3: 7}, {3: None}, 0.0)
    assert watch.stalled({3: 7}, {3: None}, PATIENCE_S) == [3]


def test_patience_doubles_as_long_as_it_does_not_help_and_starts_anew_with_progress() -> None:
    watch, now_s, read_at = StallWatch(), 0.0, []
    while now_s < 400:
        if watch.stalled({3: 7}, {3: 8}, now_s):
            read_at.append(now_s)
        now_s += 1.0
    gaps = [after - before for before, after in pairwise(read_at)]
    assert gaps[:4] == [8, 16, 32, 60]
    assert max(gaps) == LONGEST_PATIENCE_S
    assert watch.stalled({3: 8}, {3: 9}, now_s) == []
    assert watch.stalled({3: 8}, {3: 9}, now_s + PATIENCE_S) == [3]


def test_a_partition_that_is_full_or_gone_meanwhile_starts_anew() -> None:
    watch = StallWatch()
    watch.stalled({3: 7}, {3: 8}, 0.0)
    assert watch.stalled({}, {}, 2.0) == []
    assert watch.stalled({3: 7}, {3: 8}, PATIENCE_S) == []


def test_how_long_the_longest_stands_still_is_told_until_it_moves() -> None:
    watch = StallWatch()
    assert watch.longest_s(5.0) == 0
    watch.stalled({3: 7, 4: 1}, {3: 8, 4: 1}, 10.0)
    watch.stalled({3: 7, 4: 1}, {3: 8, 4: 2}, 40.0)
    assert watch.longest_s(45.0) == 35
    watch.stalled({3: 8, 4: 1}, {3: 8, 4: 2}, 50.0)
    assert watch.longest_s(55.0) == 15
