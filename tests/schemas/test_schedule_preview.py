"""What a preview shows: the fires that next_fire finds, each with the clock it is read on and what is odd about it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import InvalidSchedule
from schemas.schedule import due_at, fires_between, parse_schedule
from schemas.schedule_preview import ComingFire, SchedulePreview, instant_from
from schemas.zones import zone_names

JOB_ID = "0190a6c8-0000-7000-8000-000000000001"
DAILY_IN_THE_GAP_HOUR = {"cron": "30 2 * * *", "zone": "Europe/Paris"}


def coming(form: dict[str, Any], after: str, count: int = 1) -> list[ComingFire]:
    return list(SchedulePreview(form, job_id=JOB_ID).coming(instant_from(after), count))


def test_fires_are_those_of_the_schedule_strictly_after_the_instant() -> None:
    form = {"cron": "0 9 * * MON-FRI", "zone": "America/New_York", "excludeDates": ["2024-03-12"]}
    after, end = datetime(2024, 3, 8, 14, tzinfo=UTC), datetime(2024, 3, 14, 14, tzinfo=UTC)
    walked = list(fires_between(parse_schedule(form, job_id=JOB_ID), after, end, job_id=JOB_ID, created_at=after))
    assert [fire.scheduled_for for fire in coming(form, "2024-03-08T09:00:00-05:00", 3)] == walked[:3]
    assert walked[0] == datetime(2024, 3, 11, 13, tzinfo=UTC)
    assert datetime(2024, 3, 12, 13, tzinfo=UTC) not in walked


def test_a_fire_in_a_gap_tells_what_it_was_meant_for() -> None:
    before, moved = coming(DAILY_IN_THE_GAP_HOUR, "2026-03-27T12:00:00Z", 2)
    assert (before.mark, before.skipped) == (None, None)
    assert (moved.mark, moved.skipped) == ("gap", datetime(2026, 3, 29, 2, 30))
    assert moved.local.isoformat() == "2026-03-29T03:00:00+02:00"
    assert moved.scheduled_for == datetime(2026, 3, 29, 1, tzinfo=UTC)


def test_a_gap_of_a_whole_day_tells_the_day_that_was_not() -> None:
    (moved,) = coming({"cron": "30 9 * * *", "zone": "Pacific/Apia"}, "2011-12-30T00:00:00Z")
    assert (moved.local.date().isoformat(), moved.skipped) == ("2011-12-31", datetime(2011, 12, 30, 9, 30))


def test_of_several_fires_in_one_gap_the_first_is_told() -> None:
    (moved,) = coming({"cron": "10-50/20 2 * * *", "zone": "Europe/Paris"}, "2026-03-28T12:00:00Z")
    assert moved.skipped == datetime(2026, 3, 29, 2, 10)


def test_a_reading_that_occurs_twice_is_marked_at_each_fire() -> None:
    clock_like = SchedulePreview({"cron": "30 2 * * *", "zone": "Europe/Paris"})
    by_the_hour = SchedulePreview({"cron": "30 * * * *", "zone": "Europe/Paris"})
    assert (clock_like.every_hour, by_the_hour.every_hour) == (False, True)
    midnight = instant_from("2026-10-25T00:00:00Z")
    assert [fire.mark for fire in clock_like.coming(midnight, 2)] == ["fold", None]
    assert [(fire.mark, fire.local.fold) for fire in by_the_hour.coming(midnight, 3)] == [
        ("fold", 0),
        ("fold", 1),
        (None, 0),
    ]


@pytest.mark.parametrize(
    ("local", "mark", "fire"),
    [
        ("2026-03-29T02:30", "gap", "2026-03-29T03:00:00+02:00"),
        ("2026-10-25T02:30", "fold", "2026-10-25T02:30:00+02:00"),
        ("2026-07-01T02:30:00.5", None, "2026-07-01T02:30:00.500000+02:00"),
    ],
)
def test_a_single_local_time_is_marked_as_well(local: str, mark: str | None, fire: str) -> None:
    (one,) = coming({"runAt": local, "zone": "Europe/Paris"}, "2026-01-01T00:00:00Z", 5)
    assert (one.mark, one.local.isoformat(), one.zone) == (mark, fire, "Europe/Paris")
    assert one.skipped == (datetime.fromisoformat(local) if mark == "gap" else None)


def test_a_one_off_that_has_passed_has_no_fire_left() -> None:
    assert coming({"runAt": "2026-01-01T00:00:00Z"}, "2026-01-01T00:00:00Z") == []
    assert len(coming({"runAt": "2026-01-01T00:00:00Z"}, "2025-12-31T23:59:59.999999Z", 2)) == 1


def test_what_counts_from_the_creation_counts_from_the_instant() -> None:
    after = instant_from("2026-01-01T00:00:07Z")
    assert [fire.scheduled_for.second for fire in coming({"everySeconds": 20}, "2026-01-01T00:00:07Z", 2)] == [27, 47]
    (once,) = coming({"delaySeconds": 90}, "2026-01-01T00:00:07Z", 2)
    assert (once.scheduled_for - after).total_seconds() == 90
    assert (once.zone, once.mark) == ("UTC", None)


def test_the_jitter_of_the_job_is_in_due_at() -> None:
    form = {"cron": "0 9 * * *", "jitterSeconds": 600}
    (fire,) = coming(form, "2026-01-01T00:00:00Z")
    assert fire.due_at == due_at(parse_schedule(form, job_id=JOB_ID), fire.scheduled_for, job_id=JOB_ID)
    assert fire.due_at > fire.scheduled_for


@given(st.sampled_from(sorted(zone_names())), st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)))
def test_a_skipped_time_never_exists_and_an_unmarked_one_exists_once(name: str, naive: datetime) -> None:
    """Tried on the fires around a moment, hourly ones and daily ones, of any zone."""
    after = naive.replace(tzinfo=UTC)
    for expr in ("*/20 0-12 * * *", "40 1,2,23 * * *"):
        for fire in SchedulePreview({"cron": expr, "zone": name}).coming(after, 3):
            shown = fire.skipped or fire.local.replace(tzinfo=None, fold=0)
            readings = {shown.replace(tzinfo=fire.local.tzinfo, fold=fold).astimezone(UTC) for fold in (0, 1)}
            again = {
                reading for reading in readings if reading.astimezone(fire.local.tzinfo).replace(tzinfo=None) == shown
            }
            assert len(again) == {"gap": 0, "fold": 2, None: 1}[fire.mark]


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2024-03-10T07:00:00Z", datetime(2024, 3, 10, 7, tzinfo=UTC)),
        ("2024-03-10t07:00:00z", datetime(2024, 3, 10, 7, tzinfo=UTC)),
        ("2024-03-10 02:00-05:00", datetime(2024, 3, 10, 7, tzinfo=UTC)),
        ("2024-03-10T07:00:00.123456789Z", datetime(2024, 3, 10, 7, 0, 0, 123456, tzinfo=UTC)),
    ],
)
def test_an_instant_is_read_as_rfc_3339_has_it(text: str, instant: datetime) -> None:
    assert instant_from(text) == instant


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2024-03-10T07:00:00", "without a zone"),
        ("2024-03-10", "no instant"),
        ("", "no instant"),
        ("now", "no instant"),
        ("٢٠٢٤-03-10T07:00:00Z", "no instant"),
        ("2024-02-30T07:00:00Z", "calendar"),
        ("2024-03-10T07:00:60Z", "calendar"),
        ("2024-03-10T07:00:00+24:00", "calendar"),
        ("0001-01-01T00:00:00+01:00", "calendar"),
        ("1899-12-31T23:59:59Z", "1900"),
        ("2500-01-01T00:00:00Z", "2499"),
    ],
)
def test_what_is_no_instant_is_refused_by_the_name_from(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchedule, match=reason) as refusal:
        instant_from(text)
    assert refusal.value.field == "from"
