"""The JSON form of schedules: read, refused with field and remedy, and given back."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pytest

from schemas.errors import CommandRejected, InvalidSchedule
from schemas.schedule import At, Cron, Delay, Every, Schedule, parse_schedule, to_json

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
FORMS: list[tuple[dict[str, Any], Schedule]] = [
    ({"cron": "@daily", "zone": "UTC"}, Cron(expr="@daily")),
    (
        {"cron": "0 9 * * MON-FRI", "zone": "America/New_York"},
        Cron(expr="0 9 * * MON-FRI", zone="America/New_York"),
    ),
    ({"everySeconds": 300}, Every(every_seconds=300)),
    (
        {"everySeconds": 300, "anchor": "2026-01-01T00:00:00Z"},
        Every(every_seconds=300, anchor=NEW_YEAR),
    ),
    ({"runAt": "2026-01-01T00:00:00Z"}, At(NEW_YEAR)),
    ({"runAt": "2026-01-01T00:00:00.125000Z"}, At(NEW_YEAR.replace(microsecond=125_000))),
    ({"delaySeconds": 1200.0}, Delay(1200.0)),
    (
        {
            "cron": "0 9 * * *",
            "zone": "Europe/Paris",
            "startAt": "2026-01-01T00:00:00Z",
            "endAt": "2027-01-01T00:00:00Z",
            "excludeDates": ["2026-05-01", "2026-12-25"],
            "jitterSeconds": 30.0,
        },
        Cron(
            expr="0 9 * * *",
            zone="Europe/Paris",
            start_at=NEW_YEAR,
            end_at=NEW_YEAR.replace(year=2027),
            exclude_dates=(date(2026, 5, 1), date(2026, 12, 25)),
            jitter_seconds=30.0,
        ),
    ),
]


@pytest.mark.parametrize(("form", "schedule"), FORMS)
def test_schedule_goes_from_json_and_back(form: dict[str, Any], schedule: Schedule) -> None:
    assert parse_schedule(form, job_id=None) == schedule
    assert to_json(schedule) == form


@pytest.mark.parametrize(("form", "schedule"), FORMS)
def test_schedule_survives_storage_as_a_tagged_union(form: dict[str, Any], schedule: Schedule) -> None:
    stored = msgspec.msgpack.encode(parse_schedule(form, job_id=None))
    assert msgspec.msgpack.decode(stored, type=Schedule) == schedule


@pytest.mark.parametrize(
    ("form", "same"),
    [
        ({"cron": "0 9 * * *"}, {"cron": "0 9 * * *", "zone": "UTC"}),
        ({"cron": "0 9 * * *", "zone": None, "excludeDates": []}, {"cron": "0 9 * * *", "zone": "UTC"}),
        ({"cron": "  0 9 * * * "}, {"cron": "0 9 * * *", "zone": "UTC"}),
        ({"runAt": "2026-01-01T02:00+02:00"}, {"runAt": "2026-01-01T00:00:00Z"}),
        ({"runAt": NEW_YEAR}, {"runAt": "2026-01-01T00:00:00Z"}),
        ({"runAt": "2026-07-01T09:00:00.5", "zone": "Europe/Paris"}, {"runAt": "2026-07-01T07:00:00.500000Z"}),
        ({"runAt": "2024-03-10T02:30:00.5", "zone": "America/New_York"}, {"runAt": "2024-03-10T07:00:00Z"}),
        ({"delaySeconds": 0}, {"delaySeconds": 0.0}),
    ],
)
def test_other_spellings_mean_the_same(form: dict[str, Any], same: dict[str, Any]) -> None:
    assert to_json(parse_schedule(form, job_id=None)) == same


@pytest.mark.parametrize(
    ("form", "field", "part"),
    [
        ({}, "schedule", "exactly one of cron, everySeconds, runAt, delaySeconds"),
        ({"cron": "* * * * *", "everySeconds": 5}, "everySeconds", "cron and everySeconds"),
        ("0 9 * * *", "schedule", "object"),
        ({"cron": 5}, "cron", "string"),
        ({"cron": "* * * * *", "zone": 5}, "zone", "string"),
        ({"cron": "* * * * *", "zone": "europe/paris"}, "zone", "did you mean Europe/Paris?"),
        ({"cron": "* * * * *", "zome": "UTC"}, "zome", "did you mean zone?"),
        ({"cron": "* * * * *", "anchor": "2026-01-01T00:00:00Z"}, "anchor", "no such field"),
        ({"everySeconds": 5, "zone": "UTC"}, "zone", "no such field"),
        ({"runAt": "2026-01-01T00:00:00Z", "jitterSeconds": 5}, "jitterSeconds", "no such field"),
        ({"delaySeconds": 5, "startAt": "2026-01-01T00:00:00Z"}, "startAt", "no such field"),
        ({"everySeconds": True}, "everySeconds", "whole number"),
        ({"everySeconds": "5"}, "everySeconds", "whole number"),
        ({"everySeconds": 1.5}, "everySeconds", "whole number"),
        ({"everySeconds": 10**12}, "everySeconds", "whole number"),
        ({"everySeconds": 60, "jitterSeconds": 60}, "jitterSeconds", "shorter than everySeconds"),
        ({"everySeconds": 60, "anchor": "soon"}, "anchor", "instant"),
        ({"runAt": "2026-01-01T00:00:00"}, "runAt", "zone beside it"),
        ({"runAt": "2026-01-01"}, "runAt", "instant"),
        ({"runAt": 1767225600}, "runAt", "instant"),
        ({"runAt": "2026-02-30T00:00:00Z"}, "runAt", "calendar"),
        ({"runAt": "2026-01-01T24:00:00Z"}, "runAt", "calendar"),
        ({"runAt": "2026-01-01T00:00:60Z"}, "runAt", "calendar"),
        ({"runAt": "2026-01-01T00:00:00+25:00"}, "runAt", "calendar"),
        ({"runAt": "0001-01-01T00:00:00+10:00"}, "runAt", "years 1970 to 2499"),
        ({"runAt": "2500-01-01T00:00:00Z"}, "runAt", "years 1970 to 2499"),
        ({"runAt": "٢026-01-01T00:00:00Z"}, "runAt", "instant"),
        ({"runAt": "2026-01-01T00:00:00Z", "zone": "Europe/Paris"}, "runAt", "local time"),
        ({"runAt": "2026-01-01T00:00", "zone": "Nowhere"}, "zone", "unknown time zone"),
        ({"runAt": "9999-12-31T23:59", "zone": "America/New_York"}, "runAt", "years 1970 to 2499"),
        ({"runAt": datetime(2026, 1, 1)}, "runAt", "without a zone"),
        ({"delaySeconds": -1}, "delaySeconds", "number of seconds"),
        ({"delaySeconds": float("nan")}, "delaySeconds", "number of seconds"),
        ({"delaySeconds": "5"}, "delaySeconds", "number of seconds"),
        ({"cron": "@daily", "jitterSeconds": 90_000}, "jitterSeconds", "number of seconds"),
        ({"cron": "@daily", "excludeDates": "2026-01-01"}, "excludeDates", "list"),
        ({"cron": "@daily", "excludeDates": ["2026-13-01"]}, "excludeDates", "calendar"),
        ({"cron": "@daily", "excludeDates": ["25.12.2026"]}, "excludeDates", "write 2026-12-25"),
        ({"cron": "@daily", "excludeDates": ["2026-01-01"] * 1001}, "excludeDates", "at most 1000"),
        (
            {"cron": "@daily", "startAt": "2026-01-02T00:00:00Z", "endAt": "2026-01-02T00:00:00Z"},
            "endAt",
            "later than startAt",
        ),
        (
            {"cron": "0 0 29 2 *", "startAt": "2025-01-01T00:00:00Z", "endAt": "2028-01-01T00:00:00Z"},
            "endAt",
            "never fire",
        ),
    ],
)
def test_refusal_names_the_field_and_the_remedy(form: Any, field: str, part: str) -> None:
    with pytest.raises(InvalidSchedule) as refusal:
        parse_schedule(form, job_id=None)
    assert refusal.value.field == field
    assert part in refusal.value.message
    assert isinstance(refusal.value, CommandRejected)
