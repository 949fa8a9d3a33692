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
