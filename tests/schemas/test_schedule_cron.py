"""The cron dialect: what is read, what is refused, and where croniter had to be corrected."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from time import thread_time

import pytest
from croniter.croniter import EXPRESSIONS  # type: ignore[attr-defined]

from schemas.cron_fields import parse_fields
from schemas.errors import InvalidSchedule
from schemas.schedule import Cron, fires_between, next_fire, parse_schedule, previous_fire

START = datetime(2024, 1, 1, tzinfo=UTC)
END = datetime(2034, 1, 1, tzinfo=UTC)


def first_days(expr: str, count: int) -> list[str]:
    fires = fires_between(Cron(expr=expr), START, END, job_id="job", created_at=START)
    return [fire.date().isoformat() for fire in islice(fires, count)]


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("7-7", {7}),
        ("59/15", {59}),
        ("50-10/15", {50, 5}),
        ("58-4/3", {58, 1, 4}),
        ("0-59", set(range(60))),
        ("*/60", {0}),
        ("5,5,05", {5}),
        ("*/30,10-12", {0, 30, 10, 11, 12}),
        ("10-20/60", {10}),
    ],
)
def test_minutes_expand_to(text: str, minutes: set[int]) -> None:
    assert parse_fields(f"{text} * * * *", "").minutes == minutes


@pytest.mark.parametrize(
    ("text", "weekdays"),
    [
        ("7", {0}),
        ("7-7", {0}),
        ("0-7", {0, 1, 2, 3, 4, 5, 6}),
        ("1-7", {0, 1, 2, 3, 4, 5, 6}),
        ("1-7/2", {1, 3, 5, 0}),
        ("FRI-7", {5, 6, 0}),
        ("7-2", {0, 1, 2}),
        ("sat-Sun", {6, 0}),
        ("FRI-MON/2", {5, 0}),
        ("2/3", {2, 5}),
    ],
)
def test_weekdays_expand_to(text: str, weekdays: set[int]) -> None:
    assert parse_fields(f"* * * * {text}", "").days.weekdays == weekdays


def test_wrapping_months_count_their_step_through() -> None:
    assert parse_fields("0 0 1 NOV-APR/2 *", "").days.months == {11, 1, 3}


def test_day_step_that_covers_all_days_is_still_a_restriction() -> None:
    assert first_days("0 0 */1 * MON", 3) == ["2024-01-02", "2024-01-03", "2024-01-04"]


@pytest.mark.parametrize("text", ["*,5", "5,*", "*/2,*", "0-6,*,*"])
def test_a_star_in_a_list_is_all_of_it_and_still_a_restriction_of_days(text: str) -> None:
    fields = parse_fields(f"{text} {text} {text.replace('0', '1')} {text.replace('0', '1')} {text}", "job")
    assert (len(fields.minutes), len(fields.hours), len(fields.days.days)) == (60, 24, 31)
    assert (len(fields.days.months), len(fields.days.weekdays)) == (12, 7)
    assert fields.days.by_day
    assert fields.days.by_weekday


def test_question_mark_leaves_the_other_day_field_alone() -> None:
    assert first_days("0 0 ? * FRI", 2) == ["2024-01-05", "2024-01-12"]
    assert first_days("0 0 13 * ?", 2) == ["2024-01-13", "2024-02-13"]


def test_last_day_beside_other_days_and_weekdays_means_or() -> None:
    assert first_days("0 0 15,L 2 MON#1", 3) == ["2024-02-05", "2024-02-15", "2024-02-29"]


def test_range_to_the_last_day_ends_with_the_month() -> None:
    assert first_days("0 0 28-L 2 *", 3) == ["2024-02-28", "2024-02-29", "2025-02-28"]


def test_plain_weekdays_and_nth_weekdays_mix() -> None:
    assert first_days("0 0 * * MON,FRI#2", 4) == ["2024-01-08", "2024-01-12", "2024-01-15", "2024-01-22"]


def test_last_weekday_of_the_month_by_number_or_name() -> None:
    assert first_days("0 0 * * L5", 3) == ["2024-01-26", "2024-02-23", "2024-03-29"]
    assert first_days("0 0 * * LFRI", 3) == first_days("0 0 * * L5", 3)


def test_expression_may_be_padded_and_separated_by_tabs() -> None:
    assert parse_fields(" 0\t 9 * * * ", "") == parse_fields("0 9 * * *", "")


@pytest.mark.parametrize("job_id", ["job-1", "0190a6c8-0000-7000-8000-000000000001"])
def test_hash_is_the_job_s_own_and_stays_in_its_range(job_id: str) -> None:
    fields = parse_fields("H(0-5)/10 H(3-3) H H H", job_id)
    assert fields.minutes <= set(range(6))
    assert len(fields.minutes) == 1
    assert fields.hours == {3}
    assert parse_fields("H(0-5)/10 H(3-3) H H H", job_id) == fields


def test_hashed_day_of_month_exists_in_every_month() -> None:
    for number in range(500):
        assert parse_fields("H H H * *", f"job-{number}").days.days <= set(range(1, 29))


def test_hashed_minutes_of_many_jobs_spread_over_the_hour() -> None:
    minutes = [next(iter(parse_fields("H * * * *", f"job-{number}").minutes)) for number in range(6000)]
    assert max(minutes.count(minute) for minute in range(60)) < 200


def test_hash_with_a_long_step_is_one_minute_and_not_always_the_first() -> None:
    minutes = [parse_fields("H/60 * * * *", f"job-{number}").minutes for number in range(200)]
    assert all(len(minute) == 1 for minute in minutes)
    assert len(set(minutes)) > 30


@pytest.mark.parametrize(
    ("expr", "part"),
    [
        ("60 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of month"),
        ("* * * 0 *", "month"),
        ("* * * FOO *", "month"),
        ("* * * * 8", "day of week"),
        ("* * * * monday", "MON"),
        ("* * * * JAN", "day of week"),
        ("MON * * * *", "minute"),
        ("* * * * 5L", "L5"),
        ("* * * * L", "SAT"),
        ("* * * * FRI#0", "day of week"),
        ("* * * * FRI#6", "day of week"),
        ("* * * * FRI#", "day of week"),
        ("* * 5#2 * *", "day of month"),
        ("* * 15W * *", "nearest weekday"),
        ("* * L-3 * *", "day of month"),
        ("* * L/2 * *", "day of month"),
        ("L * * * *", "minute"),
        ("? * * * *", "minute"),
        ("* ? * * *", "hour"),
        ("* * * ? *", "month"),
        ("* * ?/2 * *", "day of month"),
        ("*-5 * * * *", "minute"),
        ("-5 * * * *", "minute"),
        ("1-2-3 * * * *", "minute"),
        ("1/2/3 * * * *", "minute"),
        ("1, 2 * * *", "comma"),
        ("1,,2 * * * *", "comma"),
        (",1 * * * *", "comma"),
        ("*/ * * * *", "minute"),
        ("*/-5 * * * *", "minute"),
        ("*/x * * * *", "minute"),
        ("*/90 * * * *", "everySeconds"),
        ("5/0 * * * *", "step"),
        ("H(0-99) * * * *", "out of range"),
        ("H(9-3) * * * *", "wrong way"),
        ("H/0 * * * *", "step"),
        ("H-5 * * * *", "minute"),
        ("R(1-5) * * * *", "R would be"),
        ("~ * * * *", "minute"),
        ("* * * *", "5 fields"),
        ("0 0 12 * * *", "everySeconds"),
        ("0 0 12 * * ? 2024", "5 fields"),
        ("TZ=UTC 0 0 * * *", "zone"),
        ("@reboot", "runAt"),
        ("@quarterly", "0 0 1 */3 *"),
        ("@daily x", "unknown alias"),
        ("@", "unknown alias"),
        ("every 5 minutes at 3", "minute"),
        ("1\x00 * * * *", "control"),
        ("0 0 * * *\r", "line break"),
        ("0 0 * * *\x0b", "control"),
        ("²  * * * *", "ASCII"),
        ("0 0 30 2 *", "never fire"),
        ("0 0 31 2,4,6,9,11 ?", "never fire"),
        ("1" * 240 + " * * * *", "out of range"),
        ("*/" + "9" * 200 + " * * * *", "step"),
    ],
)
def test_refusal_says_what_is_wrong_or_what_to_write(expr: str, part: str) -> None:
    began = thread_time()
    with pytest.raises(InvalidSchedule) as refusal:
        parse_schedule({"cron": expr}, job_id="job")
    assert part in refusal.value.message
    assert refusal.value.field == "cron"
    assert thread_time() - began < 0.1


def test_hashing_a_million_jobs_leaves_nothing_behind_in_croniter() -> None:
    for number in range(100):
        parse_fields("H H(0-7) * * *", f"job-{number}")
    assert EXPRESSIONS == {}


def test_next_fire_across_the_year_2100_knows_that_it_is_no_leap_year() -> None:
    after = datetime(2096, 2, 29, 12, tzinfo=UTC)
    fire = next_fire(Cron(expr="0 0 29 2 *"), after, job_id="job", created_at=START)
    assert fire == datetime(2104, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize("expr", ["* * * * *", "0 0 29 2 *", "0 12 * * *"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Kiritimati"])
def test_nothing_fires_before_1900_or_from_2500_on(expr: str, zone: str) -> None:
    schedule = Cron(expr=expr, zone=zone)
    begin, end = datetime(1900, 1, 1, tzinfo=UTC), datetime(2500, 1, 1, tzinfo=UTC)
    first = next_fire(schedule, datetime.min.replace(tzinfo=UTC), job_id="job", created_at=START)
    last = previous_fire(schedule, datetime.max.replace(tzinfo=UTC), job_id="job", created_at=START)
    assert first is not None
    assert last is not None
    assert begin < first < last < end
    assert previous_fire(schedule, first, job_id="job", created_at=START) in (None, begin)
    assert next_fire(schedule, last, job_id="job", created_at=START) is None
    assert next_fire(schedule, datetime.max.replace(tzinfo=UTC), job_id="job", created_at=START) is None
    assert previous_fire(schedule, datetime.min.replace(tzinfo=UTC), job_id="job", created_at=START) is None
