"""What a plan needs of the API: whose token it is, a set's jobs, commands that are made for one version of a job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from schemas.zones import TZDATA_VERSION
from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner

DAILY = {"cron": "0 9 * * *", "zone": "UTC"}


@pytest_asyncio.fixture(autouse=True)
async def _applying(owner: Owner) -> AsyncIterator[None]:
    async with owner.applying_commands():
        yield


def body(declared_as: str | None = "billing/mails", **fields: Any) -> dict[str, Any]:
    return {"queue": "mail", "schedule": DAILY, "declaredAs": declared_as, **fields}


async def declare(caller: Caller, declared_as: str | None = "billing/mails", **fields: Any) -> str:
    response = await caller.post("/v1/jobs", body(declared_as, **fields))
    assert response.status_code == 201, response.text
    job_id: str = response.json()["jobId"]
    return job_id


async def declared(caller: Caller, query: str = "declaredSet=billing") -> dict[str, Any]:
    response = await caller.get(f"/v1/jobs?{query}")
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


@pytest.mark.parametrize("role", ["producer", "worker", "operator", "admin"])
async def test_everybody_may_ask_who_they_are(callers: Callers, role: Any) -> None:
    response = await (await callers(role, tenant="rival", queues=["sms", "mail"])).get("/v1/whoami")
    assert response.json() == {"tenant": "rival", "role": role, "queues": ["mail", "sms"]}


async def test_a_token_for_every_queue_says_so(producer: Caller) -> None:
    assert (await producer.get("/v1/whoami")).json()["queues"] is None


async def test_a_set_is_its_jobs_deleted_ones_too_with_the_runs_that_a_change_would_meet(producer: Caller) -> None:
    kept, gone = await declare(producer), await declare(producer, "billing/gone")
    await declare(producer, "bill/other")
    await declare(producer, None)
    await producer.post(f"/v1/jobs/{kept}/trigger")
    await producer.delete(f"/v1/jobs/{gone}")
    page = await declared(producer)
    assert {job["jobId"]: (job["declaredAs"], job["state"], job["pendingRuns"]) for job in page["jobs"]} == {
        kept: ("billing/mails", "active", 2),
        gone: ("billing/gone", "deleted", 0),
    }
    assert (page["next"], page["tzdata"]) == (None, TZDATA_VERSION)


async def test_a_set_comes_in_pages(producer: Caller) -> None:
    made = sorted([await declare(producer, f"billing/{number}") for number in range(5)])
    found, query = [], "declaredSet=billing&limit=2"
    while query:
        page = await declared(producer, query)
        found.append([job["jobId"] for job in page["jobs"]])
        query = page["next"] and f"declaredSet=billing&limit=2&after={page['next']}"
    assert found == [made[:2], made[2:4], made[4:]]


async def test_leased_and_held_runs_are_counted(producer: Caller, worker: Caller) -> None:
    job_id = await declare(producer)
    await producer.post(f"/v1/jobs/{job_id}/trigger")
    assert len(await worker.lease(waitSeconds=10)) == 1
    await producer.post(f"/v1/jobs/{job_id}/pause")
    [job] = (await declared(producer))["jobs"]
    assert (job["pendingRuns"], job["leasedRuns"], job["heldRuns"]) == (0, 1, 1)


async def test_nobody_sees_what_is_another_tenants_or_queues(callers: Callers, producer: Caller) -> None:
    await declare(producer)
    assert (await declared(await callers("producer", tenant="rival")))["jobs"] == []
    assert (await declared(await callers("producer", queues=["sms"])))["jobs"] == []
    assert len((await declared(await callers("producer", queues=["mail"])))["jobs"]) == 1
    assert (await (await callers("worker")).get("/v1/jobs?declaredSet=billing")).status_code == 403


@pytest.mark.parametrize(
    ("query", "field"),
    [("", "declaredSet"), ("declaredSet=a%20b", "declaredSet"), ("declaredSet=a&limit=0", "limit"), ("set=a", "set")],
)
async def test_a_wrong_question_is_told_by_its_field(producer: Caller, query: str, field: str) -> None:
    response = await producer.get(f"/v1/jobs?{query}")
    assert response.status_code == 422
    assert response.json()["field"] == field


@pytest.mark.parametrize("declared_as", ["billing", "billing/", "/mails", "a/b/c", "a b/c", ""])
async def test_a_job_is_declared_as_set_and_name(producer: Caller, declared_as: str) -> None:
    response = await producer.post("/v1/jobs", body(declared_as))
    assert (response.status_code, response.json()["field"]) == (422, "declaredAs")


async def test_an_update_has_its_effect_only_at_the_version_it_was_made_for(producer: Caller) -> None:
    job_id = await declare(producer)
    late = body(ifVersion=2, maxAttempts=2)
    refused = await producer.put(f"/v1/jobs/{job_id}", late)
    assert (refused.status_code, refused.json()["field"]) == (409, "ifVersion")
    assert "is at version 1, not 2" in refused.json()["detail"]
    assert (await producer.put(f"/v1/jobs/{job_id}", late | {"ifVersion": 1})).status_code == 200
    assert (await producer.put(f"/v1/jobs/{job_id}", late | {"ifVersion": 1, "lane": "low"})).status_code == 409
    job = (await producer.get(f"/v1/jobs/{job_id}")).json()
    assert (job["version"], job["maxAttempts"], job["lane"]) == (2, 2, "normal")


async def test_a_delete_has_its_effect_only_at_the_version_it_was_made_for(producer: Caller) -> None:
    job_id = await declare(producer)
    refused = await producer.delete(f"/v1/jobs/{job_id}?ifVersion=2")
    assert (refused.status_code, refused.json()["field"]) == (409, "ifVersion")
    assert (await producer.delete(f"/v1/jobs/{job_id}?ifVersion=none")).status_code == 422
    assert (await producer.delete(f"/v1/jobs/{job_id}?ifVersion=1")).json()["state"] == "deleted"


async def test_an_update_takes_a_job_out_of_its_set(producer: Caller) -> None:
    job_id = await declare(producer)
    await producer.put(f"/v1/jobs/{job_id}", body(None))
    assert (await declared(producer))["jobs"] == []
