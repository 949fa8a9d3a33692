"""The nights on which clocks are changed, told as the zone rule has them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from fencepost.forecast.clock_changes import ClockChange
from fencepost.forecast.forecast import make_forecast
from fencepost.forecast.schedule_set import ScheduledJob, ScheduleSet
from fencepost.schedules.schedule import fire_mark, fires_between, parse_schedule

FORWARD, BACK = datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)
HALF_A_DAY = timedelta(hours=12)


def changes_around(at: datetime, *crons: str, zone: str = "Europe/Berlin") -> list[ClockChange]:
    found = ScheduleSet(at - HALF_A_DAY, at + HALF_A_DAY)
    for number, cron in enumerate(crons):
        form = json.dumps({"cron": cron, "zone": zone}).encode()
        found.add(ScheduledJob(str(UUID(int=number)), "mail", form, found.start))
    return make_forecast(found, observed={}).clock_changes


def test_a_run_whose_minute_does_not_exist_is_moved() -> None:
    [change] = changes_around(FORWARD, "30 2 * * *", "15 4 * * *", "* * * * *")
    assert (change.zone, change.at, change.shift_seconds) == ("Europe/Berlin", FORWARD, 3_600)
    assert (change.local_from, change.local_to) == (datetime(2026, 3, 29, 2), datetime(2026, 3, 29, 3))
    assert (change.moved, change.merged, change.once, change.jobs) == (1, 0, 0, 2)


def test_minutes_that_come_together_at_the_end_of_a_gap_are_one_run() -> None:
    [change] = changes_around(FORWARD, "0,20,40 1-3 * * *")
    assert (change.moved, change.merged) == (1, 3)  # 02:00, 02:20, 02:40 and 03:00 itself


def test_a_run_whose_minute_is_read_twice_takes_the_first() -> None:
    [change] = changes_around(BACK, "30 2 * * *", "0 2 * * *", "0 3 * * *", "*/10 * * * *")
    assert (change.shift_seconds, change.once, change.moved, change.jobs) == (-3_600, 2, 0, 3)


@pytest.mark.parametrize(
    ("at", "zone"),
    [
        (FORWARD, "Europe/Berlin"),
        (BACK, "Europe/Berlin"),
        (datetime(2026, 4, 4, 15, tzinfo=UTC), "Australia/Lord_Howe"),  # by half an hour
        (datetime(2026, 10, 3, 15, 30, tzinfo=UTC), "Australia/Lord_Howe"),
        (datetime(2026, 3, 8, 5, tzinfo=UTC), "America/Havana"),  # at midnight
    ],
)
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/7 1-3 * * *", "0,15 0-2 * * *", "59 1,2 * * *", "0 3 * * *"])
def test_what_is_told_is_what_the_marks_of_the_fires_say(at: datetime, zone: str, cron: str) -> None:
    [change] = changes_around(at, cron, zone=zone)
    schedule = parse_schedule({"cron": cron, "zone": zone}, job_id="")
    start, end = change.at - HALF_A_DAY, change.at + HALF_A_DAY
    fires = list(fires_between(schedule, start, end, job_id="", created_at=start))
    marks = [fire_mark(schedule, fire, job_id="") for fire in fires]
    assert change.once == marks.count("fold")
    if change.shift_seconds > 0:
        gap = [fire for fire in fires if fire == change.at]
        assert change.moved <= len(gap) <= 1
        utc = parse_schedule({"cron": cron, "zone": "UTC"}, job_id="")
        local = [instant + timedelta(seconds=shift) for instant, shift in _readings(start, end, change)]
        readings = list(fires_between(utc, local[0], local[1], job_id="", created_at=local[0]))
        assert change.merged == len(readings) - len(fires)


def _readings(start: datetime, end: datetime, change: ClockChange) -> list[tuple[datetime, int]]:
    """The horizon's ends and the zone's offsets there."""
    before = (change.local_from.replace(tzinfo=UTC) - change.at) // timedelta(seconds=1)
    return [(start, before), (end, before + change.shift_seconds)]


def test_a_zone_in_which_nothing_changes_is_not_told() -> None:
    assert changes_around(FORWARD, "30 2 * * *", zone="Asia/Kathmandu") == []
    assert changes_around(FORWARD, "* * * * *") == []
