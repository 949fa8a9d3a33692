"""The preview of a schedule: right fires, odd nights marked, everything wrong refused by its name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ledger.tokens import Role
from schemas.schedule import due_at, parse_schedule
from schemas.zones import TZDATA_VERSION
from tests.api.conftest import Caller, Callers

PREVIEW = "/v1/schedules/preview"
PARIS = {"cron": "30 2 * * *", "zone": "Europe/Paris"}
JOB_ID = "0190a6c8-0000-7000-8000-00000000000a"


async def preview(caller: Caller, schedule: Any, **fields: Any) -> list[dict[str, Any]]:
    response = await caller.post(PREVIEW, {"schedule": schedule, **fields})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["tzdata"] == TZDATA_VERSION
    fires: list[dict[str, Any]] = answer["fires"]
    return fires


async def test_fires_are_shown_on_both_clocks_with_their_odd_nights(operator: Caller) -> None:
    assert await preview(operator, PARIS, **{"from": "2026-03-28T03:00:00+01:00"}, count=2) == [
        {
            "scheduledFor": "2026-03-29T01:00:00Z",
            "local": "2026-03-29T03:00:00+02:00",
            "zone": "Europe/Paris",
            "mark": "gap",
            "dueAt": "2026-03-29T01:00:00Z",
        },
        {
            "scheduledFor": "2026-03-30T00:30:00Z",
            "local": "2026-03-30T02:30:00+02:00",
            "zone": "Europe/Paris",
            "mark": None,
            "dueAt": "2026-03-30T00:30:00Z",
        },
    ]
    (fire,) = await preview(operator, PARIS, **{"from": "2026-10-24T12:00:00Z"}, count=1)
    assert (fire["scheduledFor"], fire["mark"]) == ("2026-10-25T00:30:00Z", "fold")


async def test_without_an_instant_and_a_count_the_next_five_are_shown(operator: Caller) -> None:
    before = datetime.now(UTC)
    fires = [datetime.fromisoformat(fire["scheduledFor"]) for fire in await preview(operator, {"cron": "* * * * *"})]
    assert len(fires) == 5
    assert before < fires[0]
    assert (fires[0] - before).total_seconds() <= 61


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"everySeconds": 90, "anchor": "2025-12-31T23:59:00Z"}, ["2026-01-01T00:00:30Z", "2026-01-01T00:02:00Z"]),
        ({"everySeconds": 90}, ["2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"]),
        ({"delaySeconds": 5}, ["2026-01-01T00:00:05Z"]),
        ({"runAt": "2026-01-01T09:00", "zone": "Asia/Tokyo"}, []),
        ({"runAt": "2026-01-01T09:01", "zone": "Asia/Tokyo"}, ["2026-01-01T00:01:00Z"]),
        ({"cron": "@daily", "endAt": "2026-01-02T00:00:01Z"}, ["2026-01-02T00:00:00Z"]),
    ],
)
async def test_every_kind_of_schedule_has_a_preview(
    operator: Caller, schedule: dict[str, Any], expected: list[str]
) -> None:
    fires = await preview(operator, schedule, **{"from": "2026-01-01T00:00:00Z"}, count=2)
    assert [fire["scheduledFor"] for fire in fires] == expected


async def test_hash_and_jitter_are_those_of_the_job(operator: Caller) -> None:
    schedule = {"cron": "H H * * *", "jitterSeconds": 3600}
    (fire,) = await preview(operator, schedule, **{"from": "2026-01-01T00:00:00Z"}, count=1, jobId=JOB_ID)
    (other,) = await preview(operator, schedule, **{"from": "2026-01-01T00:00:00Z"}, count=1)
    assert fire["scheduledFor"] != other["scheduledFor"]
    nominal = datetime.fromisoformat(fire["scheduledFor"])
    due = due_at(parse_schedule(schedule, job_id=JOB_ID), nominal, job_id=JOB_ID)
    assert datetime.fromisoformat(fire["dueAt"]) == due > nominal


async def test_a_thousand_fires_are_the_most(operator: Caller) -> None:
    assert len(await preview(operator, {"cron": "* * * * *"}, count=1000)) == 1000
    response = await operator.post(PREVIEW, {"schedule": {"cron": "* * * * *"}, "count": 1001})
    assert (response.status_code, response.json()["field"]) == (422, "count")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"schedule": {"cron": "61 * * * *"}}, "schedule.cron"),
        ({"schedule": {"cron": "0 0 30 2 *"}}, "schedule.cron"),
        ({"schedule": {"cron": "@daily", "zone": "Mars/Phobos"}}, "schedule.zone"),
        ({"schedule": {"everySeconds": 0}}, "schedule.everySeconds"),
        ({"schedule": {}}, "schedule"),
        ({"schedule": {"cron": "@daily", "runAt": "2026-01-01T00:00:00Z"}}, "schedule.runAt"),
        ({"schedule": {"cron": "@daily"}, "from": "2026-01-01T00:00:00"}, "from"),
        ({"schedule": {"cron": "@daily"}, "from": "9999-12-31T23:59:59Z"}, "from"),
        ({"schedule": {"cron": "@daily"}, "from": 5}, "from"),
        ({"schedule": {"cron": "@daily"}, "count": 0}, "count"),
        ({"schedule": {"cron": "@daily"}, "jobId": "mine"}, "jobId"),
        ({"schedule": {"cron": "@daily"}, "form": "2026-01-01T00:00:00Z"}, "form"),
        ({"schedule": "@daily"}, "schedule"),
        ({}, "schedule"),
    ],
)
async def test_what_cannot_be_right_is_refused_by_its_name(operator: Caller, body: dict[str, Any], field: str) -> None:
    response = await operator.post(PREVIEW, body)
    assert response.status_code == 422, response.text
    assert response.json()["field"] == field
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("role", ["producer", "worker", "operator", "admin"])
async def test_every_role_may_ask(callers: Callers, role: Role) -> None:
    assert len(await preview(await callers(role, queues=["mail"]), PARIS)) == 5


async def test_a_stranger_may_not_ask(callers: Callers) -> None:
    response = await callers.with_token("fp_1_nobody").post(PREVIEW, {"schedule": PARIS})
    assert response.status_code == 401
