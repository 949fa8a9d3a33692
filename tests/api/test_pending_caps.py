"""A tenant that has as many runs as it may: its creations by HTTP are answered 429, until there is room."""

from __future__ import annotations

from typing import Any

from api.app import Api
from ledger.connection import Pool
from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner

JOB: dict[str, Any] = {"queue": "mail", "schedule": {"delaySeconds": 3600}}


async def test_a_creation_beyond_the_limit_is_answered_429_and_the_same_call_succeeds_once_there_is_room(
    api: Api, callers: Callers, producer: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    admin, other = await callers("admin"), await callers("producer", tenant="globex")
    assert (await admin.patch("/v1/tenant", {"maxPendingRuns": 2})).json()["maxPendingRuns"] == 2
    await owner.caps.read(ledger_pool, 1.0)
    async with owner.applying_commands():
        for _ in range(2):
            assert (await producer.post("/v1/jobs", JOB)).status_code == 201
        for _ in range(2):  # the second is answered without asking anybody
            refused = await producer.post("/v1/jobs", JOB, Idempotency_Key="mine")
            assert (refused.status_code, refused.json()["status"]) == (429, 429)
            assert 1 <= int(refused.headers["retry-after"]) <= 2
            assert "as many runs" in refused.json()["detail"]
        assert (await other.post("/v1/jobs", JOB)).status_code == 201
        await admin.patch("/v1/tenant", {"maxPendingRuns": 3})
        await owner.caps.read(ledger_pool, 1.0)
        api.commands._full_until.clear()
        created = await producer.post("/v1/jobs", JOB, Idempotency_Key="mine")
        assert created.status_code == 201
        assert (await producer.post("/v1/jobs", JOB, Idempotency_Key="mine")).json() == created.json()


async def test_a_trigger_and_a_backfill_beyond_the_limit_are_answered_429(
    callers: Callers, producer: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    admin, operator = await callers("admin"), await callers("operator")
    async with owner.applying_commands():
        job = {"queue": "mail", "schedule": {"everySeconds": 60, "anchor": "2020-01-01T00:00:00Z"}}
        path = f"/v1/jobs/{(await producer.post('/v1/jobs', job)).json()['jobId']}"
        await admin.patch("/v1/tenant", {"maxPendingRuns": 2})
        await owner.caps.read(ledger_pool, 1.0)
        hours = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z"}
        refused = await operator.post(f"{path}/backfill", hours)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert refused.json()["detail"] == "the tenant has no room for 60 more runs (maxPendingRuns)"
        assert (await operator.post(f"{path}/trigger", {})).status_code == 200
        refused = await operator.post(f"{path}/trigger", {})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert "maxPendingRuns" in refused.json()["detail"]
