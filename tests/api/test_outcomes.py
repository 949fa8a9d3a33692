"""Heartbeat, complete, fail and release, single and in batches."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
import pytest_asyncio

from ledger.connection import Pool, session
from ledger.outbox import delete_from_outbox, read_outbox
from ledger.runs import RunState, read_run
from schemas.ids import run_id_for
from schemas.json_depth import MAX_DEPTH
from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner

KINDS = ("heartbeat", "complete", "fail", "release")


def body(kind: str, token: int) -> dict[str, Any]:
    return {"leaseToken": token} | ({"error": "boom"} if kind == "fail" else {})


async def post(caller: Caller, kind: str, run: dict[str, Any], **fields: Any) -> httpx.Response:
    return await caller.post(f"/v1/runs/{run['runId']}/{kind}", body(kind, run["leaseToken"]) | fields)


async def batch(caller: Caller, kind: str, *runs: dict[str, Any]) -> list[dict[str, Any]]:
    response = await caller.post(f"/v1/runs/{kind}", {"runs": list(runs)})
    assert response.status_code == 200, response.text
    results: list[dict[str, Any]] = response.json()["results"]
    return results


def item(kind: str, run: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"runId": run["runId"]} | body(kind, run["leaseToken"]) | fields


@pytest_asyncio.fixture
async def run(worker: Caller, owner: Owner) -> dict[str, Any]:
    """A leased run."""
    await owner.make_due()
    [run] = await worker.lease()
    return run


async def read(pool: Pool, run: dict[str, Any]) -> RunState | None:
    async with session(pool) as conn:
        return await read_run(conn, UUID(run["runId"]))


async def expire(dsn: str, run: dict[str, Any]) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("UPDATE runs SET lease_expires_at = %s WHERE run_id = %s", (past, run["runId"]))


async def test_heartbeat_extends_the_lease(worker: Caller, run: dict) -> None:
    response = await post(worker, "heartbeat", run, visibilitySeconds=300)
    assert response.status_code == 200
    answer = response.json()
    assert answer["cancel"] is False
    assert answer["leaseExpiresAt"] > run["leaseExpiresAt"]


async def test_a_shorter_heartbeat_never_shortens_the_lease(worker: Caller, run: dict) -> None:
    response = await post(worker, "heartbeat", run, visibilitySeconds=1)
    assert response.json()["leaseExpiresAt"] == run["leaseExpiresAt"]


async def test_heartbeat_carries_the_wish_to_cancel(worker: Caller, run: dict, ledger_dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(ledger_dsn, autocommit=True) as conn:
        await conn.execute("UPDATE runs SET cancel_reason = 'cancelled'")
    assert (await post(worker, "heartbeat", run)).json()["cancel"] is True


async def test_complete_removes_the_run_and_queues_its_event_with_the_result(
    worker: Caller, run: dict, ledger_pool: Pool
) -> None:
    response = await post(worker, "complete", run, result={"sent": 3})
    assert (response.status_code, response.json()) == (200, {})
    assert await read(ledger_pool, run) is None
    async with session(ledger_pool) as conn:
        last = (await read_outbox(conn, 100))[-1]
    assert (last.event, last.run_ids) == ("run_completed", [run["runId"]])
    assert last.results is not None
    assert json.loads(last.results[0] or "") == {"sent": 3}


async def test_any_json_is_a_result(worker: Caller, owner: Owner) -> None:
    results = [None, 7, "text", [1, {"a": None}], {"ü": "\U0001f600"}]
    await owner.make_due(len(results))
    for run, result in zip(await worker.lease(), results, strict=True):
        assert (await post(worker, "complete", run, result=result)).status_code == 200


async def test_fail_is_retried_later(worker: Caller, run: dict, ledger_pool: Pool) -> None:
    response = await post(worker, "fail", run, error="no route", retryAfterSeconds=120)
    answer = response.json()
    assert (response.status_code, answer["outcome"]) == (200, "retried")
    due_in_s = (datetime.fromisoformat(answer["dueAt"]) - datetime.now(UTC)).total_seconds()
    assert due_in_s == pytest.approx(120, abs=3)
    state = await read(ledger_pool, run)
    assert state is not None
    assert (state.state, state.attempt) == ("pending", 1)


async def test_a_permanent_failure_is_dead_at_once(worker: Caller, run: dict, ledger_pool: Pool) -> None:
    response = await post(worker, "fail", run, error="never", permanent=True)
    assert (response.status_code, response.json()) == (200, {"outcome": "dead"})
    state = await read(ledger_pool, run)
    assert state is not None
    assert (state.state, state.reason) == ("dead", "never")


async def test_the_last_attempt_s_failure_is_dead(worker: Caller, owner: Owner) -> None:
    await owner.make_due(max_attempts=1)
    [run] = await worker.lease()
    assert (await post(worker, "fail", run)).json()["outcome"] == "dead"


async def test_release_gives_the_run_back_without_charging_the_attempt(worker: Caller, run: dict) -> None:
    response = await post(worker, "release", run)
    assert (response.status_code, response.json()) == (200, {})
    [again] = await worker.lease(waitSeconds=15)
    assert (again["runId"], again["attempt"], again["leaseToken"]) == (run["runId"], 1, 2)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_older_lease_token_is_refused(worker: Caller, run: dict, kind: str, ledger_pool: Pool) -> None:
    await post(worker, "release", run)
    [again] = await worker.lease(waitSeconds=15)
    response = await post(worker, kind, run)
    assert (response.status_code, response.json()["field"]) == (409, "leaseToken")
    assert "token 2" in response.json()["detail"]
    state = await read(ledger_pool, again)
    assert state is not None
    assert (state.state, state.lease_token) == ("leased", 2)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_token_from_the_future_is_refused(worker: Caller, run: dict, kind: str) -> None:
    response = await worker.post(f"/v1/runs/{run['runId']}/{kind}", body(kind, run["leaseToken"] + 1))
    assert response.status_code == 409


@pytest.mark.parametrize("kind", KINDS)
async def test_an_expired_lease_is_refused(worker: Caller, run: dict, kind: str, ledger_dsn: str) -> None:
    await expire(ledger_dsn, run)
    response = await post(worker, kind, run)
    assert response.status_code == 409
    assert "expired" in response.json()["detail"]


@pytest.mark.parametrize("kind", KINDS)
async def test_another_tenant_s_run_cannot_be_touched(
    callers: Callers, run: dict, kind: str, ledger_pool: Pool
) -> None:
    stranger = await callers("worker", tenant="other")
    [result] = await batch(stranger, kind, item(kind, run))
    assert result["status"] == (503 if kind in ("complete", "fail") else 409)  # there is no history here to ask
    state = await read(ledger_pool, run)
    assert state is not None
    assert (state.state, state.version) == ("leased", 2)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_of_a_queue_outside_of_the_token_is_refused_by_name(
    callers: Callers, run: dict, kind: str, ledger_pool: Pool
) -> None:
    narrow = await callers("worker", queues=["sms", "push"])
    response = await post(narrow, kind, run)
    assert (response.status_code, response.json()["field"]) == (403, "queue")
    [result] = await batch(narrow, kind, item(kind, run))
    assert result["status"] == 409
    state = await read(ledger_pool, run)
    assert state is not None
    assert state.version == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_token_scoped_to_the_queue_may_do_everything(callers: Callers, run: dict, kind: str) -> None:
    worker = await callers("worker", queues=["sms", "mail"])
    assert (await post(worker, kind, run)).status_code == 200


async def test_what_cannot_be_a_run_of_ours_is_not_found(worker: Caller) -> None:
    for kind in KINDS:
        for run_id in ("abc", "{}", "00000000-0000-0000-0000-00000000000", str(UUID(int=2**128 - 1))):
            response = await worker.post(f"/v1/runs/{run_id}/{kind}", body(kind, 1))
            assert response.status_code == 404
            assert response.headers["content-type"] == "application/problem+json"


async def test_complete_repeated_after_a_lost_answer_is_accepted_again(worker: Caller, run: dict) -> None:
    for _ in range(3):
        response = await post(worker, "complete", run, result=[1])
        assert (response.status_code, response.json()) == (200, {})
    [result] = await batch(worker, "complete", item("complete", run))
    assert result == {"runId": run["runId"], "status": 200}


async def test_complete_by_another_token_than_the_accepted_one_is_refused(worker: Caller, run: dict) -> None:
    await post(worker, "release", run)
    [again] = await worker.lease(waitSeconds=15)
    await post(worker, "complete", again)
    [result] = await batch(worker, "complete", item("complete", run))
    assert result["status"] == 503  # the outbox knows no end of this lease, and there is no history here to ask


async def test_fail_repeated_after_a_lost_answer_tells_the_same_again(worker: Caller, run: dict) -> None:
    first = await post(worker, "fail", run, retryAfterSeconds=60)
    again = await post(worker, "fail", run, retryAfterSeconds=60)
    assert (again.status_code, again.json()) == (200, first.json())


async def test_fail_repeated_after_the_next_lease_tells_the_same_again(worker: Caller, run: dict) -> None:
    first = await post(worker, "fail", run, retryAfterSeconds=0)
    [again] = await worker.lease(waitSeconds=15)
    assert again["leaseToken"] == 2
    repeated = await post(worker, "fail", run)
    assert (repeated.status_code, repeated.json()) == (200, first.json())


async def test_a_permanent_failure_repeated_is_dead_again(worker: Caller, run: dict, ledger_pool: Pool) -> None:
    for _ in range(2):
        response = await post(worker, "fail", run, permanent=True)
        assert (response.status_code, response.json()) == (200, {"outcome": "dead"})
    async with session(ledger_pool) as conn:
        await delete_from_outbox(conn, [row.id for row in await read_outbox(conn, 100)])
    assert (await post(worker, "fail", run, permanent=True)).json() == {"outcome": "dead"}


async def test_fail_after_the_lease_ended_otherwise_is_refused(worker: Caller, run: dict) -> None:
    await post(worker, "fail", run, error="boom", retryAfterSeconds=60)
    assert (await post(worker, "fail", run, error="another")).status_code == 409
    assert (await post(worker, "complete", run)).status_code == 409


async def test_fail_after_complete_is_refused(worker: Caller, run: dict) -> None:
    await post(worker, "complete", run)
    assert (await post(worker, "fail", run)).status_code == 409


async def test_when_neither_ledger_nor_outbox_knows_and_history_is_away_the_caller_shall_ask_again(
    worker: Caller, run: dict, ledger_pool: Pool
) -> None:
    await post(worker, "complete", run)
    async with session(ledger_pool) as conn:
        await delete_from_outbox(conn, [row.id for row in await read_outbox(conn, 100)])
    response = await post(worker, "complete", run)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["retryAfterSeconds"] == 1


async def test_a_batch_answers_in_the_order_of_its_runs(worker: Caller, owner: Owner) -> None:
    await owner.make_due(5)
    runs = await worker.lease()
    results = await batch(worker, "complete", *(item("complete", run, result=run["runId"]) for run in reversed(runs)))
    assert results == [{"runId": run["runId"], "status": 200} for run in reversed(runs)]


async def test_a_batch_tells_each_run_its_own_outcome(worker: Caller, owner: Owner, ledger_dsn: str) -> None:
    await owner.make_due(3)
    lost, dead, retried = await worker.lease()
    await expire(ledger_dsn, lost)
    unknown = {"runId": str(UUID(int=2**128 - 1)), "leaseToken": 1}
    results = await batch(
        worker,
        "fail",
        item("fail", lost),
        item("fail", dead, permanent=True),
        item("fail", retried),
        item("fail", unknown),
    )
    assert [result["status"] for result in results] == [409, 200, 200, 409]
    assert [result.get("outcome") for result in results] == [None, "dead", "retried", None]
    assert "dueAt" in results[2]
    assert "expired" in results[0]["detail"]


async def test_a_batch_of_heartbeats_tells_who_lost_the_lease(worker: Caller, owner: Owner, ledger_dsn: str) -> None:
    await owner.make_due(2)
    lost, held = await worker.lease()
    await expire(ledger_dsn, lost)
    results = await batch(worker, "heartbeat", item("heartbeat", lost), item("heartbeat", held, visibilitySeconds=90))
    assert [result["status"] for result in results] == [409, 200]
    assert results[1]["cancel"] is False
    assert results[1]["leaseExpiresAt"] > held["leaseExpiresAt"]
    assert "cancel" not in results[0]


async def test_a_thousand_runs_are_finished_in_one_call(worker: Caller, owner: Owner) -> None:
    await owner.make_due(1_000)
    runs = await worker.lease(max=1_000)
    results = await batch(worker, "complete", *(item("complete", run) for run in runs))
    assert [result["status"] for result in results] == [200] * 1_000


async def test_an_empty_batch_has_an_empty_answer(worker: Caller) -> None:
    assert await batch(worker, "complete") == []


async def test_more_than_a_thousand_runs_are_refused(worker: Caller) -> None:
    items = [{"runId": str(uuid4()), "leaseToken": 1} for _ in range(1_001)]
    response = await worker.post("/v1/runs/release", {"runs": items})
    assert (response.status_code, response.json()["field"]) == (422, "runs")


async def test_a_run_twice_in_a_batch_is_refused_by_its_place(worker: Caller, run: dict) -> None:
    response = await worker.post("/v1/runs/complete", {"runs": [item("complete", run)] * 2})
    assert (response.status_code, response.json()["field"]) == (422, "runs.1.runId")


async def test_a_wrong_field_of_a_batch_is_named_with_its_place(worker: Caller, run: dict, ledger_pool: Pool) -> None:
    good = item("complete", run)
    for bad, field in (
        ({"runId": str(uuid4()), "leaseToken": "x"}, "runs.1.leaseToken"),
        ({"runId": str(uuid4())}, "runs.1.leaseToken"),
        ({"runId": str(uuid4()), "leaseToken": 1, "resullt": 1}, "runs.1.resullt"),
        ({"runId": run["jobId"][:-4] + "8000", "leaseToken": 1, "result": "x" * 66_000}, "runs.1.result"),
    ):
        bad["runId"] = str(run_id_for(uuid4(), datetime.now(UTC), 3))
        response = await worker.post("/v1/runs/complete", {"runs": [good, bad]})
        assert (response.status_code, response.json()["field"]) == (422, field)
    state = await read(ledger_pool, run)
    assert state is not None


WRONG_FIELDS: list[tuple[str, dict, str]] = [
    ("complete", {"leaseToken": -1}, "leaseToken"),
    ("complete", {"leaseToken": 2**63}, "leaseToken"),
    ("complete", {"leaseToken": 1, "result": "x" * (64 * 1024 - 1)}, "result"),
    ("complete", {"leaseToken": 1, "error": "x"}, "error"),
    ("fail", {"leaseToken": 1}, "error"),
    ("fail", {"leaseToken": 1, "error": "x" * 4_001}, "error"),
    ("fail", {"leaseToken": 1, "error": "x", "retryAfterSeconds": -1}, "retryAfterSeconds"),
    ("fail", {"leaseToken": 1, "error": "x", "permanent": 1}, "permanent"),
    ("heartbeat", {"leaseToken": 1, "visibilitySeconds": 4_000}, "visibilitySeconds"),
    ("release", {}, "leaseToken"),
]


async def test_a_wrong_field_is_named(worker: Caller, run: dict) -> None:
    for kind, fields, field in WRONG_FIELDS:
        response = await worker.post(f"/v1/runs/{run['runId']}/{kind}", fields)
        assert (response.status_code, response.json()["field"]) == (422, field), (kind, fields)


async def test_the_longest_result_and_error_fit(worker: Caller, owner: Owner) -> None:
    await owner.make_due(2)
    first, second = await worker.lease()
    assert (await post(worker, "complete", first, result="x" * (64 * 1024 - 2))).status_code == 200
    assert (await post(worker, "fail", second, error="ü" * 4_000)).status_code == 200


async def test_a_result_that_is_too_large_or_too_deep_is_refused_by_its_field(
    worker: Caller, run: dict, ledger_pool: Pool
) -> None:
    deep = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)
    bottomless = b"[" * 20_000 + b"]" * 20_000
    for result, status in ((b'"' + b"x" * (64 * 1024 - 1) + b'"', 422), (deep, 422), (bottomless, 400)):
        item = b'"leaseToken":1,"result":' + result + b"}"
        batch = b'{"runs":[{"runId":"%s",' % run["runId"].encode() + item + b"]}"
        for path, wire in ((f"/v1/runs/{run['runId']}/complete", b"{" + item), ("/v1/runs/complete", batch)):
            response = await worker.http.post(path, content=wire, headers={"content-type": "application/json"})
            assert response.status_code == status, path
            assert status == 400 or response.json()["field"].endswith("result")
    assert await read(ledger_pool, run) is not None
    assert (await post(worker, "complete", run, result=json.loads(deep[1:-1]))).status_code == 200


async def test_a_nul_in_an_error_is_replaced_and_the_failure_can_be_repeated(
    worker: Caller, run: dict, ledger_pool: Pool
) -> None:
    for _ in range(2):
        response = await post(worker, "fail", run, error="a\x00b", permanent=True)
        assert response.status_code == 200
    state = await read(ledger_pool, run)
    assert state is not None
    assert state.reason == "a\ufffdb"


async def test_bytes_that_are_no_utf8_in_a_result_are_refused(worker: Caller, run: dict, ledger_pool: Pool) -> None:
    path, wire = f"/v1/runs/{run['runId']}/complete", b'{"leaseToken":1,"result":"\xff"}'
    response = await worker.http.post(path, content=wire, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert await read(ledger_pool, run) is not None


async def test_many_single_calls_at_once_are_committed_in_groups(worker: Caller, owner: Owner) -> None:
    await owner.make_due(300)
    runs = await worker.lease(max=300)
    responses = await asyncio.gather(*(post(worker, "complete", run) for run in runs))
    assert {response.status_code for response in responses} == {200}
