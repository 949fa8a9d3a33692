"""Counting fires is stepping through them, only faster: for every kind of schedule, zone and night."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import InvalidSchedule
from schemas.fire_counts import count_fires
from schemas.schedule import Cron, Every, fires_between, parse_schedule

CREATED_AT = datetime(2019, 3, 5, 1, 2, 3, 456_789, tzinfo=UTC)
CRONS = ["* * * * *", "*/7 * * * *", "30 2 * * *", "0,30 1-3 * * *", "15 */2 * * SUN", "0 0 29 2 *", "*/20 0 L * *"]
ZONES = [
    "UTC", "America/New_York", "Europe/Lisbon", "Australia/Lord_Howe", "America/Havana", "America/Santiago",
    "Africa/Casablanca", "Pacific/Apia", "Asia/Kathmandu", "Antarctica/Troll",
]  # fmt: skip

instants = st.datetimes(datetime(2009, 1, 1), datetime(2026, 1, 1), timezones=st.just(UTC))
days = st.dates(datetime(2009, 1, 1).date(), datetime(2026, 1, 1).date())


@st.composite
def schedules(draw: st.DrawFn, start: datetime) -> dict[str, Any]:
    base: dict[str, Any] = draw(
        st.one_of(
            st.builds(lambda cron, zone: {"cron": cron, "zone": zone}, st.sampled_from(CRONS), st.sampled_from(ZONES)),
            st.builds(lambda every: {"everySeconds": every}, st.sampled_from([61, 600, 3600, 100_000])),
            st.builds(
                lambda every, anchor: {"everySeconds": every, "anchor": anchor.isoformat()},
                st.sampled_from([61, 600, 3600]),
                instants,
            ),
        )
    )
    near = st.integers(-3, 12).map(lambda day: (start + timedelta(days=day)).date().isoformat())
    if draw(st.booleans()):
        base["excludeDates"] = draw(st.lists(near, max_size=4))
    if draw(st.booleans()):
        base["startAt"] = (start + timedelta(hours=draw(st.integers(-50, 100)))).isoformat()
    if draw(st.booleans()):
        base["endAt"] = (start + timedelta(hours=draw(st.integers(101, 200)))).isoformat()
    return base


@st.composite
def spans(draw: st.DrawFn) -> tuple[Cron | Every, datetime, datetime]:
    # Half of them near the nights on which most of these zones change their clocks.
    start = draw(instants)
    if draw(st.booleans()):
        start = datetime(start.year, draw(st.sampled_from([3, 4, 10, 11])), 1, tzinfo=UTC) + timedelta(
            days=draw(st.integers(-2, 31)), minutes=start.minute, microseconds=start.microsecond
        )
    schedule = parse_schedule({"cron": "* * * * *"}, job_id="job")
    with suppress(InvalidSchedule):  # nothing fires in its window
        schedule = parse_schedule(draw(schedules(start)), job_id="job")
    assert isinstance(schedule, Cron | Every)
    return schedule, start, start + draw(st.timedeltas(timedelta(0), timedelta(days=5)))


@settings(max_examples=200, deadline=None)
@given(spans())
def test_the_count_is_that_of_stepping_through_the_fires(span: tuple[Cron | Every, datetime, datetime]) -> None:
    schedule, after, until = span
    stepped = len(list(fires_between(schedule, after, until, job_id="job", created_at=CREATED_AT)))
    assert count_fires(schedule, after, until, job_id="job", created_at=CREATED_AT) == stepped


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("cron", CRONS[2:])
def test_the_count_over_thirteen_months_of_nights_is_right(cron: str, zone: str) -> None:
    schedule = parse_schedule({"cron": cron, "zone": zone, "excludeDates": ["2011-11-06", "2011-12-30"]}, job_id="job")
    assert isinstance(schedule, Cron | Every)
    after = datetime(2010, 12, 1, 7, 30, 15, tzinfo=UTC)
    until = after + timedelta(days=400)
    stepped = len(list(fires_between(schedule, after, until, job_id="job", created_at=CREATED_AT)))
    assert count_fires(schedule, after, until, job_id="job", created_at=CREATED_AT) == stepped
