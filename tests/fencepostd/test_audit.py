"""The audit trail of a whole installation: who changed what, from HTTP by way of Kafka to the history's SQL."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from connectors.stack import KafkaBroker
from tests.fencepostd.installation import installed

SQL = "SELECT actor, action, subject, detail FROM audit WHERE action <> 'token_created' ORDER BY happened_at"


async def history(http: httpx.AsyncClient, count: int) -> list[Any]:
    """The rows, once there are so many."""
    async with asyncio.timeout(60):
        while True:
            answer = await http.post("/v1/query", json={"sql": SQL})
            if answer.status_code == 200 and len(rows := answer.json()["rows"]) >= count:
                return list(rows)
            await asyncio.sleep(0.1)


async def there(http: httpx.AsyncClient, path: str) -> None:
    """Return once it is: who creates while the owners are just coming is answered before it is applied."""
    async with asyncio.timeout(60):
        while (await http.get(path)).status_code == 404:  # noqa: ASYNC110 - one can but ask
            await asyncio.sleep(0.1)


@pytest.mark.apache_kafka(reason="the group's coordinator hands partitions over within seconds only there")
async def test_the_history_tells_by_whose_token_jobs_and_queues_were_changed(
    kafka_broker: KafkaBroker, empty_ledger_dsn: str, tmp_path: Path
) -> None:
    async with installed(kafka_broker.bootstrap, [empty_ledger_dsn], tmp_path) as installation:
        actor = installation.token.split("_")[1]
        headers = {"authorization": f"Bearer {installation.token}"}
        async with httpx.AsyncClient(base_url=installation.url, headers=headers, timeout=60) as http:
            job = {"queue": "mail", "schedule": {"runAt": "2100-01-01T00:00:00Z"}}
            path = (await http.post("/v1/jobs", json=job)).headers["location"]
            await there(http, path)
            await http.post(f"{path}/pause")
            await http.post("/v1/queues/mail/pause")
            await http.patch("/v1/queues/mail", json={"ratePerSecond": 5})
            told = await history(http, 4)
    job_id = path.rpartition("/")[2]
    assert {tuple(each) for each in told} == {
        (actor, "job_created", job_id, None),
        (actor, "job_paused", job_id, None),
        (actor, "queue_paused", "mail", None),
        (actor, "queue_changed", "mail", "ratePerSecond: 5"),
    }
    assert len(told) == 4
