"""Cancelling runs, snoozing them, and notes on how far they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from ledger.connection import Pool, session
from ledger.runs import read_run
from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner


@pytest_asyncio.fixture
async def applying(owner: Owner) -> AsyncIterator[Owner]:
    """An owner who applies commands as they come."""
    async with owner.applying_commands():
        yield owner


@pytest_asyncio.fixture
async def run(worker: Caller, owner: Owner) -> dict[str, Any]:
    """A leased run."""
    await owner.make_due()
    [run] = await worker.lease(waitSeconds=5)
    return run


async def tell(caller: Caller, verb: str, run: dict[str, Any], **fields: Any) -> Any:
    """The body of a successful outcome."""
    response = await caller.post(f"/v1/runs/{run['runId']}/{verb}", {"leaseToken": run["leaseToken"]} | fields)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.usefixtures("applying")
async def test_a_waiting_run_is_cancelled_at_once(
    producer: Caller, worker: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    [run_id] = await owner.make_due(due_in_s=3600)
    path = f"/v1/runs/{run_id}"
    answers = [await producer.post(f"{path}/cancel", idempotency_key="k") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json() == {
        "runId": str(run_id), "state": "cancelled", "cancelRequested": False,
    }  # fmt: skip
    async with session(ledger_pool) as conn:
        assert await read_run(conn, run_id) is None
    shown = (await worker.get(path)).json()
    assert (shown["state"], shown["reason"]) == ("cancelled", "cancelled")
    ended = await producer.post(f"{path}/cancel")
    assert (ended.status_code, ended.json()["detail"]) == (409, "the run is cancelled already")


@pytest.mark.usefixtures("applying")
async def test_a_leased_run_is_cancelled_through_its_worker(operator: Caller, worker: Caller, run: dict) -> None:
    answer = (await operator.post(f"/v1/runs/{run['runId']}/cancel")).json()
    assert (answer["state"], answer["cancelRequested"]) == ("leased", True)
    assert (await worker.get(f"/v1/runs/{run['runId']}")).json()["cancelRequested"] is True
    beat = await tell(worker, "heartbeat", run, visibilitySeconds=300)
    assert (beat["cancel"], beat["leaseExpiresAt"]) == (True, run["leaseExpiresAt"])
    assert 0 < beat["leaseSeconds"] <= 30
    assert (await operator.post(f"/v1/runs/{run['runId']}/cancel")).json()["cancelRequested"] is True
    for _ in range(2):  # the second as after a lost answer
        assert await tell(worker, "fail", run, error="the server cancelled the run") == {"outcome": "cancelled"}
    shown = (await worker.get(f"/v1/runs/{run['runId']}")).json()
    assert (shown["state"], shown["reason"]) == ("cancelled", "cancelled")


@pytest.mark.usefixtures("applying")
async def test_work_that_was_done_before_the_cancel_came_counts(operator: Caller, worker: Caller, run: dict) -> None:
    await operator.post(f"/v1/runs/{run['runId']}/cancel", idempotency_key="k")
    assert await tell(worker, "complete", run, result=1) == {}
    again = await operator.post(f"/v1/runs/{run['runId']}/cancel", idempotency_key="k")
    assert again.json()["state"] == "completed"
    late = await operator.post(f"/v1/runs/{run['runId']}/cancel")
    assert (late.status_code, late.json()["detail"]) == (409, "the run is completed already")


@pytest.mark.usefixtures("applying")
async def test_a_dead_run_cannot_be_cancelled(operator: Caller, worker: Caller, run: dict) -> None:
    await tell(worker, "fail", run, error="boom", permanent=True)
    response = await operator.post(f"/v1/runs/{run['runId']}/cancel")
    assert (response.status_code, response.json()["detail"]) == (409, "the run is dead already")


async def test_a_run_that_is_not_there_cannot_be_cancelled(
    operator: Caller, worker: Caller, callers: Callers, run: dict
) -> None:
    path = f"/v1/runs/{run['runId']}/cancel"
    stranger, narrow = await callers("admin", tenant="other"), await callers("operator", queues=["sms"])
    for response in (await stranger.post(path), await operator.post("/v1/runs/abc/cancel")):
        assert (response.status_code, response.json()["detail"]) == (404, "no such run")
    assert (await worker.post(path)).status_code == 403
    assert (await narrow.post(path)).json()["field"] == "queue"
    assert (await operator.post(path, {"why": "so"})).json()["field"] == "why"


async def test_a_snoozed_run_comes_again_later_and_is_not_charged(worker: Caller, run: dict) -> None:
    before = datetime.now(UTC)
    answer = await tell(worker, "snooze", run, delaySeconds=0.3)
    assert answer["outcome"] == "snoozed"
    assert 0.2 <= (datetime.fromisoformat(answer["dueAt"]) - before).total_seconds() <= 5
    again: list[dict[str, Any]] = []
    while not again:
        again = await worker.lease(waitSeconds=5)
    [second] = again
    assert (second["runId"], second["attempt"], second["leaseToken"]) == (run["runId"], 1, 2)
    lost = await worker.post(f"/v1/runs/{run['runId']}/snooze", {"leaseToken": 1, "delaySeconds": 1})
    assert (lost.status_code, lost.json()["field"]) == (409, "leaseToken")


async def test_snoozes_of_a_batch_are_answered_in_order(worker: Caller, owner: Owner) -> None:
    await owner.make_due(2)
    runs = await worker.lease(waitSeconds=5)
    items = [{"runId": run["runId"], "leaseToken": run["leaseToken"], "delaySeconds": 60} for run in runs]
    items.insert(1, {"runId": str(uuid4()), "leaseToken": 1, "delaySeconds": 60})
    response = await worker.post("/v1/runs/snooze", {"runs": items})
    results = response.json()["results"]
    assert [result["runId"] for result in results] == [item["runId"] for item in items]
    assert [(result["status"], result.get("outcome")) for result in (results[0], results[2])] == [(200, "snoozed")] * 2
    assert results[1]["status"] in (409, 503)  # 503: without a history nobody can tell


async def test_the_last_note_is_shown_until_the_next_attempt(worker: Caller, run: dict, ledger_pool: Pool) -> None:
    await tell(worker, "heartbeat", run, progress="10 of 20\x00")
    await tell(worker, "heartbeat", run)
    assert (await worker.get(f"/v1/runs/{run['runId']}")).json()["progress"] == "10 of 20\ufffd"
    items = [{"runId": run["runId"], "leaseToken": run["leaseToken"], "progress": "20 of 20"}]
    assert (await worker.post("/v1/runs/heartbeat", {"runs": items})).json()["results"][0]["status"] == 200
    async with session(ledger_pool) as conn:
        row = await read_run(conn, UUID(run["runId"]))
    assert row is not None
    assert row.progress == "20 of 20"


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("heartbeat", {"progress": "x" * 1001}, "progress"),
    ("heartbeat", {"progress": 7}, "progress"),
    ("snooze", {}, "delaySeconds"),
    ("snooze", {"delaySeconds": -1}, "delaySeconds"),
    ("snooze", {"delaySeconds": "soon"}, "delaySeconds"),
    ("snooze", {"delaySeconds": 367 * 86_400}, "delaySeconds"),
    ("snooze", {"delaySeconds": 1, "reason": "later"}, "reason"),
]


async def test_a_wrong_field_is_named_in_both_forms(worker: Caller, run: dict) -> None:
    for verb, fields, field in WRONG:
        body = {"leaseToken": run["leaseToken"]} | fields
        single = await worker.post(f"/v1/runs/{run['runId']}/{verb}", body)
        assert (single.status_code, single.json()["field"]) == (422, field), (verb, fields)
        batch = await worker.post(f"/v1/runs/{verb}", {"runs": [body | {"runId": run["runId"]}]})
        assert (batch.status_code, batch.json()["field"]) == (422, f"runs.0.{field}"), (verb, fields)
