"""When a queue is looked at, by instants that are passed in."""

from __future__ import annotations

from itertools import pairwise

import pytest

from api.look_times import DOUBTED_S, RAREST, SOON_S, LookTimes

MAIL, SMS = ("acme", "mail"), ("acme", "sms")


def looks(times: LookTimes, since: float, until: float, *, trusted: bool) -> list[float]:
    """The instants of all looks in that time, of which each interval is a second."""
    instants = []
    while (at := times.next_at()) is not None and at <= until:
        now = max(at, since)
        for queue in times.due(now, 0.0):
            times.look(queue, now, 1.0, trusted=trusted)
            instants.append(now)
    return instants


def gaps(instants: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(instants)]


def test_a_queue_is_looked_at_as_soon_as_somebody_waits_on_it() -> None:
    times = LookTimes()
    assert times.next_at() is None
    assert times.arrive(MAIL, 5.0)
    assert times.due(5.0, 0.0) == [MAIL]


def test_it_is_looked_at_ever_more_rarely_while_hints_are_trusted() -> None:
    times = LookTimes()
    times.arrive(MAIL, 0.0)
    assert gaps(looks(times, 0.0, 100.0, trusted=True)) == [1, 2, 4, 8, 16, RAREST, RAREST]


def test_it_is_looked_at_after_every_interval_while_they_are_not() -> None:
    times = LookTimes()
    times.arrive(MAIL, 0.0)
    assert gaps(looks(times, 0.0, 10.0, trusted=False)) == [1] * 10


def test_when_they_are_not_any_more_all_are_looked_at() -> None:
    times = LookTimes()
    for queue in (MAIL, SMS):
        times.arrive(queue, 0.0)
    looks(times, 0.0, 16.0, trusted=True)
    times.hurry(20.0)
    assert sorted(times.due(20.0, 0.0)) == [MAIL, SMS]


def test_who_comes_to_a_queue_that_was_quiet_waits_for_its_turn_unless_he_will_not_wait() -> None:
    times = LookTimes()
    times.arrive(MAIL, 0.0)
    looks(times, 0.0, 16.0, trusted=True)
    assert not times.arrive(MAIL, 17.0)
    assert times.due(17.0, 0.0) == []
    assert times.arrive(MAIL, 17.0, patient=False)
    assert times.due(17.0, 0.0) == [MAIL]


def test_who_will_not_wait_causes_no_look_just_after_another() -> None:
    times = LookTimes()
    assert times.may_look(MAIL, 0.0)
    times.arrive(MAIL, 0.0)
    looks(times, 0.0, 0.0, trusted=True)
    assert not times.may_look(MAIL, 0.9)
    assert not times.arrive(MAIL, 0.9, patient=False)
    assert times.may_look(MAIL, 1.0)


def test_a_doubted_queue_is_looked_at_soon_and_often_for_a_while() -> None:
    times = LookTimes()
    times.arrive(MAIL, 0.0)
    looks(times, 0.0, 16.0, trusted=True)
    times.doubt(MAIL, 16.0)
    instants = looks(times, 16.0, 16.0 + DOUBTED_S + 100, trusted=True)
    assert instants[0] == 16.0 + SOON_S
    assert gaps(instants)[: int(DOUBTED_S)] == pytest.approx([1] * int(DOUBTED_S))
    assert gaps(instants)[-1] == RAREST


def test_a_queue_that_had_what_no_hint_told_is_looked_at_as_if_anew() -> None:
    times = LookTimes()
    times.arrive(MAIL, 0.0)
    looks(times, 0.0, 16.0, trusted=True)
    times.again(MAIL, 17.0)
    assert gaps(looks(times, 16.0, 25.0, trusted=True)) == [1, 2, 4]


def test_turns_that_come_within_a_moment_are_taken_along_but_none_is_taken_before_one_is_due() -> None:
    times = LookTimes()
    times.arrive(MAIL, 0.0)
    times.arrive(SMS, 0.4)
    assert times.due(-0.1, 0.5) == []
    assert times.due(0.0, 0.5) == [MAIL, SMS]


def test_a_queue_that_nobody_waits_on_any_more_is_forgotten() -> None:
    times = LookTimes()
    times.arrive(MAIL, 0.0)
    looks(times, 0.0, 16.0, trusted=True)
    times.leave(MAIL)
    assert len(times) == 0
    assert times.next_at() is None
    assert times.arrive(MAIL, 17.0)
    assert times.due(17.0, 0.0) == [MAIL]
