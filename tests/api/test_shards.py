"""The API on two shards: what spans them, what is merged, and what goes on while one of them is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import pytest_asyncio

from api.app import Api
from ledger.connection import Pool, session
from ledger.partitions import list_partitions
from ledger.queue_settings import read_queue_settings
from ledger.runs import read_run
from ledger.shards import Shards, open_shards
from schemas.ids import partition_of_run
from tests.api.conftest import Caller
from tests.api.owner import Owner
from tests.ledger_fixtures import Database, all_back

HOURLY = {"queue": "mail", "schedule": {"everySeconds": 3600}}


@pytest_asyncio.fixture
async def shards(two_ledgers: list[Database]) -> AsyncIterator[Shards]:
    async with open_shards(two_ledgers[0].dsn, size=8) as shards:
        await shards.ask_all(list_partitions)
        yield shards


@pytest.fixture
def ledger_pool(shards: Shards) -> Pool:
    """Home: where tokens are."""
    return shards.home


@pytest.fixture
def other(two_ledgers: list[Database]) -> Database:
    return two_ledgers[1]


@pytest_asyncio.fixture
async def applying(owner: Owner) -> AsyncIterator[Owner]:
    async with owner.applying_commands():
        yield owner


def shard_of(run_id: str | UUID) -> int:
    return partition_of_run(UUID(str(run_id))) % 2


async def mixed(owner: Owner, fewest: int = 3) -> list[UUID]:
    """Due runs, at least so many of each shard."""
    made: list[UUID] = []
    while min(sum(shard_of(run_id) == shard for run_id in made) for shard in (0, 1)) < fewest:
        made += await owner.make_due()
    return made


async def run_of(shards: Shards, run_id: UUID) -> Any:
    async with session(shards.of_run(run_id)) as conn:
        return await read_run(conn, run_id)


async def test_one_call_leases_runs_of_both_shards_in_due_order(
    worker: Caller, owner: Owner, api: Api, shards: Shards
) -> None:
    made = await mixed(owner)
    api.index.add(("acme", "mail"), owner.ready(made))
    runs = await worker.lease(max=len(made))
    assert [run["runId"] for run in runs] == [str(run_id) for run_id in made]
    for run_id in made:
        assert (await run_of(shards, run_id)).state == "leased"


async def test_runs_of_both_shards_are_found_without_hints(worker: Caller, owner: Owner) -> None:
    made = await mixed(owner)
    got: list[str] = []
    async with asyncio.timeout(20):
        while len(got) < len(made):
            got += [run["runId"] for run in await worker.lease(max=len(made), waitSeconds=5)]
    assert sorted(got) == sorted(map(str, made))


async def test_a_repeated_lease_call_gets_its_runs_of_both_shards_again(worker: Caller, owner: Owner, api: Api) -> None:
    made = await mixed(owner)
    api.index.add(("acme", "mail"), owner.ready(made))
    request_id = str(uuid4())
    first, again = [await worker.lease(max=len(made), requestId=request_id) for _ in range(2)]
    assert {run["runId"]: run["leaseToken"] for run in first} == {run["runId"]: run["leaseToken"] for run in again}
    assert len(first) == len(made)


async def test_a_batch_of_outcomes_spans_shards(worker: Caller, owner: Owner, api: Api, shards: Shards) -> None:
    made = await mixed(owner)
    api.index.add(("acme", "mail"), owner.ready(made))
    runs = await worker.lease(max=len(made))
    asks = [{"runId": run["runId"], "leaseToken": run["leaseToken"]} for run in runs]
    for kind in ("heartbeat", "complete"):
        answer = (await worker.post(f"/v1/runs/{kind}", {"runs": asks})).json()
        assert [item["runId"] for item in answer["results"]] == [str(run_id) for run_id in made]
        assert {item["status"] for item in answer["results"]} == {200}
    assert [await run_of(shards, run_id) for run_id in made] == [None] * len(made)


async def test_while_a_shard_is_away_the_other_s_runs_are_leased_and_completed_and_later_its_own(
    worker: Caller, owner: Owner, api: Api, shards: Shards, other: Database
) -> None:
    made = await mixed(owner)
    here, there = ([str(run_id) for run_id in made if shard_of(run_id) == shard] for shard in (0, 1))
    api.index.add(("acme", "mail"), owner.ready(made))
    other.go_away()
    runs: list[dict[str, Any]] = []
    async with asyncio.timeout(30):
        while len(runs) < len(here):
            runs += await worker.lease(max=1, waitSeconds=5)
    assert sorted(run["runId"] for run in runs) == sorted(here)
    asks = [{"runId": run["runId"], "leaseToken": run["leaseToken"]} for run in runs]
    lost = {"runId": there[0], "leaseToken": 1}
    answer = (await worker.post("/v1/runs/complete", {"runs": [*asks, lost]})).json()
    assert [item["status"] for item in answer["results"]] == [200] * len(here) + [503]
    assert (await worker.post(f"/v1/runs/{there[0]}/complete", {"leaseToken": 1})).status_code == 503

    other.come_back()
    await all_back(shards)
    runs = []
    async with asyncio.timeout(30):
        while len(runs) < len(there):
            runs += await worker.lease(max=10, waitSeconds=5)
    assert sorted(run["runId"] for run in runs) == sorted(there)


@pytest.mark.usefixtures("owner")
async def test_machines_and_operators_are_told_which_shard_is_away(
    api: Api, operator: Caller, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.health.PROBE_EVERY_S", 0.0)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api.app()), base_url="http://api") as client:
        assert (await client.get("/readyz")).json()["ledger"] == "ok"
        found = (await operator.get("/v1/doctor")).json()["findings"]
        assert next(each for each in found if each["check"] == "ledger")["detail"] == "all 2 shards answer"
        assert "each of 16 partitions" in next(each for each in found if each["check"] == "owners")["detail"]
        other.go_away()
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["ledger"]) == (200, "away: shard 1")
    found = (await operator.get("/v1/doctor")).json()["findings"]
    ledger = next(each for each in found if each["check"] == "ledger")
    assert (ledger["status"], ledger["detail"].startswith("shard 1: ")) == ("fail", True)
    assert "each of 8 partitions" in next(each for each in found if each["check"] == "owners")["detail"]
    other.come_back()


@pytest.mark.usefixtures("applying")
async def test_jobs_are_created_changed_and_found_on_both_shards(
    producer: Caller, operator: Caller, shards: Shards
) -> None:
    jobs: set[int] = set()
    for number in range(8):
        created = await producer.post("/v1/jobs", HOURLY, Idempotency_Key=f"key {number}")
        assert created.status_code == 201, created.text
        job_id = created.json()["jobId"]
        jobs.add(shards.number_of(shards.partition_of_job(UUID(job_id))))
        again = await producer.post("/v1/jobs", HOURLY, Idempotency_Key=f"key {number}")
        assert (again.status_code, again.json()["jobId"]) == (201, job_id)
        edited = await producer.put(f"/v1/jobs/{job_id}", HOURLY | {"maxAttempts": 3}, Idempotency_Key=f"key {number}")
        assert edited.status_code == 200, edited.text
        assert (await operator.get(f"/v1/jobs/{job_id}")).json()["maxAttempts"] == 3
        triggered = await producer.post(f"/v1/jobs/{job_id}/trigger", {})
        assert (await operator.get(f"/v1/runs/{triggered.json()['runId']}")).json()["state"] == "pending"
    assert jobs == {0, 1}


async def pages(caller: Caller, path: str, of: str) -> list[dict[str, Any]]:
    """All pages of a list, three at a time."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = (await caller.get(f"{path}limit=3{after}")).json()
        found += page[of]
        assert len(page[of]) <= 3
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


async def test_lists_are_merged_in_one_order_page_by_page(
    producer: Caller, operator: Caller, worker: Caller, applying: Owner, api: Api
) -> None:
    created = []
    for number in range(8):
        body = HOURLY | {"declaredAs": f"billing/job-{number}"}
        created.append((await producer.post("/v1/jobs", body)).json()["jobId"])
    assert [each["jobId"] for each in await pages(operator, "/v1/jobs?declaredSet=billing&", "jobs")] == sorted(created)
    assert [each["jobId"] for each in await pages(operator, "/v1/schedules?", "schedules")] == sorted(created)

    made = await mixed(applying, fewest=4)
    api.index.add(("acme", "mail"), applying.ready(made))
    died = []
    for run in await worker.lease(max=len(made)):
        failed = {"leaseToken": run["leaseToken"], "error": "no", "permanent": True}
        assert (await worker.post(f"/v1/runs/{run['runId']}/fail", failed)).status_code == 200
        died.append(run["runId"])
    assert [each["runId"] for each in await pages(operator, "/v1/dead?", "runs")] == died
    replayed = (await operator.post("/v1/dead/replay", {"limit": 1000})).json()
    assert (replayed["matched"], replayed["replayed"]) == (len(died), len(died))


async def test_settings_and_pauses_are_on_every_shard(
    operator: Caller, worker: Caller, owner: Owner, api: Api, shards: Shards
) -> None:
    made = await mixed(owner)
    view = (await operator.patch("/v1/queues/mail", {"ratePerSecond": 10})).json()
    assert (view["ratePerSecond"], view["waiting"]["normal"]) == (10, len(made))
    found = await shards.ask_all(lambda conn: read_queue_settings(conn, "acme", "mail"))
    assert [settings.rate_per_s for settings in found] == [10, 10]
    assert (await operator.post("/v1/queues/mail/pause", {})).json()["paused"] is True
    api.index.add(("acme", "mail"), owner.ready(made))
    assert await worker.lease(max=len(made)) == []
    assert (await operator.post("/v1/queues/mail/resume", {})).json()["paused"] is False
    api.index.add(("acme", "mail"), owner.ready(made))
    assert len(await worker.lease(max=len(made))) == len(made)


async def test_a_pause_that_does_not_reach_every_shard_answers_503_and_the_same_call_completes_it(
    operator: Caller, shards: Shards, other: Database
) -> None:
    await operator.get("/v1/tenant")  # the token is remembered
    other.go_away()
    refused = await operator.post("/v1/tenant/pause", {})
    assert (refused.status_code, "shard 1 is away" in refused.json()["detail"]) == (503, True)
    assert (await operator.get("/v1/tenant")).json()["paused"] is True
    other.come_back()
    await all_back(shards)
    assert (await operator.post("/v1/tenant/pause", {})).status_code == 200
