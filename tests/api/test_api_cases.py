"""The public cases (tests/cases.py) about the API and about fairness, a test each, by its name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from api.app import Api, ApiSettings
from ledger.connection import Pool, session
from ledger.shards import Shards
from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner
from tests.api.served import serving
from tests.cases import given, spelled

LATER = {"queue": "mail", "schedule": {"runAt": "2040-05-06T07:08:09.123456Z"}}
A_TURN_OF_LANES = 10  # of ten runs that a queue hands out seven are of lane high, two normal, one low


@pytest_asyncio.fixture
async def applying(owner: Owner) -> AsyncIterator[Owner]:
    async with owner.applying_commands():
        yield owner


async def jobs_stored(pool: Pool) -> int:
    async with session(pool) as conn:
        row = await (await conn.execute("SELECT count(*) FROM jobs")).fetchone()
    assert row is not None
    return int(row[0])


def unescaped(described: str) -> str:
    r"""A text of a case, which writes a line break as \n."""
    return described.encode().decode("unicode_escape")


async def refuse_zones_of(case_id: str, producer: Caller, pool: Pool) -> None:
    for name in given(case_id)[0]["zone"]:
        for zone in (name, spelled(name)):
            schedules = [{"cron": "0 9 * * *", "zone": zone}, {"runAt": "2040-01-01T09:00", "zone": zone}]
            for schedule in schedules:
                response = await producer.post("/v1/jobs", LATER | {"schedule": schedule})
                problem = response.json()
                assert (response.status_code, problem["field"]) == (422, "schedule.zone"), schedule
                assert "unknown time zone" in problem["detail"]
    assert await jobs_stored(pool) == 0


@pytest.mark.usefixtures("applying")
async def test_api_001(producer: Caller, ledger_pool: Pool) -> None:
    await refuse_zones_of("api-001", producer, ledger_pool)


@pytest.mark.usefixtures("applying")
async def test_api_002(producer: Caller, ledger_pool: Pool) -> None:
    await refuse_zones_of("api-002", producer, ledger_pool)


@pytest.mark.usefixtures("applying")
async def test_api_008(
    producer: Caller, callers: Callers, shards: Shards, settings: ApiSettings, ledger_pool: Pool
) -> None:
    """Every API reads the instant that the ledger has, also while another process holds the job's row."""
    created = (await producer.post("/v1/jobs", LATER)).json()
    path = f"/v1/jobs/{created['jobId']}"
    other = Api(shards, settings)
    async with other.running(), session(ledger_pool) as conn, conn.transaction():
        await conn.execute("SELECT 1 FROM jobs WHERE job_id = %s FOR UPDATE", (created["jobId"],))
        nodes = [producer, await callers("operator"), await Callers(other, ledger_pool)("producer")]
        told = [(await node.get(path)).json()["nextRunAt"] for node in nodes]
    assert told == [LATER["schedule"]["runAt"]] * 3  # type: ignore[index]
    async with session(ledger_pool) as conn:
        row = await (await conn.execute("SELECT scheduled_for FROM runs")).fetchone()
    assert row is not None
    assert datetime.fromisoformat(told[0]) == row[0] > datetime.now(UTC)


async def test_api_011(shards: Shards, ledger_pool: Pool, settings: ApiSettings, owner: Owner, ledger_dsn: str) -> None:
    """Its attempt counts: attempts are charged when they are leased, since nobody can tell a worker that vanished
    before it had the answer from one that vanished in the middle of the work."""
    [run_id] = await owner.make_due()
    async with serving(shards, ledger_pool, settings) as served:
        gone = await served.raw_lease(waitSeconds=20)  # it is never closed, and nobody reads
        await served.until("fencepost_api_leases_total", 1)
        assert not await owner.expire(run_id)
        async with await psycopg.AsyncConnection.connect(ledger_dsn, autocommit=True) as conn:
            await conn.execute("UPDATE runs SET lease_expires_at = now() - interval '1 second'")
            assert await owner.expire(run_id)
            await conn.execute("UPDATE runs SET due_at = now()")
        [run] = await served.lease(waitSeconds=5)
        assert (run["runId"], run["attempt"], run["leaseToken"]) == (str(run_id), 2, 2)
        gone.close()


@pytest.mark.usefixtures("applying")
async def test_api_015(producer: Caller) -> None:
    """A name is any text of up to 200 characters. It is told as a JSON string, and never a part of a URL."""
    names = given("api-015")[0]["name"]
    for name in (*names, *map(unescaped, names), "\x1b[31m", "ä" * 200):
        created = await producer.post("/v1/jobs", LATER | {"name": name})
        if len(name) > 200:
            assert (created.status_code, created.json()["field"]) == (422, "name")
            continue
        assert created.status_code == 201
        shown = await producer.get(created.headers["location"])
        assert shown.json()["name"] == name
        assert shown.headers["content-type"] == "application/json"
        assert not any(char in shown.text for char in "\n\x1b")


async def test_fai_003(worker: Caller, owner: Owner) -> None:
    """Within one turn of the lanes the lowest has had its share, however many arrive in the highest."""
    [low] = await owner.make_due(lane=2)
    leased: list[dict[str, Any]] = []
    while str(low) not in [run["runId"] for run in leased]:
        await owner.make_due(5, lane=0)
        leased += await worker.lease(max=2)
        assert len(leased) <= A_TURN_OF_LANES
    assert len(leased) > 1


async def test_fai_004(
    api: Api, callers: Callers, producer: Caller, worker: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    """The quota of ours on how many there are is a tenant's cap: what it holds back is creations."""
    [case, expected] = given("fai-004")
    admin, job = await callers("admin"), {"queue": "mail", "schedule": {"delaySeconds": 3600}}
    await owner.make_due(case["running"])
    running = await worker.lease(waitSeconds=15)
    assert len(running) == case["running"]

    async def claims() -> int:
        """New ones, of one try. Whoever has counted or was refused a moment ago does not go by it any more."""
        await owner.caps.read(ledger_pool, 1.0)
        api.commands._full_until.clear()
        return int((await producer.post("/v1/jobs", job)).status_code == 201)

    async with owner.applying_commands():
        answer = await admin.patch("/v1/tenant", {"maxPendingRuns": case["quota_changed_to"]})
        assert answer.json()["maxPendingRuns"] == 2
        killed = 0
        while len(running) >= 2:
            assert await claims() == expected["new_claims_until_running_lt_2"]
            run = running.pop()
            ended = await worker.post(f"/v1/runs/{run['runId']}/complete", {"leaseToken": run["leaseToken"]})
            killed += ended.status_code != 200
        assert killed == expected["killed"]
        assert await claims() == 1


async def test_fai_005(callers: Callers) -> None:
    """Of each limit of a tenant. 0 is refused, too: to pause is a call of its own."""
    admin, unlimited = await callers("admin"), None
    for limit in ("leasesPerSecond", "leaseBurst", "maxPendingRuns"):
        for quota in given("fai-005")[0]["quota"]:
            response = await admin.patch("/v1/tenant", {limit: quota})
            if quota is unlimited:
                assert (response.status_code, response.json()[limit]) == (200, None)
            else:
                assert (response.status_code, response.json()["field"]) == (422, limit), quota
    assert (await admin.post("/v1/tenant/pause")).json()["paused"]


async def test_fai_007(api: Api, callers: Callers, worker: Caller, owner: Owner) -> None:
    """The quota of ours on claims is a tenant's: its tokens are taken before anybody leases."""
    quota = given("fai-007")[0]["lane_quota"]
    await owner.make_due(3 * quota)
    admin = await callers("admin")
    await admin.patch("/v1/tenant", {"leasesPerSecond": 0.001, "leaseBurst": quota})
    await api.quotas.look()
    api.quotas.of("acme").give_back(quota)  # without the hours in which they come
    claims = await asyncio.gather(*(worker.lease(max=quota, waitSeconds=1) for _ in range(10)))
    assert sum(map(len, claims)) == quota
