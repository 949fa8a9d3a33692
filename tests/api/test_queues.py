"""Queues and the tenant: what waits, and that nothing is leased while they are paused."""

from __future__ import annotations

import asyncio

import pytest

from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner

QUEUE, TENANT = "/v1/queues/mail", "/v1/tenant"


async def test_a_queue_tells_what_waits_in_its_lanes(operator: Caller, owner: Owner) -> None:
    await owner.make_due(3)
    await owner.make_due(2, lane=0)
    await owner.make_due(1, queue="sms")
    await owner.make_due(1, due_in_s=3600)
    assert (await operator.get(QUEUE)).json() == {
        "queue": "mail", "paused": False, "pausedAt": None, "tenantPaused": False, "ratePerSecond": None,
        "maxLiveRuns": None, "maxLiveRunsPerKey": None, "liveRuns": None,
        "waiting": {"high": 2, "normal": 3, "low": 0},
    }  # fmt: skip


async def test_nothing_is_leased_of_a_paused_queue_until_it_is_resumed(
    operator: Caller, worker: Caller, owner: Owner
) -> None:
    [run_id] = await owner.make_due()
    [other] = await owner.make_due(queue="sms")
    paused = (await operator.post(f"{QUEUE}/pause")).json()
    assert (paused["paused"], paused["waiting"]["normal"]) == (True, 1)
    assert paused["pausedAt"].endswith("Z")
    assert (await operator.post(f"{QUEUE}/pause")).json() == paused
    assert await worker.lease() == []
    assert [run["runId"] for run in await worker.lease("sms")] == [str(other)]
    resumed = (await operator.post(f"{QUEUE}/resume")).json()
    assert (resumed["paused"], resumed["pausedAt"]) == (False, None)
    assert [run["runId"] for run in await worker.lease(waitSeconds=5)] == [str(run_id)]


async def test_who_waits_on_a_queue_gets_its_runs_when_it_is_resumed(
    operator: Caller, worker: Caller, owner: Owner
) -> None:
    await operator.post(f"{QUEUE}/pause")
    [run_id] = await owner.make_due()
    poll = asyncio.create_task(worker.lease(waitSeconds=20))
    assert (await operator.get(QUEUE)).json()["waiting"]["normal"] == 1
    assert (await operator.post(f"{QUEUE}/resume")).status_code == 200
    async with asyncio.timeout(10):
        assert [run["runId"] for run in await poll] == [str(run_id)]


async def test_a_leased_run_of_a_paused_queue_goes_on(operator: Caller, worker: Caller, owner: Owner) -> None:
    await owner.make_due()
    [run] = await worker.lease()
    await operator.post(f"{QUEUE}/pause")
    for verb in ("heartbeat", "complete"):
        response = await worker.post(f"/v1/runs/{run['runId']}/{verb}", {"leaseToken": run["leaseToken"]})
        assert response.status_code == 200


async def test_a_paused_tenant_leases_nothing_and_others_do(
    operator: Caller, worker: Caller, callers: Callers, owner: Owner
) -> None:
    await owner.make_due()
    await owner.make_due(tenant="other")
    paused = (await operator.post(f"{TENANT}/pause")).json()
    assert (paused["tenant"], paused["paused"], paused["pausedQueues"]) == ("acme", True, [])
    assert (await operator.get(QUEUE)).json()["tenantPaused"] is True
    assert await worker.lease() == []
    assert len(await (await callers("worker", tenant="other")).lease()) == 1
    await operator.post(f"{QUEUE}/pause")
    resumed = (await operator.post(f"{TENANT}/resume")).json()
    assert (resumed["paused"], resumed["pausedAt"], resumed["pausedQueues"]) == (False, None, ["mail"])
    assert await worker.lease() == []
    await operator.post(f"{QUEUE}/resume")
    assert len(await worker.lease(waitSeconds=5)) == 1
    assert (await operator.get(TENANT)).json() == resumed | {"pausedQueues": []}


async def test_a_queues_rate_is_set_and_cleared_and_shown(operator: Caller, callers: Callers) -> None:
    assert (await operator.patch(QUEUE, {"ratePerSecond": 0.5})).json()["ratePerSecond"] == 0.5
    assert (await operator.get(QUEUE)).json()["ratePerSecond"] == 0.5
    assert (await operator.get("/v1/queues/sms")).json()["ratePerSecond"] is None
    other_tenant = await callers("operator", tenant="globex")
    assert (await other_tenant.get(QUEUE)).json()["ratePerSecond"] is None
    assert (await operator.patch(QUEUE, {"ratePerSecond": 1_000_000})).json()["ratePerSecond"] == 1_000_000
    assert (await operator.patch(QUEUE, {})).json()["ratePerSecond"] == 1_000_000
    assert (await operator.patch(QUEUE, {"ratePerSecond": None})).json()["ratePerSecond"] is None


@pytest.mark.parametrize("rate", [0, -1, 1_000_000.5, "50", True, [1]])
async def test_a_rate_that_cannot_be_is_refused_by_its_field(operator: Caller, rate: object) -> None:
    response = await operator.patch(QUEUE, {"ratePerSecond": rate})
    assert (response.status_code, response.json()["field"]) == (422, "ratePerSecond")
    response = await operator.patch(QUEUE, {"ratePerMinute": 1})
    assert (response.status_code, response.json()["field"]) == (422, "ratePerMinute")


async def test_only_operators_set_a_rate_and_only_of_their_queues(callers: Callers) -> None:
    for role in ("producer", "worker"):
        assert (await (await callers(role)).patch(QUEUE, {"ratePerSecond": 1})).status_code == 403
    narrow = await callers("operator", queues=["sms"])
    assert (await narrow.patch(QUEUE, {"ratePerSecond": 1})).json()["field"] == "queue"
    assert (await narrow.patch("/v1/queues/sms", {"ratePerSecond": 1})).status_code == 200


async def test_a_token_of_some_queues_pauses_those_and_not_the_tenant(callers: Callers) -> None:
    narrow = await callers("operator", queues=["sms"])
    assert (await narrow.post("/v1/queues/sms/pause")).status_code == 200
    for response in (
        await narrow.post(f"{QUEUE}/pause"),
        await narrow.get(QUEUE),
        await narrow.post(f"{TENANT}/pause"),
        await narrow.post(f"{TENANT}/resume"),
    ):
        assert (response.status_code, response.json()["field"]) == (403, "queue")


@pytest.mark.parametrize("role", ["producer", "worker"])
async def test_only_operators_pause(callers: Callers, role: str) -> None:
    caller = await callers(role)  # type: ignore[arg-type]
    for path in (f"{QUEUE}/pause", f"{QUEUE}/resume", f"{TENANT}/pause", f"{TENANT}/resume"):
        assert (await caller.post(path)).status_code == 403
    assert (await (await callers("admin")).post(f"{QUEUE}/pause")).status_code == 200


async def test_a_queue_that_cannot_be_is_named(operator: Caller) -> None:
    for path in ("/v1/queues/a%20b", "/v1/queues/a%20b/pause"):
        response = await (operator.get(path) if path.endswith("b") else operator.post(path))
        assert (response.status_code, response.json()["field"]) == (422, "queue")
    assert (await operator.post(f"{QUEUE}/pause", {"for": "ever"})).json()["field"] == "for"
