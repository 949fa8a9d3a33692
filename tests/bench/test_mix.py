"""The mix is the peak of the real schedules, somewhere else in time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from bench.mix import Peak, find_peak, moved, scaled
from fencepost.forecast.firings import fire_seconds
from fencepost.job_spec import schedule_fields
from fencepost.schedules.schedule import fires_between, parse_schedule

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def peak() -> Peak:
    return find_peak()


def test_the_peak_is_a_top_of_the_hour(peak: Peak) -> None:
    assert (peak.at.minute, peak.at.second) == (0, 0)


@pytest.mark.parametrize("minute", [0, 17, 59])
def test_every_moved_schedule_fires_first_at_the_moment_and_then_as_often_in_an_hour(peak: Peak, minute: int) -> None:
    moment = datetime(2026, 11, 30, 14, minute, tzinfo=UTC)
    for firing, _ in peak.firings:
        schedule = parse_schedule(schedule_fields(moved(firing, peak.at, moment)), job_id=None)
        fires = list(fires_between(schedule, moment - 2 * HOUR, moment + HOUR, job_id="", created_at=moment))
        assert fires[0] == moment, firing.label
        if firing.cron is not None and firing.cron.every_hour:
            real = fire_seconds(firing, int((peak.at + HOUR).timestamp()))
            assert len(fires) - 1 == sum(second > peak.at.timestamp() for second in real), firing.label


def test_each_schedule_keeps_its_share_of_the_peak(peak: Peak) -> None:
    runs = 3 * sum(jobs for _, jobs in peak.firings) // 2
    found = Counter(scaled(peak, runs))
    assert found.total() == runs
    assert [firing.label for firing, jobs in peak.firings if abs(found[firing] - 1.5 * jobs) > 1] == []
