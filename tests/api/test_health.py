"""What machines watch: liveness, readiness, metrics. None of it needs a token."""

from __future__ import annotations

import asyncio
import dataclasses
import re

import httpx

from api.app import Api, ApiSettings
from api.metrics import MEASURES, ApiMetrics, Distribution
from ledger.shards import Shards
from tests.api.conftest import Caller
from tests.api.owner import Owner


def anonymous(api: Api) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(api.app()), base_url="http://api")


async def test_health_and_readiness_need_no_token(api: Api) -> None:
    assert await asyncio.to_thread(api.hints.positioned.wait, 10)
    async with anonymous(api) as client:
        assert (await client.get("/healthz")).status_code == 200
        ready = await client.get("/readyz")
    assert ready.status_code == 200  # without a history dispatch goes on
    assert ready.json() == {"state": "ready", "ledger": "ok", "kafka": "ok", "history": "away"}


async def test_a_process_that_does_not_hear_hints_yet_is_not_ready_for_a_while(
    shards: Shards, settings: ApiSettings
) -> None:
    async with anonymous(Api(shards, settings)) as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["state"]) == (503, "starting")
    async with anonymous(Api(shards, dataclasses.replace(settings, hints_within_s=0))) as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["state"]) == (200, "ready")


async def test_a_process_that_is_about_to_stop_is_not_ready_and_serves_on(api: Api, worker: Caller) -> None:
    api.leave()
    async with anonymous(api) as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["state"]) == (503, "leaving")
        assert (await client.get("/healthz")).status_code == 200
    assert await worker.lease() == []


async def test_metrics_count_answers_by_route_and_status(api: Api, worker: Caller, owner: Owner) -> None:
    await owner.make_due(2)
    runs = await worker.lease()
    for run in [*runs, runs[0]]:
        await worker.post(f"/v1/runs/{run['runId']}/complete", {"leaseToken": run["leaseToken"]})
    await worker.post("/v1/runs/complete", {})
    async with anonymous(api) as client:
        text = (await client.get("/metrics")).text
    assert 'fencepost_api_requests_total{route="POST /v1/runs/{id}/complete",status="200"} 3.0' in text
    assert 'fencepost_api_requests_total{route="POST /v1/runs/complete",status="422"} 1.0' in text
    assert 'fencepost_api_request_ms_count{route="POST /v1/queues/{queue}/lease"} 1.0' in text
    assert 'fencepost_api_commit_batch_runs_sum{kind="complete"} 3.0' in text
    assert "fencepost_api_lease_batch_runs_sum 2.0" in text


def test_every_measure_is_exported_under_its_name_with_its_help() -> None:
    text = ApiMetrics().text().decode()
    for measure in MEASURES:
        assert re.search(
            rf"^# HELP fencepost_api_{measure.name}(_total)? {re.escape(measure.help)}$", text, re.MULTILINE
        )


def test_every_measure_is_an_attribute_and_every_attribute_a_measure() -> None:
    assert set(ApiMetrics.__annotations__) == {measure.name for measure in MEASURES}


def test_a_distribution_counts_up_to_and_including_its_bounds() -> None:
    distribution = Distribution((1.0, 10.0))
    for value in (0.5, 1.0, 1.5, 10.0, 11.0):
        distribution.observe(value)
    assert distribution.buckets() == [("1.0", 2.0), ("10.0", 4.0), ("+Inf", 5.0)]
    assert distribution.total == 24.0
