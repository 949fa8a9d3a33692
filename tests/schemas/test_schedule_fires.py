"""Fires of every kind of schedule: windows, excluded dates, jitter, one-offs, and odd nights told apart."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from time import thread_time
from uuid import UUID

import pytest

from schemas.schedule import (
    At,
    Cron,
    Delay,
    Every,
    Schedule,
    due_at,
    fire_mark,
    fires_between,
    first_fire,
    next_fire,
    previous_fire,
)

JOB = UUID("0190a6c8-0000-7000-8000-000000000001")
CREATED_AT = datetime(2024, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def fires(schedule: Schedule, start: str, end: str) -> list[datetime]:
    return list(fires_between(schedule, at(start), at(end), job_id=JOB, created_at=CREATED_AT))


def following(schedule: Schedule, after: str) -> datetime | None:
    return next_fire(schedule, at(after), job_id=JOB, created_at=CREATED_AT)


def preceding(schedule: Schedule, before: str) -> datetime | None:
    return previous_fire(schedule, at(before), job_id=JOB, created_at=CREATED_AT)


def test_interval_counts_from_its_anchor_in_both_directions() -> None:
    schedule = Every(every_seconds=300, anchor=at("2024-01-01T00:00:30Z"))
    assert following(schedule, "2024-01-01T00:00:30Z") == at("2024-01-01T00:05:30Z")
    assert following(schedule, "2023-12-31T23:50:00Z") == at("2023-12-31T23:50:30Z")
    assert preceding(schedule, "2024-01-01T00:00:30Z") == at("2023-12-31T23:55:30Z")


def test_interval_without_an_anchor_counts_from_the_creation_and_never_before() -> None:
    schedule = Every(every_seconds=60)
    first = CREATED_AT + timedelta(seconds=60)
    assert first_fire(schedule, job_id=JOB, created_at=CREATED_AT) == first
    assert following(schedule, "2023-01-01T00:00:00Z") == first
    assert previous_fire(schedule, first, job_id=JOB, created_at=CREATED_AT) is None
    assert previous_fire(schedule, first + timedelta(seconds=1), job_id=JOB, created_at=CREATED_AT) == first


def test_interval_keeps_its_real_length_through_clock_changes() -> None:
    schedule = Every(every_seconds=3600, anchor=at("2024-03-10T00:00:00Z"))
    assert len(fires(schedule, "2024-03-10T00:00:00Z", "2024-03-11T00:00:00Z")) == 24


def test_one_offs_fire_once_and_are_over() -> None:
    run_at = at("2024-06-01T00:00:00.5Z")
    assert following(At(run_at), "2024-06-01T00:00:00Z") == run_at
    assert following(At(run_at), "2024-06-01T00:00:00.5Z") is None
    assert preceding(At(run_at), "2024-07-01T00:00:00Z") == run_at
    assert preceding(At(run_at), "2024-06-01T00:00:00.5Z") is None
    assert following(Delay(1.5), "2024-01-01T00:00:00Z") == CREATED_AT + timedelta(seconds=1.5)


def test_one_off_in_the_past_is_still_a_new_job_s_first_fire() -> None:
    past = at("2020-01-01T00:00:00Z")
    assert first_fire(At(past), job_id=JOB, created_at=CREATED_AT) == past
    assert first_fire(Delay(0), job_id=JOB, created_at=CREATED_AT) == CREATED_AT


def test_fires_lie_from_the_start_to_before_the_end() -> None:
    schedule = Cron(expr="0 * * * *", start_at=at("2024-05-01T10:00:00Z"), end_at=at("2024-05-01T12:00:00Z"))
    window = [at("2024-05-01T10:00:00Z"), at("2024-05-01T11:00:00Z")]
    assert fires(schedule, "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z") == window
    assert preceding(schedule, "2025-01-01T00:00:00Z") == window[-1]
    assert preceding(schedule, "2024-05-01T10:00:00Z") is None


def test_interval_within_a_window_keeps_the_phase_of_its_anchor() -> None:
    schedule = Every(every_seconds=600, anchor=at("2024-01-01T00:05:00Z"), start_at=at("2024-05-01T10:00:00Z"))
    assert following(schedule, "2024-04-01T00:00:00Z") == at("2024-05-01T10:05:00Z")


def test_excluded_dates_are_dates_of_the_zone() -> None:
    schedule = Cron(expr="0 22 * * *", zone="America/New_York", exclude_dates=(date(2024, 12, 25),))
    assert fires(schedule, "2024-12-24T12:00:00Z", "2024-12-28T00:00:00Z") == [
        at("2024-12-25T03:00:00Z"),
        at("2024-12-27T03:00:00Z"),
    ]
    assert preceding(schedule, "2024-12-27T00:00:00Z") == at("2024-12-25T03:00:00Z")


def test_a_thousand_excluded_days_of_a_minutely_job_are_passed_quickly() -> None:
    days = tuple(date(2024, 1, 1) + timedelta(days=n) for n in range(1_000))
    end = at("2026-09-27T00:00:00Z")
    for schedule in (
        Cron(expr="* * * * *", exclude_dates=days),
        Every(every_seconds=1, anchor=at("2024-01-01T00:00:00Z"), exclude_dates=days),
    ):
        began = thread_time()
        assert following(schedule, "2024-01-01T00:00:00Z") == end
        assert preceding(schedule, "2026-09-27T00:00:00Z") == (
            at("2023-12-31T23:59:00Z") if isinstance(schedule, Cron) else at("2023-12-31T23:59:59Z")
        )
        assert thread_time() - began < 0.2


def test_excluded_night_on_which_the_clock_falls_back_over_midnight_is_excluded_twice() -> None:
    schedule = Cron(expr="*/30 * * * *", zone="America/St_Johns", exclude_dates=(date(2010, 11, 6),))
    # At 02:31Z the clock goes from 00:01 of the 7th back to 23:01 of the 6th, which lasts until 03:30Z.
    assert fires(schedule, "2010-11-06T02:30:00Z", "2010-11-07T04:30:00Z") == [
        at(f"2010-11-07T{time}Z") for time in ("02:30", "03:30", "04:00", "04:30")
    ]


def test_jitter_is_a_pure_function_of_job_and_nominal_time_within_its_bound() -> None:
    schedule = Cron(expr="0 * * * *", jitter_seconds=120)
    nominal = at("2024-05-01T10:00:00Z")
    due = {due_at(schedule, nominal, job_id=UUID(int=n)) for n in range(500)}
    assert len(due) == 500
    assert nominal <= min(due) < nominal + timedelta(seconds=5)
    assert nominal + timedelta(seconds=115) < max(due) < nominal + timedelta(seconds=120)
    assert due_at(schedule, nominal, job_id=JOB) == due_at(schedule, nominal, job_id=str(JOB))
    elsewhere = nominal.astimezone(timezone(timedelta(hours=5)))
    assert due_at(schedule, elsewhere, job_id=JOB) == due_at(schedule, nominal, job_id=JOB)
    assert due_at(Cron(expr="0 * * * *"), nominal, job_id=JOB) == nominal
    assert due_at(At(nominal), nominal, job_id=JOB) == nominal


def test_jitter_of_a_known_job_never_changes_between_versions() -> None:
    due = due_at(Cron(expr="0 * * * *", jitter_seconds=120), at("2024-05-01T10:00:00Z"), job_id=JOB)
    assert due == at("2024-05-01T10:01:47.006727Z")


@pytest.mark.parametrize(
    ("expr", "zone", "fire", "mark"),
    [
        ("30 2 * * *", "America/New_York", "2024-03-10T07:00:00Z", "gap"),
        ("0 2,3 * * *", "America/New_York", "2024-03-10T07:00:00Z", None),
        ("30 2 * * *", "America/New_York", "2024-03-11T06:30:00Z", None),
        ("30 1 * * *", "America/New_York", "2024-11-03T05:30:00Z", "fold"),
        ("0 2 * * *", "America/New_York", "2024-11-03T07:00:00Z", None),
        ("*/15 * * * *", "America/New_York", "2024-11-03T05:45:00Z", "fold"),
        ("*/15 * * * *", "America/New_York", "2024-11-03T06:45:00Z", "fold"),
        ("*/15 * * * *", "America/New_York", "2024-11-03T07:00:00Z", None),
        ("*/15 * * * *", "America/New_York", "2024-03-10T07:00:00Z", None),
        ("0 9 * * 5", "Pacific/Apia", "2011-12-30T10:00:00Z", "gap"),
    ],
)
def test_odd_fires_are_marked(expr: str, zone: str, fire: str, mark: str | None) -> None:
    assert fire_mark(Cron(expr=expr, zone=zone), at(fire), job_id=JOB) == mark


def test_instants_of_any_offset_come_back_in_utc() -> None:
    fire = next_fire(
        Cron(expr="0 9 * * *", zone="Europe/Paris"),
        at("2024-05-01T08:00:00+05:00"),
        job_id=JOB,
        created_at=CREATED_AT,
    )
    assert fire == at("2024-05-01T07:00:00Z")
    assert fire is not None
    assert fire.tzinfo is UTC


@pytest.mark.parametrize("schedule", [Cron(expr="* * * * *"), Every(every_seconds=5), Delay(1.0)])
def test_naive_instants_are_an_error(schedule: Schedule) -> None:
    naive = CREATED_AT.replace(tzinfo=None)
    with pytest.raises(ValueError, match="aware"):
        next_fire(schedule, naive, job_id=JOB, created_at=CREATED_AT)
    with pytest.raises(ValueError, match="aware"):
        previous_fire(schedule, naive, job_id=JOB, created_at=CREATED_AT)


def test_interval_ends_with_the_era_instead_of_overflowing() -> None:
    schedule = Every(every_seconds=100 * 366 * 86_400, anchor=at("2024-01-01T00:00:00Z"))
    assert following(schedule, "2450-01-01T00:00:00Z") is None
    assert following(Every(every_seconds=1), "9999-12-31T23:59:59Z") is None
