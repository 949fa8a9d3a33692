"""Errors: every one a problem document that says what is wrong, where, and what to do."""

from __future__ import annotations

import httpx
import pytest

from api.app import Api
from api.endpoints import SMALL_BODY
from api.problems import problem_of
from schemas.errors import (
    CommandRejected,
    EpochLost,
    InvariantBroken,
    JobConflict,
    JobUnknown,
    KafkaUnavailable,
    LedgerUnavailable,
)
from tests.api.conftest import Caller

LEASE = "/v1/queues/mail/lease"


async def send(caller: Caller, content: bytes, kind: str | None = "application/json") -> httpx.Response:
    headers = {} if kind is None else {"content-type": kind}
    return await caller.http.post(LEASE, content=content, headers=headers)


def assert_problem(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict = response.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return problem


async def test_malformed_json_is_a_400_with_the_position(worker: Caller) -> None:
    problem = assert_problem(await send(worker, b'{"workerId": nope}'), 400)
    assert "byte" in problem["detail"]
    for content in (b"{", b"", b'{"workerId":"w","max":1}x', b"\xff", b'{"workerId":"\xff","max":1}'):
        assert_problem(await send(worker, content), 400)


async def test_a_body_that_is_no_object_is_a_422(worker: Caller) -> None:
    for content in (b"[]", b"null", b"7"):
        assert_problem(await send(worker, content), 422)


async def test_another_content_type_is_a_415(worker: Caller) -> None:
    good = b'{"workerId":"w","max":1}'
    assert_problem(await send(worker, good, "text/plain"), 415)
    assert_problem(await send(worker, good, "application/x-www-form-urlencoded"), 415)
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/vnd.acme+json", None):
        assert (await send(worker, good, kind)).status_code == 200


async def test_a_body_that_is_too_large_is_a_413(worker: Caller) -> None:
    problem = assert_problem(await send(worker, b'{"workerId":"' + b"w" * SMALL_BODY + b'"}'), 413)
    assert str(SMALL_BODY) in problem["detail"]


async def test_an_unknown_path_is_a_404_and_a_wrong_method_a_405(worker: Caller) -> None:
    assert_problem(await worker.get("/v1/nothing"), 404)
    assert_problem(await worker.post("/v1/queues/a/b/lease", {}), 404)
    response = await worker.get(LEASE)
    assert_problem(response, 405)
    assert response.headers["allow"] == "POST"
    assert_problem(await worker.http.put("/v1/jobs"), 405)


async def test_an_error_that_nobody_foresaw_is_a_500_that_tells_nothing(
    api: Api, worker: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise InvariantBroken("secret detail")

    monkeypatch.setattr(api.index, "pop", broken)
    problem = assert_problem(await worker.post(LEASE, {"workerId": "w", "max": 1}), 500)
    assert "secret" not in problem["detail"]
    assert "secret detail" in caplog.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CommandRejected("no", field="queue"), 422),
        (JobUnknown("no"), 404),
        (JobConflict("no"), 409),
        (LedgerUnavailable("away"), 503),
        (KafkaUnavailable("away"), 503),
        (EpochLost(3), 503),
    ],
)
def test_our_errors_have_their_status(error: Exception, status: int) -> None:
    problem = problem_of(error)
    assert problem is not None
    assert problem.status == status
    assert (problem.retry_after_s is not None) == (status == 503)


def test_retry_after_is_in_whole_seconds_and_never_zero() -> None:
    problem = problem_of(LedgerUnavailable("away", retry_after_s=0.2))
    assert problem is not None
    assert (b"retry-after", b"1") in problem.all_headers()


def test_an_error_of_nobody_s_has_no_problem() -> None:
    assert problem_of(ZeroDivisionError()) is None


async def test_a_queue_that_cannot_be_is_refused_and_the_next_call_works(worker: Caller) -> None:
    for queue in ("%00", "a%20b", "x" * 101, "%C3%BC"):
        problem = assert_problem(await worker.post(f"/v1/queues/{queue}/lease", {"workerId": "w", "max": 1}), 422)
        assert problem["field"] == "queue"
    assert await worker.lease() == []
