"""Runs that have left the ledger: what their events, on the way or in the history, still tell of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from api.app import ApiSettings
from tests.api.conftest import Caller, Callers, Past, with_history
from tests.api.owner import Owner


@pytest.fixture
def settings(settings: ApiSettings, past: Past) -> ApiSettings:
    return with_history(settings, past)


async def lease(worker: Caller, owner: Owner, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
    await owner.make_due(count, **fields)
    runs = await worker.lease(waitSeconds=5)
    assert len(runs) == count
    return runs


async def test_what_was_accepted_is_accepted_again_when_only_the_history_knows(
    worker: Caller, owner: Owner, past: Past
) -> None:
    completed, dead = await lease(worker, owner, 2)
    calls = [
        (f"/v1/runs/{completed['runId']}/complete", {"leaseToken": 1, "result": 7}, {}),
        (f"/v1/runs/{dead['runId']}/fail", {"leaseToken": 1, "error": "no", "permanent": True}, {"outcome": "dead"}),
    ]
    for path, body, answer in calls:
        assert (await worker.post(path, body)).json() == answer
    await past.relayed()
    for path, body, answer in calls:
        response = await worker.post(path, body)  # the history may be a moment behind: the API waits for it
        assert (response.status_code, response.json()) == (200, answer)
    items = [{"runId": completed["runId"], "leaseToken": 1}]
    results = (await worker.post("/v1/runs/complete", {"runs": items})).json()["results"]
    assert results == [{"runId": completed["runId"], "status": 200}]


async def test_a_retried_failure_is_told_again_by_the_history(worker: Caller, owner: Owner, past: Past) -> None:
    [run] = await lease(worker, owner)
    path, body = f"/v1/runs/{run['runId']}/fail", {"leaseToken": 1, "error": "no", "retryAfterSeconds": 90}
    first = await worker.post(path, body)
    await past.relayed()
    again = await worker.post(path, body)
    assert (again.status_code, again.json()) == (200, first.json())
    assert (await worker.post(path, body | {"error": "another"})).status_code == 409


async def test_a_token_that_did_not_finish_the_run_has_lost_it(worker: Caller, owner: Owner, past: Past) -> None:
    [run] = await lease(worker, owner)
    path = f"/v1/runs/{run['runId']}"
    await worker.post(f"{path}/release", {"leaseToken": 1})
    [again] = await worker.lease(waitSeconds=5)
    await worker.post(f"{path}/complete", {"leaseToken": again["leaseToken"]})
    await past.relayed()
    for kind, body in (
        ("complete", {"leaseToken": 1}),
        ("fail", {"leaseToken": 1, "error": "no"}),
        ("heartbeat", {"leaseToken": 1}),
        ("release", {"leaseToken": 2}),
    ):
        response = await worker.post(f"{path}/{kind}", body)
        assert response.status_code == 409, (kind, response.text)


async def test_an_unknown_run_and_another_tenant_s_look_the_same(
    worker: Caller, owner: Owner, past: Past, callers: Callers, impatience: Callable[[], None]
) -> None:
    stranger = await callers("worker", tenant="other")
    live, ended = await lease(worker, owner, 2)
    await worker.post(f"/v1/runs/{ended['runId']}/complete", {"leaseToken": 1})
    await past.relayed()
    unknown = never_made_like(ended["runId"])
    impatience()
    for run_id in (live["runId"], ended["runId"], unknown):
        paths = [f"/v1/runs/{run_id}/{kind}" for kind in ("complete", "heartbeat")]
        for response in await asyncio.gather(*(stranger.post(path, {"leaseToken": 1}) for path in paths)):
            assert (response.status_code, response.json()["detail"]) == (404, "no such run")
        assert (await stranger.get(f"/v1/runs/{run_id}")).status_code == 404
    [result] = (await stranger.post("/v1/runs/complete", {"runs": [{"runId": unknown, "leaseToken": 1}]})).json()[
        "results"
    ]
    assert (result["status"], result["detail"]) == (409, "no such run")


def never_made_like(run_id: str) -> str:
    """A run id of the same partition that nobody ever made."""
    return run_id[:-12] + uuid4().hex[:12]


async def test_a_completed_run_can_be_shown_at_once_and_later(worker: Caller, owner: Owner, past: Past) -> None:
    [run] = await lease(worker, owner)
    path = f"/v1/runs/{run['runId']}"
    await worker.post(f"{path}/complete", {"leaseToken": 1, "result": {"n": [1, 2]}})
    at_once = (await worker.get(path)).json()
    assert (at_once["state"], at_once["result"], at_once["workerId"]) == ("completed", {"n": [1, 2]}, "w1")
    await past.relayed()
    async with asyncio.timeout(10):
        while (later := (await worker.get(path)).json()).get("state") != "completed":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert {key: later[key] for key in at_once} == at_once


async def test_a_dead_run_shows_its_reason(worker: Caller, owner: Owner) -> None:
    [run] = await lease(worker, owner)
    await worker.post(f"/v1/runs/{run['runId']}/fail", {"leaseToken": 1, "error": "no", "permanent": True})
    shown = (await worker.get(f"/v1/runs/{run['runId']}")).json()
    assert (shown["state"], shown["reason"], shown["attempt"]) == ("dead", "no", 1)


async def test_history_answers_queries_of_its_own_tenant_only(
    worker: Caller, owner: Owner, operator: Caller, past: Past, callers: Callers
) -> None:
    [run] = await lease(worker, owner)
    await worker.post(f"/v1/runs/{run['runId']}/complete", {"leaseToken": 1})
    await past.relayed()
    query = {"sql": "SELECT run_id, state FROM runs WHERE state = 'completed'"}
    async with asyncio.timeout(10):
        while not (answer := (await operator.post("/v1/query", query)).json())["rows"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert answer["rows"] == [[run["runId"], "completed"]]
    assert [column["name"] for column in answer["columns"]] == ["run_id", "state"]
    assert answer["truncated"] is False
    stranger = await callers("operator", tenant="other")
    assert (await stranger.post("/v1/query", query)).json()["rows"] == []


async def test_a_wrong_query_is_refused_by_its_field(operator: Caller, callers: Callers) -> None:
    for body, field in (
        ({"sql": "SELECT nothing FROM runs"}, "sql"),
        ({"sql": "DROP TABLE runs"}, "sql"),
        ({"sql": "SELECT 1", "limit": 10_001}, "limit"),
        ({"limit": 5}, "sql"),
    ):
        response = await operator.post("/v1/query", body)
        assert (response.status_code, response.json()["field"]) == (422, field)
        assert response.headers["content-type"] == "application/problem+json"
    narrow = await callers("operator", queues=["mail"])
    assert (await narrow.post("/v1/query", {"sql": "SELECT 1"})).status_code == 403


async def test_readiness_sees_the_history(worker: Caller) -> None:
    assert (await worker.get("/readyz")).json()["history"] == "ok"
