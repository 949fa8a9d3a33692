"""Whether a tenant's quota of leases kept a run waiting, told by how many leases the tenant had."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from api.quota_waits import SLICES_MAX, slices_of, used_up
from ledger.tenant_limits import Quota
from schemas.waits import LifeEvent, Timeline, timeline

DUE = datetime(2026, 3, 1, 9, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return DUE + timedelta(seconds=seconds)


def waiting(for_s: float) -> Timeline:
    """Of a run that nobody has leased for so long."""
    return timeline([LifeEvent("run_scheduled", at(-60), due_at=DUE)], [], at(for_s))


def spans(rate_per_s: float, for_s: float, leased: list[int], *, set_s: float = -3600) -> list[float]:
    """The bounds of the times in which the quota was used up, in seconds since the run was due."""
    quota = Quota(rate_per_s, at(set_s))
    slices = slices_of(quota, waiting(for_s))
    assert slices is not None
    assert slices.count == len(leased)
    found = used_up(quota, slices, dict(enumerate(leased)))
    return [(bound - DUE).total_seconds() for each in found for bound in (each.since, each.until) if bound]


def test_where_a_tenant_leased_all_it_may_its_quota_is_the_cause() -> None:
    assert spans(100, 8, [200, 200, 10, 190]) == [0, 4, 6, 8]


def test_a_short_wait_is_judged_by_the_seconds_before_its_end() -> None:
    assert spans(100, 0.5, [200]) == [-1.5, 0.5]
    assert spans(100, 0.5, [100]) == []


def test_of_a_small_quota_slices_are_long_enough_for_some_leases() -> None:
    assert spans(0.5, 40, [10, 3]) == [0, 20]


def test_nothing_is_said_of_the_time_before_the_quota_was_set() -> None:
    assert spans(100, 4, [200, 200], set_s=1) == [2, 4]


def test_a_long_wait_has_a_bounded_number_of_slices() -> None:
    assert spans(1, 10 * 86_400, [0] * SLICES_MAX) == []


def test_a_run_that_was_not_there_to_be_leased_is_no_matter_of_quotas() -> None:
    assert slices_of(Quota(1, DUE), waiting(-10)) is None


def test_the_cause_is_named_with_the_quota() -> None:
    quota = Quota(2.5, at(-60))
    life = [LifeEvent("run_scheduled", at(-60), due_at=DUE), LifeEvent("run_leased", at(8), DUE, 1, "w")]
    slices = slices_of(quota, timeline(life, [], at(9)))
    assert slices is not None
    found = timeline(life, used_up(quota, slices, {0: 10, 1: 10}), at(9))
    first = found.intervals[0]
    assert (first.cause, first.micros) == ("lease_quota", 8_000_000)
    assert first.sentence == "its tenant's quota of 2.5 leases a second was used up"
