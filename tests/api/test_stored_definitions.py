"""Jobs whose stored definition a newer server has made: shown as they stand, no fault of ours, nor of the call."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ledger.connection import Pool, session
from tests.api.conftest import Caller
from tests.api.owner import Owner

UNKNOWN_VALUES = {"catchUp": "newest", "overlap": "queue", "retryBackoff": "cubic", "catchUpLimit": 10**9, "shape": {}}
UNKNOWN_SCHEDULE = {"schedule": {"moonPhase": "full"}}
BACKFILL = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
AT = "2026-01-01T00:00:00Z"


async def stored(owner: Owner, pool: Pool, fields: dict[str, Any]) -> str:
    """A job's id, with these fields in its definition."""
    [run_id] = await owner.make_due()
    async with session(pool) as conn:
        row = await (
            await conn.execute(
                "SELECT job_id, definition FROM jobs JOIN runs USING (job_id) WHERE run_id = %s", (run_id,)
            )
        ).fetchone()
        assert row is not None
        definition = msgspec.json.encode(msgspec.json.decode(row[1]) | fields).decode()
        await conn.execute("UPDATE jobs SET definition = %s WHERE job_id = %s", (definition, row[0]))
    return str(row[0])


async def test_values_that_this_server_does_not_know_are_shown_as_they_stand(
    owner: Owner, ledger_pool: Pool, operator: Caller
) -> None:
    job_id = await stored(owner, ledger_pool, UNKNOWN_VALUES | UNKNOWN_SCHEDULE | {"declaredAs": "set/name"})
    for shown in (
        (await operator.get(f"/v1/jobs/{job_id}")).json(),
        (await operator.get("/v1/jobs?declaredSet=set")).json()["jobs"][0],
    ):
        assert (shown["jobId"], shown["schedule"], shown["catchUp"]) == (job_id, {"moonPhase": "full"}, "newest")


@pytest.mark.parametrize("fields", [{"schedule": 7}, {"name": []}])
async def test_a_definition_that_cannot_be_told_is_a_conflict_that_names_job_and_remedy(
    owner: Owner, ledger_pool: Pool, operator: Caller, fields: dict[str, Any]
) -> None:
    job_id = await stored(owner, ledger_pool, fields | {"declaredAs": "set/name"})
    for path in (f"/v1/jobs/{job_id}", "/v1/jobs?declaredSet=set"):
        response = await operator.get(path)
        assert response.status_code == 409, response.text
        assert job_id in response.json()["detail"]
        assert "newest server" in response.json()["detail"]


async def test_a_schedule_that_this_server_cannot_read_has_no_occurrences_to_run_again(
    owner: Owner, ledger_pool: Pool, operator: Caller
) -> None:
    """It is no fault in the call, as a 422 that names the body's schedule would say."""
    job_id = await stored(owner, ledger_pool, UNKNOWN_SCHEDULE)
    response = await operator.post(f"/v1/jobs/{job_id}/backfill", BACKFILL)
    assert response.status_code == 409, response.text
    assert job_id in response.json()["detail"]
