"""A one-off's end, as its callers see it: it runs, is kept for a while, and then there is no such job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from api.app import ApiSettings
from ledger.connection import Pool, session
from streams.ledger_upkeep import forget_old_jobs, keep_ledger_tidy
from tests.api.conftest import Caller, Past, with_history
from tests.api.owner import Owner
from tests.api.test_jobs import create

ONCE = {"queue": "mail", "schedule": {"delaySeconds": 0}, "payload": "hi"}
A_MONTH_PASSES = """
UPDATE jobs SET created_at = created_at - interval '31 days', updated_at = updated_at - interval '31 days',
                next_fire_at = next_fire_at - interval '31 days';
UPDATE applied_commands SET applied_at = applied_at - interval '31 days';
"""
ROWS = "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM applied_commands)"


@pytest.fixture
def settings(settings: ApiSettings, past: Past) -> ApiSettings:
    return with_history(settings, past)


@pytest_asyncio.fixture
async def applying(owner: Owner) -> AsyncIterator[Owner]:
    """An owner who applies commands as they come."""
    async with owner.applying_commands():
        yield owner


async def run_once(worker: Caller, job: dict[str, Any]) -> str:
    """Execute the one run that the job has; returns its id."""
    [run] = await worker.lease(waitSeconds=10)
    assert run["jobId"] == job["jobId"]
    lease = {"leaseToken": run["leaseToken"]}
    assert (await worker.post(f"/v1/runs/{run['runId']}/complete", lease)).status_code == 200
    return str(run["runId"])


async def upkeep_has(dsn: str, pool: Pool, left: tuple[int, int]) -> None:
    """Let upkeep work until that many jobs and outcomes are left."""
    stop = asyncio.Event()
    works = [keep_ledger_tidy(dsn, stop), forget_old_jobs(dsn, stop, timedelta(days=30))]
    tasks = [asyncio.create_task(work) for work in works]
    async with asyncio.timeout(20):
        while True:
            async with session(pool) as conn:
                if await (await conn.execute(ROWS)).fetchone() == left:
                    break
            await asyncio.sleep(0.01)
    stop.set()
    await asyncio.gather(*tasks)


@pytest.mark.usefixtures("applying")
async def test_a_one_off_runs_is_forgotten_in_time_and_its_key_makes_another_job(
    producer: Caller, operator: Caller, worker: Caller, ledger_dsn: str, ledger_pool: Pool, past: Past
) -> None:
    await past.hears()
    job = await create(producer, ONCE, idempotency_key="order-7")
    path = f"/v1/jobs/{job['jobId']}"
    run_id = await run_once(worker, job)
    await past.relayed()
    assert await create(producer, ONCE, idempotency_key="order-7") == job
    async with session(ledger_pool) as conn:
        await conn.execute(A_MONTH_PASSES)
    await upkeep_has(ledger_dsn, ledger_pool, (0, 0))

    assert (await producer.get(path)).status_code == 404
    for verb in ("trigger", "pause", "resume"):
        assert (await operator.post(f"{path}/{verb}")).status_code == 404, verb
    assert (await producer.put(path, ONCE)).status_code == 404
    assert (await operator.delete(path)).status_code == 404
    why = (await producer.get(f"/v1/runs/{run_id}/why")).json()
    assert (why["state"], why["jobId"], why["incomplete"]) == ("completed", job["jobId"], False)

    again = await create(producer, ONCE | {"payload": "other"}, idempotency_key="order-7")
    assert again["jobId"] == job["jobId"]
    assert await run_once(worker, again) != run_id
