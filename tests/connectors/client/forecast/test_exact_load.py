"""A forecast is exact: it counts what walking through every job's occurrences one by one would count."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.declarations.occurrences import coming_occurrences
from fencepost.forecast import forecast as forecasts
from fencepost.forecast.forecast import Forecast, make_forecast
from fencepost.forecast.schedule_set import ScheduledJob, ScheduleSet
from fencepost.schedules.errors import InvalidSchedule
from fencepost.schedules.schedule import Recurring, due_at, first_fire, next_fire, parse_schedule

START = datetime(2026, 10, 24, 22, 0, 30, tzinfo=UTC)  # the night after, clocks are put back in Europe
END = START + timedelta(hours=9)
CRONS = [
    "* * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "0,30 1-3 * * *",
    "H H * * *",
    "H/20 * * * *",
    "0 1,2 * * SUN",
    "@hourly",
]
ZONES = ["UTC", "Europe/Lisbon", "Europe/Berlin", "Asia/Kathmandu"]

around = st.integers(-3_600, 12 * 3_600).map(lambda seconds: START + timedelta(seconds=seconds))
precise = st.builds(lambda at, micros: at + timedelta(microseconds=micros), around, st.sampled_from([0, 1, 999_999]))


@st.composite
def schedules(draw: st.DrawFn) -> dict[str, Any]:
    form: dict[str, Any] = draw(
        st.one_of(
            st.builds(lambda cron, zone: {"cron": cron, "zone": zone}, st.sampled_from(CRONS), st.sampled_from(ZONES)),
            st.builds(lambda every: {"everySeconds": every}, st.sampled_from([61, 600, 3_600])),
            st.builds(lambda every, at: {"everySeconds": every, "anchor": at.isoformat()}, st.just(90), precise),
            st.builds(lambda at: {"runAt": at.isoformat()}, precise),
        )
    )
    if "runAt" in form:
        return form
    if draw(st.booleans()):
        form["jitterSeconds"] = draw(st.sampled_from([0.5, 45]))
    if draw(st.booleans()):
        form["excludeDates"] = [date(2026, 10, 25).isoformat()]
    if draw(st.booleans()):
        form["startAt"] = draw(precise).isoformat()
    return form


@st.composite
def live_jobs(draw: st.DrawFn) -> ScheduledJob | None:
    """A job with its cursor: its next occurrence, one before the horizon, or (after an edit) a later one."""
    job_id, form = draw(st.uuids()), draw(schedules())
    created_at = START - timedelta(hours=2, microseconds=draw(st.sampled_from([0, 1, 500_000])))
    try:
        schedule = parse_schedule(form, job_id=job_id)
    except InvalidSchedule:
        return None
    if isinstance(schedule, Recurring):
        seen = START - timedelta(minutes=draw(st.sampled_from([0, 0, 0, 30, -45])))
        cursor = next_fire(schedule, seen, job_id=job_id, created_at=created_at)
    else:
        cursor = first_fire(schedule, job_id=job_id, created_at=created_at)
    if cursor is None:
        return None
    return ScheduledJob(
        str(job_id), draw(st.sampled_from(["mail", "sms"])), json.dumps(form).encode(), created_at, cursor
    )


def walked(job: ScheduledJob) -> Counter[int]:
    """By second, as the server would decide it from the cursor on."""
    job_id = UUID(job.job_id)
    schedule = parse_schedule(json.loads(job.schedule), job_id=job_id)
    fires = coming_occurrences(schedule, job.cursor, START, END, job_id=job_id, created_at=job.created_at)
    assert job.cursor is not None
    fires = [job.cursor, *fires] if job.cursor <= START else fires
    due = (max(START, due_at(schedule, fire, job_id=job_id)) for fire in fires)
    return Counter(int(at.timestamp()) for at in due if int(at.timestamp()) <= int(END.timestamp()))


def forecast(*jobs: ScheduledJob, start: datetime = START, end: datetime = END, **options: Any) -> Forecast:
    found = ScheduleSet(start, end)
    for job in jobs:
        found.add(job)
    return make_forecast(found, observed=options.pop("observed", {}), **options)


def seconds_of(made: Forecast) -> dict[int, int]:
    assert made.over_limit is not None
    return {int(busy.at.timestamp()): busy.runs for busy in made.over_limit.first}


@settings(max_examples=60, deadline=None)
@given(jobs=st.lists(live_jobs(), max_size=8))
def test_every_second_has_the_runs_that_walking_counts(jobs: list[ScheduledJob | None]) -> None:
    by_queue: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for job in filter(None, jobs):
        by_queue[job.queue].update(walked(job))
    total = sum(by_queue.values(), Counter())
    made = forecast(*filter(None, jobs), limit=1)
    assert made.runs == total.total()
    assert {queue.queue: queue.runs for queue in made.queues if queue.runs} == {
        queue: runs.total() for queue, runs in by_queue.items() if runs
    }
    busy = {second: runs for second, runs in sorted(total.items()) if runs > 1}
    assert seconds_of(made) == dict(list(busy.items())[: forecasts.MOST_OVER])
    assert made.over_limit is not None
    assert made.over_limit.seconds == len(busy)
    hours = Counter(second // 3_600 % 24 for second in total.elements())
    assert made.by_hour == [hours[hour] for hour in range(24)]
    if total:
        worst = max(total.items(), key=lambda item: (item[1], -item[0]))
        assert (int(made.worst_seconds[0].at.timestamp()), made.worst_seconds[0].runs) == worst
        minutes = Counter(second // 60 * 60 for second in total.elements())
        assert made.worst_minutes[0].runs == max(minutes.values())


def job(form: dict[str, Any], number: int = 1, queue: str = "mail", **fields: Any) -> ScheduledJob:
    return ScheduledJob(str(UUID(int=number)), queue, json.dumps(form).encode(), START, **fields)


def test_jobs_of_one_schedule_are_computed_once_and_so_is_what_h_makes_equal() -> None:
    daily = [job({"cron": "0 9 * * *"}, number) for number in range(500)]
    hashed = [job({"cron": "H * * * *"}, number) for number in range(500)]
    made = forecast(*daily, *hashed, end=START + timedelta(days=1))
    assert made.jobs == 1_000
    assert made.distinct <= 61
    assert made.runs == 500 + 500 * 24


def test_copies_are_jobs_of_their_own_where_that_makes_a_difference() -> None:
    alike = forecast(job({"cron": "0 9 * * *"}, copies=90), end=START + timedelta(days=1))
    hashed = forecast(job({"cron": "H 9 * * *"}, copies=90), end=START + timedelta(days=1))
    assert (alike.worst_seconds[0].runs, alike.runs, alike.jobs) == (90, 90, 90)
    assert (hashed.runs, hashed.jobs) == (90, 90)
    assert hashed.worst_seconds[0].runs < 20


def test_the_worst_second_names_the_schedules_that_most_jobs_have() -> None:
    jobs = [job({"cron": "0 0 * * *", "zone": "UTC"}, n) for n in range(5)]
    jobs += [job({"cron": "0 * * * *"}, n, "sms") for n in range(3)] + [job({"cron": "5 0 * * *"}, 9)]
    [worst, *_] = forecast(*jobs).worst_seconds
    assert (worst.at, worst.runs) == (datetime(2026, 10, 25, tzinfo=UTC), 8)
    assert [(heavy.schedule, heavy.jobs) for heavy in worst.heaviest] == [("0 0 * * *  UTC", 5), ("0 * * * *  UTC", 3)]


def test_seconds_over_the_limit_in_which_the_added_jobs_fire_are_told() -> None:
    there = [job({"cron": "0 * * * *"}, number) for number in range(4)]
    new = [job({"cron": "0 1 * * *"}, 10 + number) for number in range(2)]
    found, added = ScheduleSet(START, END), ScheduleSet(START, END)
    for each in (*there, *new):
        found.add(each)
    for each in new:
        added.add(each)
    over = make_forecast(found, observed={}, limit=4, added=added).over_limit
    assert over is not None
    assert [(busy.at.hour, busy.runs) for busy in over.first_crowded] == [(1, 6)]
    over = make_forecast(found, observed={}, limit=3, added=added).over_limit
    assert over is not None
    assert (over.seconds, over.crowded) == (9, 1)


def test_the_room_for_fires_is_bounded_and_changes_nothing(monkeypatch: Any) -> None:
    jobs = [job({"cron": f"{n} * * * *"}, n, queue) for n in range(30) for queue in ("mail", "sms")]
    whole = forecast(*jobs, limit=1)
    monkeypatch.setattr(forecasts, "MOST_KEPT", 20)
    assert forecast(*jobs, limit=1) == whole
