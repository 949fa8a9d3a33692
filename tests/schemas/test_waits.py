"""The intervals of a run's life: examples of each cause, and that they always partition the line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from schemas.events import GONE_EVENTS, LEASED_EVENTS, SPREAD, WAITING_EVENTS
from schemas.waits import PRIORITY, Cause, Hindrance, LifeEvent, Timeline, timeline

DUE = datetime(2026, 3, 1, 9, tzinfo=UTC)
MADE = DUE - timedelta(hours=1)


def at(seconds: float) -> datetime:
    """So many seconds after the run was due."""
    return DUE + timedelta(seconds=seconds)


SCHEDULED = LifeEvent("run_scheduled", MADE, DUE)


def leased(seconds: float, attempt: int = 1, due: datetime = DUE) -> LifeEvent:
    return LifeEvent("run_leased", at(seconds), due, attempt, "w1")


def life(events: Sequence[LifeEvent], *hindrances: Hindrance, now: float = 1000) -> Timeline:
    return timeline(events, hindrances, at(now))


def causes(found: Timeline) -> list[tuple[Cause, float]]:
    """Each interval's cause and seconds."""
    return [(each.cause, each.micros / 1e6) for each in found.intervals]


def test_a_run_that_was_leased_late_waited_for_a_worker() -> None:
    found = life([SCHEDULED, leased(2.5), LifeEvent("run_completed", at(4), attempt=1)])
    assert causes(found) == [("no_worker_asked", 2.5), ("running", 1.5)]
    assert found.lateness_us == 2_500_000
    assert (found.due_at, found.first_leased_at) == (DUE, at(2.5))
    assert found.intervals[1].sentence == "attempt 1 on worker w1, completed"


def test_a_run_that_is_not_due_yet_is_not_late() -> None:
    found = life([SCHEDULED], now=-60)
    assert causes(found) == [("not_due", 3540)]
    assert found.lateness_us == 0


def test_a_run_that_was_leased_when_it_was_due_is_not_late() -> None:
    found = life([SCHEDULED, leased(0)], now=5)
    assert causes(found) == [("running", 5)]
    assert found.lateness_us == 0


def test_a_run_that_nobody_has_leased_yet_is_late_so_far() -> None:
    found = life([SCHEDULED], now=7)
    assert causes(found) == [("no_worker_asked", 7)]
    assert (found.lateness_us, found.first_leased_at) == (7_000_000, None)


def test_a_run_that_was_skipped_was_late_until_then() -> None:
    found = life([SCHEDULED, LifeEvent("run_skipped", at(3), reason="start deadline")])
    assert causes(found) == [("no_worker_asked", 3)]
    assert found.end is not None
    assert found.end.reason == "start deadline"


def test_a_run_that_was_made_late_was_not_decided_until_then() -> None:
    found = life([LifeEvent("run_scheduled", at(10), DUE), leased(11)], now=12)
    assert causes(found) == [("not_decided", 10), ("no_worker_asked", 1), ("running", 1)]


def test_what_a_takeover_explains_is_only_the_time_without_an_owner() -> None:
    takeover = Hindrance("owner_taking_over", at(2), at(9), "")
    found = life([SCHEDULED, leased(10)], takeover, now=10)
    assert causes(found) == [("no_worker_asked", 2), ("owner_taking_over", 7), ("no_worker_asked", 1)]


def test_a_paused_job_holds_its_run_whatever_else_is_paused() -> None:
    events = [SCHEDULED, LifeEvent("run_held", at(1), DUE), LifeEvent("run_scheduled", at(5), DUE), leased(6)]
    found = life(events, Hindrance("queue_paused", at(0), at(5.5), ""), now=6)
    assert causes(found) == [("queue_paused", 1), ("job_paused", 4), ("queue_paused", 0.5), ("no_worker_asked", 0.5)]


def test_the_first_of_several_causes_in_the_order_of_their_rank_counts() -> None:
    together = [Hindrance(cause, at(rank), at(16 - rank), cause) for rank, cause in enumerate(reversed(PRIORITY))]
    found = life([SCHEDULED], *together, now=16)
    assert causes(found) == [
        ("lease_quota", 1),
        ("owner_taking_over", 1),
        ("overlap", 1),
        ("key_full", 1),
        ("queue_full", 1),
        ("queue_paused", 1),
        ("tenant_paused", 4),
        ("queue_paused", 1),
        ("queue_full", 1),
        ("key_full", 1),
        ("overlap", 1),
        ("owner_taking_over", 1),
        ("lease_quota", 1),
    ]


def test_a_retry_waits_for_its_delay_and_then_for_a_worker() -> None:
    retried = LifeEvent("run_retried", at(2), at(5), 1, "w1", "lease expired")
    found = life([SCHEDULED, leased(1), retried, leased(6, 2, at(5))], now=8)
    assert causes(found) == [
        ("no_worker_asked", 1),
        ("running", 1),
        ("retry_delay", 3),
        ("no_worker_asked", 1),
        ("running", 2),
    ]
    assert found.lateness_us == 1_000_000
    assert found.intervals[1].sentence == "attempt 1 on worker w1, retried: lease expired"


def test_a_run_that_was_put_off_is_snoozed_and_one_given_back_waits_again() -> None:
    snoozed = LifeEvent("run_released", at(2), at(5), 0)
    returned = LifeEvent("run_released", at(7), at(5), 0)
    found = life([SCHEDULED, leased(1), snoozed, leased(6, 1, at(5)), returned], now=8)
    assert [cause for cause, _ in causes(found)] == [
        *("no_worker_asked", "running", "snoozed", "no_worker_asked", "running", "no_worker_asked"),
    ]


def test_a_cancel_that_is_asked_for_does_not_cut_the_attempt() -> None:
    asked = LifeEvent("run_cancel_requested", at(2), DUE, 1, "w1", "cancelled")
    found = life([SCHEDULED, leased(1), asked, LifeEvent("run_cancelled", at(3), reason="cancelled")])
    assert causes(found) == [("no_worker_asked", 1), ("running", 2)]


def test_a_replayed_run_was_over_in_between() -> None:
    events = [SCHEDULED, leased(0), LifeEvent("run_dead", at(1), reason="boom")]
    found = life([*events, LifeEvent("run_scheduled", at(9), at(9), 0, reason="replayed")], now=10)
    assert causes(found) == [("running", 1), ("ended", 8), ("no_worker_asked", 1)]


def test_an_instant_that_seems_to_go_back_does_not_move_the_lateness() -> None:
    """A transaction that waited for another one's commit may have begun before it."""
    found = life([LifeEvent("run_scheduled", at(3), DUE), leased(2), LifeEvent("run_completed", at(1))])
    assert causes(found) == [("not_decided", 2)]
    assert found.lateness_us == 2_000_000


MADE_UP = LifeEvent("run_scheduled", at(7200), at(7380), reason=SPREAD, scheduled_for=DUE)


def test_a_made_up_run_waits_for_its_instant_before_it_is_late() -> None:
    gone = Hindrance("owner_taking_over", at(30), at(7190), "")
    found = life([MADE_UP, leased(7382, due=at(7380))], gone, now=7383)
    assert causes(found) == [
        *[("not_decided", 30), ("owner_taking_over", 7160), ("not_decided", 10), ("catching_up", 180)],
        *[("no_worker_asked", 2), ("running", 1)],
    ]
    assert [found.is_late(each) for each in found.intervals] == [False] * 4 + [True, False]
    assert (found.due_at, found.lateness_us, found.made_up_us) == (at(7380), 2_000_000, 7_380_000_000)


def test_a_made_up_run_that_is_not_due_yet_is_not_late() -> None:
    found = life([MADE_UP], now=7300)
    assert causes(found) == [("not_decided", 7200), ("catching_up", 100)]
    assert (found.lateness_us, found.due_at) == (0, at(7380))
    assert not any(map(found.is_late, found.intervals))


def test_a_run_that_waited_already_when_it_was_put_off_is_told_from_its_first_due_time() -> None:
    found = life([SCHEDULED, MADE_UP, leased(7380, due=at(7380))], now=7381)
    assert causes(found) == [("no_worker_asked", 7200), ("catching_up", 180), ("running", 1)]
    assert (found.lateness_us, found.made_up_us) == (0, 7_380_000_000)


INSTANTS = st.integers(-3_000_000, 30_000_000).map(lambda micros: DUE + timedelta(microseconds=micros))
EVENTS = st.builds(
    LifeEvent,
    st.sampled_from(sorted(WAITING_EVENTS | LEASED_EVENTS | GONE_EVENTS)),
    INSTANTS,
    st.none() | INSTANTS,
    st.integers(1, 5),
    st.sampled_from(["w1", "w2"]),
    st.sampled_from([None, SPREAD]),
    st.none() | INSTANTS,
)
HINDRANCES = st.builds(Hindrance, st.sampled_from(PRIORITY), INSTANTS, st.none() | INSTANTS, st.just("because"))
HISTORIES = st.lists(EVENTS, max_size=8).map(lambda rest: [SCHEDULED, *rest])
MADE_UP_HISTORIES = st.lists(EVENTS, max_size=8).map(lambda rest: [MADE_UP._replace(at=at(3), due_at=at(9)), *rest])


@given(HISTORIES | MADE_UP_HISTORIES, st.lists(HINDRANCES, max_size=6), INSTANTS)
def test_the_intervals_of_any_history_partition_its_line(
    events: list[LifeEvent], hindrances: list[Hindrance], now: datetime
) -> None:
    found = timeline(events, hindrances, now)
    for each, following in pairwise(found.intervals):
        assert each.end == following.start
        assert each[2:] != following[2:] or each.end in (found.first_leased_at, found.due_at)
    assert all(each.start < each.end for each in found.intervals)
    if found.intervals and found.lateness_us:
        spread = any(event.is_spread for event in events)
        assert found.due_at is not None
        assert found.intervals[0].start == found.due_at or (spread and found.intervals[0].start < found.due_at)
    late = sum(each.micros for each in found.intervals if found.is_late(each))
    assert late == found.lateness_us


@given(HISTORIES.filter(lambda events: not any(event.is_spread for event in events)), st.lists(HINDRANCES), INSTANTS)
def test_the_waits_before_the_first_lease_sum_up_to_the_lateness_of_any_history(
    events: list[LifeEvent], hindrances: list[Hindrance], now: datetime
) -> None:
    found = timeline(events, hindrances, now)
    lease = next((event for event in events if event.type == "run_leased"), None)
    if lease is None or lease.due_at is None:
        return
    lateness = max(lease.at - lease.due_at, timedelta())
    waits = [each for each in found.intervals if each.end <= lease.at]
    assert found.lateness_us == lateness // timedelta(microseconds=1)
    assert sum((each.end - each.start for each in waits), timedelta()) == lateness
    assert all(each.cause != "running" for each in waits)
