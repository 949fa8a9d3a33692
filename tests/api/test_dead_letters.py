"""Dead letters: listed by page and filter, replayed singly and in bulk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import httpx
import pytest
import pytest_asyncio

from ledger.connection import Pool, session
from ledger.runs import read_run
from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner

DEAD, REPLAY = "/v1/dead", "/v1/dead/replay"


@pytest_asyncio.fixture
async def applying(owner: Owner) -> AsyncIterator[Owner]:
    """An owner who applies commands as they come."""
    async with owner.applying_commands():
        yield owner


async def die(owner: Owner, worker: Caller, *errors: str, queue: str = "mail") -> list[str]:
    """Runs that failed for good, one after the other, with these errors."""
    run_ids = []
    for error in errors:
        await owner.make_due(queue=queue, payload='{"n":1}')
        [run] = await worker.lease(queue, waitSeconds=5)
        body = {"leaseToken": run["leaseToken"], "error": error, "permanent": True}
        assert (await worker.post(f"/v1/runs/{run['runId']}/fail", body)).json()["outcome"] == "dead"
        run_ids.append(run["runId"])
    return run_ids


async def listed(operator: Caller, **query: Any) -> list[str]:
    response = await operator.get(f"{DEAD}?{urlencode(query)}")
    assert response.status_code == 200, response.text
    return [run["runId"] for run in response.json()["runs"]]


async def replay(operator: Caller, **body: Any) -> dict[str, Any]:
    response: httpx.Response = await operator.post(REPLAY, body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_dead_runs_are_listed_with_their_reasons_in_the_order_of_their_death(
    operator: Caller, worker: Caller, owner: Owner
) -> None:
    dead = await die(owner, worker, "first", "second")
    answer = (await operator.get(DEAD)).json()
    assert answer["next"] is None
    assert [(run["runId"], run["reason"], run["attempt"], run["maxAttempts"]) for run in answer["runs"]] == [
        (dead[0], "first", 1, 5),
        (dead[1], "second", 1, 5),
    ]
    assert {"jobId", "queue", "lane", "scheduledFor", "diedAt", "workerId"} <= answer["runs"][0].keys()


async def test_pages_hold_each_dead_run_once(operator: Caller, worker: Caller, owner: Owner) -> None:
    dead = await die(owner, worker, *"abcde")
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = (await operator.get(f"{DEAD}?{urlencode({'limit': 2} | after)}")).json()
        seen += [run["runId"] for run in page["runs"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert seen == dead


async def test_filters_narrow_the_list(operator: Caller, worker: Caller, owner: Owner) -> None:
    mail = await die(owner, worker, "Timeout of upstream", "no such user")
    [sms] = await die(owner, worker, "timeout", queue="sms")
    runs = (await operator.get(DEAD)).json()["runs"]
    assert await listed(operator, queue="sms") == [sms]
    assert await listed(operator, reason="TIMEOUT") == [mail[0], sms]
    assert await listed(operator, reason="100%") == []
    assert await listed(operator, jobId=runs[1]["jobId"]) == [mail[1]]
    assert await listed(operator, since=runs[1]["diedAt"]) == [mail[1], sms]
    assert await listed(operator, until=runs[1]["diedAt"]) == [mail[0]]


async def test_another_tenant_s_and_queue_s_dead_are_not_seen(worker: Caller, callers: Callers, owner: Owner) -> None:
    await die(owner, worker, "boom")
    [sms] = await die(owner, worker, "boom", queue="sms")
    assert await listed(await callers("operator", tenant="other")) == []
    narrow = await callers("operator", queues=["sms"])
    assert await listed(narrow) == [sms]
    assert (await replay(narrow, dryRun=True))["matched"] == 1
    for response in (await narrow.get(f"{DEAD}?queue=mail"), await narrow.post(REPLAY, {"queue": "mail"})):
        assert (response.status_code, response.json()["field"]) == (403, "queue")
    for role in ("producer", "worker"):
        assert (await (await callers(role)).get(DEAD)).status_code == 403


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"), ("limit=1001", "limit"), ("limit=ten", "limit"), ("jobId=abc", "jobId"),
        ("since=2026-01-01", "since"), ("until=2026-01-01T00:00:00", "until"), ("queue=a%20b", "queue"),
        ("reason=", "reason"), ("reason=a%00b", "reason"), ("after=abc", "after"), ("after=eCB5", "after"),
        ("quue=mail", "quue"), ("queue=a&queue=b", "queue"),
    ],
)  # fmt: skip
async def test_a_wrong_parameter_is_named(operator: Caller, query: str, field: str) -> None:
    response = await operator.get(f"{DEAD}?{query}")
    assert (response.status_code, response.json()["field"]) == (422, field), response.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"perSecond": 0}, "perSecond"), ({"perSecond": -1}, "perSecond"), ({"limit": 0}, "limit"),
        ({"dryRun": "yes"}, "dryRun"), ({"since": "yesterday"}, "since"), ({"startAt": "2026-01-01"}, "startAt"),
        ({"queue": ""}, "queue"), ({"jobId": 7}, "jobId"), ({"reason": ""}, "reason"), ({"after": "?"}, "after"),
        ({"all": True}, "all"),
    ],
)  # fmt: skip
async def test_a_wrong_field_of_a_bulk_replay_is_named(operator: Caller, body: dict[str, Any], field: str) -> None:
    response = await operator.post(REPLAY, body)
    assert (response.status_code, response.json()["field"]) == (422, field), response.text


async def test_a_dry_run_tells_and_changes_nothing(operator: Caller, worker: Caller, owner: Owner) -> None:
    dead = await die(owner, worker, "boom", "boom", "other")
    answer = await replay(operator, reason="boom", dryRun=True)
    assert (answer["matched"], answer["replayed"], answer["dryRun"], answer["next"]) == (2, 0, True, None)
    assert [run["runId"] for run in answer["sample"]] == dead[:2]
    assert await listed(operator) == dead


@pytest.mark.usefixtures("applying")
async def test_a_bulk_replay_gives_what_the_filter_matches_all_its_attempts_again(
    operator: Caller, worker: Caller, owner: Owner
) -> None:
    dead = await die(owner, worker, "boom", "boom", "other")
    answer = await replay(operator, reason="boom")
    assert (answer["matched"], answer["replayed"], answer["dryRun"]) == (2, 2, False)
    assert await listed(operator) == dead[2:]
    runs = await worker.lease(waitSeconds=5, max=2)
    runs += await worker.lease(waitSeconds=5) if len(runs) < 2 else []
    assert {run["runId"]: (run["attempt"], run["payload"]) for run in runs} == dict.fromkeys(dead[:2], (1, {"n": 1}))


@pytest.mark.usefixtures("applying")
async def test_a_paced_replay_spaces_the_runs_from_its_start_on(
    operator: Caller, worker: Caller, owner: Owner, ledger_pool: Pool
) -> None:
    dead = await die(owner, worker, "a", "b", "c")
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    answer = await replay(operator, perSecond=0.5, limit=2, startAt=start.isoformat())
    assert (answer["matched"], answer["replayed"]) == (3, 2)
    rest = await replay(operator, perSecond=0.5, after=answer["next"], startAt=start.isoformat())
    assert (rest["replayed"], rest["next"]) == (1, None)
    async with session(ledger_pool) as conn:
        rows = [await read_run(conn, UUID(run_id)) for run_id in dead]
    due = [(row.due_at - start).total_seconds() for row in rows if row and row.due_at]
    assert due == [0, 2, 0]


@pytest.mark.usefixtures("applying")
async def test_one_dead_run_is_replayed_by_its_id(
    operator: Caller, producer: Caller, worker: Caller, owner: Owner
) -> None:
    [run_id, other] = await die(owner, worker, "boom", "boom")
    response = await producer.post(f"/v1/runs/{run_id}/replay", idempotency_key="k")
    assert response.status_code == 200, response.text
    assert (response.json()["runId"], response.json()["state"]) == (run_id, "pending")
    assert await listed(operator) == [other]
    [run] = await worker.lease(waitSeconds=5)
    assert (run["runId"], run["attempt"], run["leaseToken"]) == (run_id, 1, 2)
    again = await producer.post(f"/v1/runs/{run_id}/replay", idempotency_key="k")
    assert (again.status_code, again.json()["state"]) == (200, "leased")
    conflict = await producer.post(f"/v1/runs/{run_id}/replay")
    assert conflict.status_code == 409
    assert "leased" in conflict.json()["detail"]


async def test_a_run_that_is_not_there_cannot_be_replayed(
    operator: Caller, worker: Caller, callers: Callers, owner: Owner
) -> None:
    [run_id] = await die(owner, worker, "boom")
    stranger = await callers("operator", tenant="other")
    for response in (await stranger.post(f"/v1/runs/{run_id}/replay"), await operator.post("/v1/runs/abc/replay")):
        assert (response.status_code, response.json()["detail"]) == (404, "no such run")
    assert (await worker.post(f"/v1/runs/{run_id}/replay")).status_code == 403
    assert (await operator.post(f"/v1/runs/{uuid4()}/replay")).status_code in (404, 503)  # without a history


async def test_a_key_that_cannot_be_is_refused_also_when_there_is_nothing_to_replay(operator: Caller) -> None:
    for key in ("", "k" * 201):
        response = await operator.post("/v1/dead/replay", {}, Idempotency_Key=key)
        assert response.status_code == 422, response.text
        assert response.json()["field"] == "Idempotency-Key"
