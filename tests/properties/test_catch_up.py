"""Catching up agrees with walking through every occurrence, decides each once, and never walks itself."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.commands import CatchUp as Policy
from schemas.schedule import Schedule, due_at, fires_between, next_fire, parse_schedule
from streams import catch_up as module
from streams.catch_up import DEADLINE, GRACE_S, LATEST, LIMIT, NONE, CatchUp, catch_up

JOB = UUID(int=7)
CREATED_AT = datetime(2024, 1, 1, tzinfo=UTC)
SCHEDULES: list[dict[str, Any]] = [
    {"everySeconds": 1},
    {"everySeconds": 7},
    {"everySeconds": 600, "excludeDates": ["2024-03-10"]},
    {"cron": "* * * * *", "endAt": "2024-03-10T09:30:00Z"},
    {"cron": "*/20 * * * *", "zone": "Australia/Lord_Howe"},
    {"cron": "30 2 * * *", "zone": "America/New_York"},
    {"cron": "0 * * * *", "zone": "Europe/Lisbon"},
]
JITTERED: list[dict[str, Any]] = [
    {"everySeconds": 60, "jitterSeconds": 50},
    {"cron": "* * * * *", "jitterSeconds": 600},
    {"cron": "0 * * * *", "jitterSeconds": 120},
]
START = datetime(2024, 3, 10, tzinfo=UTC)


class Situation(NamedTuple):
    schedule: Schedule
    policy: Policy
    cursor: datetime
    now: datetime
    limit: int
    start_deadline_s: float | None
    first_seen_late: bool


@st.composite
def situations(draw: st.DrawFn, schedules: list[dict[str, Any]]) -> Situation:
    schedule = parse_schedule(draw(st.sampled_from(schedules)), job_id=JOB)
    after = START + timedelta(seconds=draw(st.integers(0, 30_000)))
    cursor = next_fire(schedule, after, job_id=JOB, created_at=CREATED_AT)
    assert cursor is not None
    down_s = draw(st.one_of(st.floats(0, 30), st.floats(0, 3_600), st.floats(0, 200_000)))
    if "everySeconds=1" in repr(schedule) or "everySeconds=7" in repr(schedule):
        down_s = min(down_s, 1_000)
    return Situation(
        schedule,
        draw(st.sampled_from(["latest", "all", "none"])),
        cursor,
        max(cursor, due_at(schedule, cursor, job_id=JOB)) + timedelta(seconds=round(down_s, draw(st.integers(0, 6)))),
        draw(st.one_of(st.just(1), st.integers(1, 30), st.just(1_000))),
        draw(st.one_of(st.none(), st.sampled_from([1.0, 3.0, 60.0, 200.0, 3_600.0]))),
        draw(st.booleans()),
    )


def decide(case: Situation, cursor: datetime, *, first: bool) -> CatchUp:
    return catch_up(
        case.schedule,
        case.policy,
        cursor,
        case.now,
        CREATED_AT,
        JOB,
        limit=case.limit,
        start_deadline_s=case.start_deadline_s,
        first_seen_late=case.first_seen_late or not first,  # as the owner, who learns of the next one only now
    )


def walked(case: Situation) -> dict[datetime, str]:
    """Each occurrence up to now with `runs` or the reason why not, by applying catch_up until nothing is left."""
    fates: dict[datetime, str] = {}

    def note(fire: datetime, fate: str) -> None:
        assert fire not in fates, "an occurrence was decided twice"
        fates[fire] = fate

    cursor: datetime | None = case.cursor
    while cursor is not None and cursor <= case.now:
        found = decide(case, cursor, first=cursor == case.cursor)
        note(cursor, found.cursor_skipped or "runs")
        for each in found.skipped:
            members = fires_between(
                case.schedule, each.first - timedelta(microseconds=1), each.last, job_id=JOB, created_at=CREATED_AT
            )
            count = 0
            for fire in members:
                note(fire, each.reason)
                count += 1
            assert count == each.count > 0
            assert cursor < each.first <= each.last
        cursor = found.next_fire
        assert found.due_at == (cursor and due_at(case.schedule, cursor, job_id=JOB))
    following = next_fire(case.schedule, case.now, job_id=JOB, created_at=CREATED_AT)
    assert cursor == following
    return fates


def occurrences(case: Situation) -> list[datetime]:
    later = fires_between(case.schedule, case.cursor, case.now, job_id=JOB, created_at=CREATED_AT)
    return [case.cursor, *later]


def judged(case: Situation) -> dict[datetime, str]:
    """By looking at every occurrence on its own. Only for schedules without jitter."""
    all_of = occurrences(case)
    is_late = [case.now - fire > timedelta(seconds=GRACE_S) for fire in all_of]
    missed = sum(is_late)
    behind = len(all_of) > 1 and missed > 0
    fates = dict.fromkeys(all_of, "runs")
    for place, fire in enumerate(all_of):
        if not behind:
            if case.policy == "none" and is_late[place] and case.first_seen_late:
                fates[fire] = NONE
        elif case.policy == "latest" and place < len(all_of) - 1:
            fates[fire] = LATEST
        elif case.policy == "none" and is_late[place]:
            fates[fire] = NONE
        elif case.policy == "all" and place < len(all_of) - case.limit:
            fates[fire] = LIMIT
        deadline_s = case.start_deadline_s
        if fates[fire] == "runs" and deadline_s is not None and case.now - fire > timedelta(seconds=deadline_s):
            fates[fire] = DEADLINE
    return fates


@settings(max_examples=150, deadline=None)
@given(situations(SCHEDULES))
def test_every_occurrence_meets_the_fate_that_looking_at_each_of_them_gives(case: Situation) -> None:
    assert walked(case) == judged(case)


@settings(max_examples=150, deadline=None)
@given(situations(JITTERED))
@example(
    Situation(
        parse_schedule({"cron": "* * * * *", "jitterSeconds": 600}, job_id=JOB),
        "none",
        datetime(2024, 3, 10, 0, 1, tzinfo=UTC),
        datetime(2024, 3, 12, 0, 57, 10, 509714, tzinfo=UTC),
        1,
        None,
        True,
    )
).via("looking for the first occurrence that is not late ended at `limit` of them, and a late one ran")
def test_with_jitter_each_occurrence_is_decided_once_and_judged_by_its_own_due_time(case: Situation) -> None:
    fates = walked(case)
    assert list(fates) == occurrences(case)
    late_s = {fire: (case.now - due_at(case.schedule, fire, job_id=JOB)).total_seconds() for fire in fates}
    for fire, fate in fates.items():
        if fate == NONE:
            assert late_s[fire] > GRACE_S
        if fate == DEADLINE:
            assert case.start_deadline_s is not None
            assert late_s[fire] > case.start_deadline_s
        if fate == "runs" and case.start_deadline_s is not None:
            assert late_s[fire] <= case.start_deadline_s
    if case.policy == "none" and case.first_seen_late:
        assert all(late_s[fire] <= GRACE_S for fire, fate in fates.items() if fate == "runs")


@pytest.mark.parametrize("policy", ["latest", "all", "none"])
@pytest.mark.parametrize("deadline_s", [None, 200.0])
@pytest.mark.parametrize("limit", [1, 50])
@pytest.mark.parametrize("jitter_s", [0, 55])
def test_a_decision_looks_at_no_more_fires_than_it_may_keep(
    policy: Policy, deadline_s: float | None, limit: int, jitter_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = parse_schedule({"cron": "* * * * *", "jitterSeconds": jitter_s}, job_id=JOB)
    looked: Counter[str] = Counter()

    def counting(step: Any) -> Any:
        def stepping(*args: Any, **more: Any) -> Any:
            looked["fires"] += 1
            return step(*args, **more)

        return stepping

    for name in ("next_fire", "previous_fire"):
        monkeypatch.setattr(module, name, counting(getattr(module, name)))
    now = START + timedelta(days=365, seconds=17)
    case = Situation(schedule, policy, START, now, limit, deadline_s, True)
    found = decide(case, START, first=True)
    assert sum(each.count for each in found.skipped) > 500_000
    assert looked["fires"] <= limit + 10
