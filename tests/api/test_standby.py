"""The API on a ledger with a synchronous standby: it tells nobody of what the standby might not have."""

from __future__ import annotations

import asyncio

import pytest

from connectors.stack import PostgresPair
from ledger import fence
from tests.api.conftest import Caller
from tests.api.owner import Owner
from tests.pair_fixtures import frozen, waiting_commits
from tests.streams.waiting import until

WITHIN_S = 15.0


@pytest.fixture
def ledger_dsn(pair_dsn: str) -> str:
    """What this module's API is on."""
    return pair_dsn


async def test_while_the_standby_stands_still_outcomes_answer_503_and_later_count_once(
    worker: Caller, owner: Owner, pair: PostgresPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "API_SILENCE_S", 1.0)
    [run_id] = await owner.make_due()
    [run] = await worker.lease(waitSeconds=5)
    path, body = f"/v1/runs/{run_id}/complete", {"leaseToken": run["leaseToken"]}
    with frozen(pair.standby):
        completing = asyncio.create_task(worker.post(path, body))
        await waiting_commits(pair)
        answers = [await completing, await worker.post(path, body)]
        assert [answer.status_code for answer in answers] == [503, 503]
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)

    async def is_completed() -> bool:
        return (await worker.post(path, body)).status_code == 200

    await until(is_completed)


async def test_workers_go_on_after_the_primary_was_killed_and_the_standby_promoted(
    worker: Caller, owner: Owner, pair: PostgresPair
) -> None:
    [run_id] = await owner.make_due()
    [run] = await worker.lease(waitSeconds=5)
    await asyncio.to_thread(pair.primary.kill)
    assert (await worker.post(f"/v1/runs/{run_id}/heartbeat", {"leaseToken": run["leaseToken"]})).status_code == 503
    await asyncio.to_thread(pair.promote)

    async def is_completed() -> bool:
        answer = await worker.post(f"/v1/runs/{run_id}/complete", {"leaseToken": run["leaseToken"]})
        return answer.status_code == 200

    await until(is_completed, deadline_s=WITHIN_S)
