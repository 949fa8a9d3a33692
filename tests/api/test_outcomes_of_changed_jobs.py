"""Failures of runs whose job was paused or deleted while a worker had them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.connection import Pool
from ledger.fence import owner_transaction
from ledger.jobs import delete_jobs, pause_jobs
from schemas.ids import partition_of_run
from tests.api.conftest import Caller
from tests.api.owner import Owner


@pytest_asyncio.fixture
async def run(worker: Caller, owner: Owner) -> dict[str, Any]:
    """A leased run."""
    await owner.make_due()
    [run] = await worker.lease()
    return run


async def change_job(pool: Pool, owner: Owner, run: dict[str, Any], change: str) -> None:
    async with owner_transaction(pool, owner.fences[partition_of_run(UUID(run["runId"]))]) as tx:
        await {"pause": pause_jobs, "delete": delete_jobs}[change](tx, [UUID(run["jobId"])])


@pytest.mark.parametrize(("change", "outcome"), [("pause", "held"), ("delete", "cancelled")])
async def test_a_failure_tells_what_became_of_the_run_and_tells_it_again(
    worker: Caller, owner: Owner, run: dict[str, Any], ledger_pool: Pool, change: str, outcome: str
) -> None:
    await change_job(ledger_pool, owner, run, change)
    failure = {"leaseToken": run["leaseToken"], "error": "boom"}
    for _ in range(2):
        response = await worker.post(f"/v1/runs/{run['runId']}/fail", failure)
        assert (response.status_code, response.json()) == (200, {"outcome": outcome})
    batch = await worker.post("/v1/runs/fail", {"runs": [{"runId": run["runId"], **failure}]})
    assert batch.json()["results"] == [{"runId": run["runId"], "status": 200, "outcome": outcome}]


async def test_a_held_failure_with_another_error_was_not_the_one_accepted(
    worker: Caller, owner: Owner, run: dict[str, Any], ledger_pool: Pool
) -> None:
    await change_job(ledger_pool, owner, run, "pause")
    for error, status in (("boom", 200), ("another", 409)):
        failure = {"leaseToken": run["leaseToken"], "error": error}
        response = await worker.post(f"/v1/runs/{run['runId']}/fail", failure)
        assert response.status_code == status


@pytest.mark.parametrize("change", ["pause", "delete"])
async def test_a_run_can_still_be_completed(
    worker: Caller, owner: Owner, run: dict[str, Any], ledger_pool: Pool, change: str
) -> None:
    await change_job(ledger_pool, owner, run, change)
    response = await worker.post(f"/v1/runs/{run['runId']}/complete", {"leaseToken": run["leaseToken"]})
    assert response.status_code == 200


async def test_a_run_that_was_given_back_to_its_deleted_job_is_shown_as_cancelled(
    worker: Caller, owner: Owner, run: dict[str, Any], ledger_pool: Pool
) -> None:
    await change_job(ledger_pool, owner, run, "delete")
    response = await worker.post(f"/v1/runs/{run['runId']}/release", {"leaseToken": run["leaseToken"]})
    assert response.status_code == 200
    shown = (await worker.get(f"/v1/runs/{run['runId']}")).json()
    assert (shown["state"], shown["reason"]) == ("cancelled", "deleted")
