"""Whether the feed of run events goes on: pure, with times of the test's."""

from __future__ import annotations

from streams.feed_watch import FeedWatch


def test_a_partition_at_the_end_of_its_topic_stands_still_for_no_longer_than_since_the_last_look() -> None:
    watch = FeedWatch()
    watch.begin(3, 7, 0.0)
    watch.looked({3: 7}, 100.0)
    assert watch.longest_s(104.0) == 4.0


def test_a_partition_whose_events_do_not_come_stands_still_until_they_do() -> None:
    watch = FeedWatch()
    watch.begin(3, 7, 0.0)
    watch.begin(4, 0, 0.0)
    for now_s in (10.0, 20.0, 30.0):
        watch.looked({3: 8, 4: 0}, now_s)
    assert watch.longest_s(30.0) == 30.0
    watch.went_on(3, 8, 31.0)
    assert watch.longest_s(32.0) == 2.0


def test_a_feed_that_is_behind_but_goes_on_does_not_stand_still() -> None:
    watch = FeedWatch()
    watch.begin(3, 0, 0.0)
    for now_s in (10.0, 20.0, 30.0):
        watch.went_on(3, int(now_s), now_s)
        watch.looked({3: 1_000}, now_s)
    assert watch.longest_s(30.0) == 0.0


def test_without_a_word_of_the_leaders_nothing_is_known() -> None:
    watch = FeedWatch()
    watch.begin(3, 7, 0.0)
    watch.looked({}, 50.0)
    assert watch.longest_s(60.0) == 60.0


def test_what_is_read_no_more_does_not_stand_still_whatever_is_still_delivered() -> None:
    watch = FeedWatch()
    watch.begin(3, 7, 0.0)
    watch.end(3)
    watch.went_on(3, 8, 1.0)
    watch.looked({3: 9}, 2.0)
    watch.end(3)
    assert watch.longest_s(60.0) == 0.0
