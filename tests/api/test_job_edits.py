"""PUT /v1/jobs/{id} and backfills: what they change, what they refuse, and what a repeated call gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest_asyncio

from ledger.connection import Pool, session
from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner
from tests.api.test_jobs import HOURLY, WRONG_JOBS, create

NIGHTLY = {"queue": "mail", "schedule": {"cron": "0 3 * * *", "zone": "Europe/Paris"}}
POLICIES = {
    "retryBackoff": "linear", "retryBaseSeconds": 2.5, "retryMaxSeconds": 90.0, "catchUpLimit": 7,
    "concurrencyKey": "c-1",
}  # fmt: skip


@pytest_asyncio.fixture
async def applying(owner: Owner) -> AsyncIterator[Owner]:
    """An owner who applies commands as they come."""
    async with owner.applying_commands():
        yield owner


@pytest_asyncio.fixture
async def path(producer: Caller, applying: Owner) -> str:  # noqa: ARG001 - who applies the create
    """The path of a nightly job."""
    return f"/v1/jobs/{(await create(producer, NIGHTLY))['jobId']}"


async def pending(pool: Pool) -> list[tuple[Any, ...]]:
    async with session(pool) as conn:
        return await (await conn.execute("SELECT queue, due_at FROM runs ORDER BY due_at")).fetchall()


async def test_a_created_job_shows_its_new_policies(producer: Caller, path: str) -> None:
    job = await create(producer, NIGHTLY | POLICIES)
    assert POLICIES.items() <= (await producer.get(f"/v1/jobs/{job['jobId']}")).json().items()
    defaults = {"retryBackoff": "exponential", "retryBaseSeconds": 1, "retryMaxSeconds": 600, "catchUpLimit": 1000}
    assert defaults.items() <= (await producer.get(path)).json().items()


async def test_an_edit_replaces_the_whole_definition_and_the_pending_run(
    operator: Caller, path: str, ledger_pool: Pool
) -> None:
    edited = {"queue": "sms", "schedule": {"cron": "0 4 * * *", "zone": "Europe/Paris"}, "payload": {"n": 1}} | POLICIES
    response = await operator.put(path, edited)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert (answer["state"], path) == ("active", f"/v1/jobs/{answer['jobId']}")
    shown = (await operator.get(path)).json()
    assert (edited | {"maxAttempts": 5, "nextRunAt": answer["nextRunAt"]}).items() <= shown.items()
    assert shown["version"] > 1
    assert await pending(ledger_pool) == [("sms", datetime.fromisoformat(answer["nextRunAt"]))]
    await operator.put(path, NIGHTLY)
    assert (await operator.get(path)).json()["payload"] is None


async def test_an_edit_counts_from_its_effective_instant_on(producer: Caller, path: str) -> None:
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
    response = await producer.put(path, HOURLY | {"effectiveFrom": start.isoformat()})
    fire = datetime.fromisoformat(response.json()["nextRunAt"])
    assert start < fire <= start + timedelta(hours=1)


async def test_a_repeated_edit_with_its_key_has_its_effect_once(producer: Caller, path: str) -> None:
    first = await producer.put(path, HOURLY, idempotency_key="k")
    version = (await producer.get(path)).json()["version"]
    again = await producer.put(path, {"lane": "normal"} | HOURLY, idempotency_key="k")
    assert (again.status_code, again.json()) == (200, first.json())
    assert (await producer.get(path)).json()["version"] == version


async def test_a_key_that_came_with_another_body_is_a_conflict(producer: Caller, path: str) -> None:
    assert (await producer.put(path, HOURLY, idempotency_key="k")).status_code == 200
    future = "2090-01-01T00:00:00Z"
    for change in ({"payload": 1}, {"queue": "sms"}, {"effectiveFrom": future}, {"schedule": {"everySeconds": 5}}):
        response = await producer.put(path, HOURLY | change, idempotency_key="k")
        assert (response.status_code, response.json()["field"]) == (409, "Idempotency-Key"), change
    assert (await producer.post(f"{path}/trigger", {"payload": 1}, idempotency_key="k")).status_code == 200
    response = await producer.post(f"{path}/trigger", {"payload": 2}, idempotency_key="k")
    assert (response.status_code, response.json()["field"]) == (409, "Idempotency-Key")


async def test_what_is_no_definition_is_refused_by_name(producer: Caller, path: str) -> None:
    before = (await producer.get(path)).json()
    wrong = [
        *((change, field) for change, field in WRONG_JOBS if "endAt" not in str(change)),
        ({"effectiveFrom": "tomorrow"}, "effectiveFrom"),
        ({"effectiveFrom": "2026-01-01T00:00:00"}, "effectiveFrom"),
        ({"retryBackoff": "random"}, "retryBackoff"),
        ({"retryBaseSeconds": 0}, "retryBaseSeconds"),
        ({"retryMaxSeconds": -1}, "retryMaxSeconds"),
        ({"catchUpLimit": 0}, "catchUpLimit"),
        ({"schedule": {"cron": "0 3 * * *", "endAt": "2001-01-01T00:00:00Z"}}, "schedule"),
    ]
    for change, field in wrong:
        response = await producer.put(path, HOURLY | change)
        assert (response.status_code, response.json()["field"]) == (422, field), (change, response.text)
    assert (await producer.get(path)).json() == before


async def test_only_a_live_job_of_the_tenant_and_queue_can_be_edited(
    producer: Caller, worker: Caller, callers: Callers, path: str
) -> None:
    stranger, narrow = await callers("admin", tenant="other"), await callers("producer", queues=["mail"])
    assert (await stranger.put(path, HOURLY)).status_code == 404
    assert (await producer.put(f"/v1/jobs/{uuid4()}", HOURLY)).status_code == 404
    assert (await worker.put(path, HOURLY)).status_code == 403
    elsewhere = await narrow.put(path, HOURLY | {"queue": "sms"})
    assert (elsewhere.status_code, elsewhere.json()["field"]) == (403, "queue")
    await producer.delete(path)
    assert (await producer.put(path, HOURLY)).status_code == 404


def last_week() -> dict[str, str]:
    now = datetime.now(UTC).replace(microsecond=0)
    return {"from": (now - timedelta(days=7)).isoformat(), "to": now.isoformat()}


async def test_a_backfill_runs_the_occurrences_of_a_range_beside_the_schedule(
    producer: Caller, operator: Caller, worker: Caller, path: str
) -> None:
    span = last_week()
    told = (await operator.post(f"{path}/backfill", span | {"dryRun": True})).json()
    assert (told["dryRun"], told["count"]) == (True, 7)
    assert all("runId" not in run for run in told["runs"])
    assert await worker.lease(max=10) == []
    before = (await producer.get(path)).json()["nextRunAt"]
    response = await producer.post(f"{path}/backfill", span | {"payload": {"again": True}}, idempotency_key="k")
    assert response.status_code == 200, response.text
    made = response.json()
    assert [run["scheduledFor"] for run in made["runs"]] == [run["scheduledFor"] for run in told["runs"]]
    leased: list[dict[str, Any]] = []
    while len(leased) < 7:
        leased += await worker.lease(max=10, waitSeconds=5)
    assert {(run["runId"], run["scheduledFor"]) for run in leased} == {
        (run["runId"], run["scheduledFor"]) for run in made["runs"]
    }
    assert all(run["payload"] == {"again": True} for run in leased)
    assert (await producer.get(path)).json()["nextRunAt"] == before
    again = await producer.post(f"{path}/backfill", span | {"payload": {"again": True}}, idempotency_key="k")
    assert again.json() == made
    other = await producer.post(f"{path}/backfill", span, idempotency_key="k")
    assert (other.status_code, other.json()["field"]) == (409, "Idempotency-Key")


async def test_a_range_without_an_occurrence_makes_no_run(producer: Caller, path: str, ledger_pool: Pool) -> None:
    body = {"from": "2026-01-01T04:00:00Z", "to": "2026-01-01T05:00:00Z"}
    assert (await producer.post(f"{path}/backfill", body)).json()["count"] == 0
    assert len(await pending(ledger_pool)) == 1


async def test_a_range_that_cannot_be_is_refused_by_name(producer: Caller, path: str) -> None:
    start, ahead = "2020-01-01T00:00:00Z", (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"from": start}, "to"),
        ({"to": start}, "from"),
        ({"from": start, "to": start}, "to"),
        ({"from": start, "to": ahead}, "to"),
        ({"from": start, "to": "2023-01-01T00:00:00Z"}, "to"),
        ({"from": "2020-01-01", "to": start}, "from"),
        ({"from": start, "to": "2020-01-02T00:00:00"}, "to"),
        ({"from": start, "to": "2020-01-02T00:00:00Z", "dryRun": "no"}, "dryRun"),
        ({"from": start, "to": "2020-01-02T00:00:00Z", "payload": "x" * 65_536}, "payload"),
        ({"from": start, "to": "2020-01-02T00:00:00Z", "pace": 1}, "pace"),
    ]
    for body, field in wrong:
        response = await producer.post(f"{path}/backfill", body)
        assert (response.status_code, response.json()["field"]) == (422, field), (body, response.text)
    too_many = await producer.post(f"{path}/backfill", {"from": start, "to": "2023-01-01T00:00:00Z", "dryRun": True})
    assert "2022-09-26T01:00:00Z" in too_many.json()["detail"]


async def test_only_a_live_job_of_the_tenant_can_be_backfilled(
    producer: Caller, worker: Caller, callers: Callers, path: str
) -> None:
    assert (await (await callers("admin", tenant="other")).post(f"{path}/backfill", last_week())).status_code == 404
    assert (await worker.post(f"{path}/backfill", last_week())).status_code == 403
    await producer.delete(path)
    assert (await producer.post(f"{path}/backfill", last_week())).status_code == 404
