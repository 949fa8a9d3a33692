"""GET /v1/schedules: what the load of the next days is computed from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from schemas.zones import TZDATA_VERSION
from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner

DAILY = {"cron": "0 9 * * *", "zone": "Europe/Berlin"}


@pytest_asyncio.fixture(autouse=True)
async def _applying(owner: Owner) -> AsyncIterator[None]:
    async with owner.applying_commands():
        yield


async def create(caller: Caller, schedule: dict[str, Any] = DAILY, queue: str = "mail") -> dict[str, Any]:
    response = await caller.post("/v1/jobs", {"queue": queue, "schedule": schedule})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def schedules(caller: Caller, query: str = "") -> dict[str, Any]:
    response = await caller.get(f"/v1/schedules{query}")
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


async def test_every_job_that_fires_tells_its_schedule_its_queue_and_its_pending_occurrence(producer: Caller) -> None:
    daily, beat = await create(producer), await create(producer, {"everySeconds": 60, "jitterSeconds": 5}, "sync")
    page = await schedules(producer)
    assert (page["next"], page["tzdata"]) == (None, TZDATA_VERSION)
    found = {each["jobId"]: each for each in page["schedules"]}
    assert found.keys() == {daily["jobId"], beat["jobId"]}
    assert found[daily["jobId"]]["schedule"] == DAILY
    assert found[daily["jobId"]]["nextRunAt"] == daily["nextRunAt"]
    assert (found[beat["jobId"]]["queue"], found[beat["jobId"]]["schedule"]["everySeconds"]) == ("sync", 60)
    assert "createdAt" in found[beat["jobId"]]


async def test_paused_and_deleted_jobs_do_not_fire(producer: Caller) -> None:
    paused, deleted, live = [await create(producer) for _ in range(3)]
    await producer.post(f"/v1/jobs/{paused['jobId']}/pause")
    await producer.delete(f"/v1/jobs/{deleted['jobId']}")
    assert [each["jobId"] for each in (await schedules(producer))["schedules"]] == [live["jobId"]]


async def test_schedules_come_in_pages_in_the_order_of_their_ids(producer: Caller) -> None:
    made = sorted([(await create(producer))["jobId"] for _ in range(5)])
    found, query = [], "?limit=2"
    while query:
        page = await schedules(producer, query)
        found.append([each["jobId"] for each in page["schedules"]])
        query = page["next"] and f"?limit=2&after={page['next']}"
    assert found == [made[:2], made[2:4], made[4:]]


async def test_another_tenant_s_and_another_queue_s_schedules_are_not_shown(producer: Caller, callers: Callers) -> None:
    await create(producer)
    sms = await create(producer, queue="sms")
    rival = await callers("producer", tenant="rival")
    assert (await schedules(rival))["schedules"] == []
    scoped = await callers("producer", queues=["sms"])
    assert [each["jobId"] for each in (await schedules(scoped))["schedules"]] == [sms["jobId"]]
    worker = await callers("worker")
    assert (await worker.get("/v1/schedules")).status_code == 403
