"""The HTTP client: calls, typed answers, errors by remedy, repetition."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import pytest

import fencepost
from fencepost import (
    Conflict,
    FencepostClient,
    FencepostError,
    Invalid,
    InvalidInput,
    JobSpec,
    LeaseLost,
    NotFound,
    ServerFault,
    SyncClient,
    Throttled,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from fencepost.models import Beat, Completion, Failure
from tests.connectors.client.wire import json_answer

JOB_ID, RUN_ID = UUID(int=1), UUID(int=2)  # named in test ids: the same in every process


class Script:
    """Answers requests one after the other; keeps them for inspection."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) if request.content else None for request in self.requests]


def client_of(script: Script, **options: Any) -> FencepostClient:
    return FencepostClient("http://server.test/", "fp_1_secret", transport=httpx.MockTransport(script), **options)


async def test_create_sends_the_contract_s_fields_and_types_the_answer() -> None:
    script = Script(json_answer(201, {"jobId": str(JOB_ID), "nextRunAt": "2026-03-01T09:00:00.000001Z"}))
    spec = JobSpec(
        queue="mail", schedule=fencepost.cron("0 9 * * *", "Europe/Berlin"), payload={"to": "ops"}, max_attempts=3
    )
    async with client_of(script) as client:
        answer = await client.create_job(spec, idempotency_key="daily-mail")
    assert script.bodies == [
        {
            "queue": "mail",
            "schedule": {"cron": "0 9 * * *", "zone": "Europe/Berlin"},
            "payload": {"to": "ops"},
            "maxAttempts": 3,
        }
    ]
    [request] = script.requests
    assert (request.method, request.url.path) == ("POST", "/v1/jobs")
    assert request.headers["Authorization"] == "Bearer fp_1_secret"
    assert request.headers["Idempotency-Key"] == "daily-mail"
    assert answer.job_id == JOB_ID
    assert answer.applied
    assert answer.next_run_at == datetime(2026, 3, 1, 9, 0, 0, 1, UTC)


async def test_accepted_command_is_told_from_an_applied_one() -> None:
    script = Script(json_answer(202, {"jobId": str(JOB_ID), "commandId": str(RUN_ID)}))
    async with client_of(script) as client:
        answer = await client.pause_job(JOB_ID)
    assert (answer.applied, answer.command_id) == (False, RUN_ID)


@pytest.mark.parametrize(
    ("call", "method", "path", "body"),
    [
        (lambda c: c.pause_job(JOB_ID), "POST", f"/v1/jobs/{JOB_ID}/pause", None),
        (lambda c: c.resume_job(JOB_ID), "POST", f"/v1/jobs/{JOB_ID}/resume", None),
        (lambda c: c.delete_job(JOB_ID), "DELETE", f"/v1/jobs/{JOB_ID}", None),
        (lambda c: c.trigger_job(JOB_ID), "POST", f"/v1/jobs/{JOB_ID}/trigger", None),
        (lambda c: c.trigger_job(JOB_ID, [1]), "POST", f"/v1/jobs/{JOB_ID}/trigger", {"payload": [1]}),
    ],
)
async def test_commands_on_a_job_go_where_the_contract_says(
    call: Callable[[FencepostClient], Any], method: str, path: str, body: Any
) -> None:
    script = Script(json_answer(200, {"jobId": str(JOB_ID), "state": "active", "nextRunAt": None}))
    async with client_of(script) as client:
        assert (await call(client)).job_id == JOB_ID
    assert (script.requests[0].method, script.requests[0].url.path, script.bodies[0]) == (method, path, body)


async def test_preview_sends_the_schedule_and_types_the_fires() -> None:
    fire = {
        "scheduledFor": "2026-03-29T01:00:00Z",
        "local": "2026-03-29T03:00:00+02:00",
        "zone": "Europe/Paris",
        "mark": "gap",
        "dueAt": "2026-03-29T01:00:01.5Z",
    }
    script = Script(json_answer(200, {"fires": [fire], "tzdata": "2026c"}))
    async with client_of(script) as client:
        schedule, after = fencepost.cron("30 2 * * *", "Europe/Paris"), datetime(2026, 3, 28, 12, tzinfo=UTC)
        preview = await client.preview_schedule(schedule, after=after, count=1, job_id=JOB_ID)
        with pytest.raises(InvalidInput) as caught:
            await client.preview_schedule(fencepost.Schedule())
    assert script.requests[0].url.path == "/v1/schedules/preview"
    assert script.bodies == [
        {
            "schedule": {"cron": "30 2 * * *", "zone": "Europe/Paris"},
            "from": "2026-03-28T12:00:00Z",
            "count": 1,
            "jobId": str(JOB_ID),
        }
    ]
    [found] = preview.fires
    assert (found.scheduled_for, found.mark) == (datetime(2026, 3, 29, 1, tzinfo=UTC), "gap")
    assert found.due_at == datetime(2026, 3, 29, 1, 0, 1, 500_000, UTC)
    assert preview.tzdata == "2026c"
    assert caught.value.field == "schedule"


async def test_single_outcomes_send_their_token_and_no_empty_fields() -> None:
    script = Script(
        json_answer(200, {"leaseExpiresAt": "2026-03-01T09:00:00Z", "cancel": True}),
        json_answer(200, {}),
        json_answer(200, {"outcome": "retried", "dueAt": "2026-03-01T09:00:00Z"}),
        json_answer(200, {}),
    )
    async with client_of(script) as client:
        assert (await client.heartbeat(RUN_ID, 7, visibility_s=60)).cancel
        await client.complete(RUN_ID, 7, {"rows": 3})
        assert (await client.fail(RUN_ID, 7, "boom", retry_after_s=5)).outcome == "retried"
        await client.release(RUN_ID, 7)
    assert [request.url.path for request in script.requests] == [
        f"/v1/runs/{RUN_ID}/{verb}" for verb in ("heartbeat", "complete", "fail", "release")
    ]
    assert script.bodies == [
        {"leaseToken": 7, "visibilitySeconds": 60},
        {"leaseToken": 7, "result": {"rows": 3}},
        {"leaseToken": 7, "error": "boom", "permanent": False, "retryAfterSeconds": 5},
        {"leaseToken": 7},
    ]


async def test_batches_are_sent_and_answered_in_order() -> None:
    script = Script(
        json_answer(200, {"results": [{"runId": str(RUN_ID), "status": 200}, {"runId": str(JOB_ID), "status": 409}]}),
        json_answer(200, {"results": [{"runId": str(RUN_ID), "status": 200, "outcome": "dead"}]}),
        json_answer(200, {"results": [{"runId": str(RUN_ID), "status": 200, "cancel": True}]}),
    )
    async with client_of(script) as client:
        completed = await client.complete_many([Completion(RUN_ID, 1, [1]), Completion(JOB_ID, 2)])
        [failed] = await client.fail_many([Failure(RUN_ID, 1, "boom", permanent=True)])
        [beat] = await client.heartbeat_many([Beat(RUN_ID, 1)])
    assert [answer.status for answer in completed] == [200, 409]
    assert failed.outcome == "dead"
    assert beat.cancel
    assert script.bodies[0] == {
        "runs": [{"runId": str(RUN_ID), "leaseToken": 1, "result": [1]}, {"runId": str(JOB_ID), "leaseToken": 2}]
    }
    assert script.bodies[1] == {"runs": [{"runId": str(RUN_ID), "leaseToken": 1, "error": "boom", "permanent": True}]}


async def test_query_answers_typed_columns_and_rows() -> None:
    script = Script(json_answer(200, {"columns": [{"name": "n", "type": "BIGINT"}], "rows": [[3]], "truncated": True}))
    async with client_of(script) as client:
        answer = await client.query("SELECT count(*) AS n FROM runs", limit=1)
    assert (answer.columns[0].name, answer.rows[0][0], answer.truncated) == ("n", 3, True)
    assert script.bodies == [{"sql": "SELECT count(*) AS n FROM runs", "limit": 1}]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Invalid),
        (401, Unauthorized),
        (403, Unauthorized),
        (404, NotFound),
        (405, fencepost.Refused),
        (409, Conflict),
        (413, Invalid),
        (415, Invalid),
        (422, Invalid),
        (429, Throttled),
        (500, ServerFault),
        (502, Unavailable),
        (504, Unavailable),
        (503, Unavailable),
    ],
)
async def test_problem_documents_become_errors_by_remedy(status: int, kind: type[FencepostError]) -> None:
    problem = {"type": "about:blank", "title": "T", "status": status, "detail": "why", "field": "schedule.cron"}
    async with client_of(Script(json_answer(status, problem)), retry_for_s=0) as client:
        with pytest.raises(kind, match=r"schedule\.cron: why") as caught:
            await client.job(JOB_ID)
    assert type(caught.value) is kind
    if isinstance(caught.value, fencepost.Refused):
        assert (caught.value.status, caught.value.field, caught.value.detail) == (status, "schedule.cron", "why")


async def test_conflict_of_a_lease_call_is_a_lost_lease() -> None:
    async with client_of(Script(json_answer(409, {"detail": "the lease is lost"}))) as client:
        with pytest.raises(LeaseLost, match="the lease is lost"):
            await client.complete(RUN_ID, 1)


@pytest.mark.parametrize("answer", [b"<html>Bad gateway</html>", b"", b"[]", b"\xff"])
async def test_answer_that_is_no_problem_document_still_says_what_it_was(answer: bytes) -> None:
    async with client_of(Script(httpx.Response(500, content=answer))) as client:
        with pytest.raises(ServerFault, match="500"):
            await client.job(JOB_ID)


@pytest.mark.parametrize("answer", [b"", b"{}", b'{"jobId": 3}', b"\xff"])
async def test_success_that_does_not_keep_the_contract_is_the_server_s_fault(answer: bytes) -> None:
    async with client_of(Script(httpx.Response(200, content=answer))) as client:
        with pytest.raises(ServerFault, match="no Job"):
            await client.job(JOB_ID)


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.PoolTimeout("busy"),
        httpx.ReadTimeout("slow"),
        httpx.ReadError("reset"),
        httpx.WriteError("reset"),
        httpx.RemoteProtocolError("half an answer"),
        json_answer(503, {"detail": "the ledger is away"}, {"Retry-After": "0"}),
    ],
)
async def test_call_without_an_answer_is_repeated_with_the_same_key(trouble: httpx.Response | Exception) -> None:
    script = Script(trouble, json_answer(200, {"jobId": str(JOB_ID)}))
    async with client_of(script) as client:
        assert (await client.trigger_job(JOB_ID)).applied
    first, second = script.requests
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    UUID(first.headers["Idempotency-Key"])


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 500])
async def test_refused_call_is_not_repeated(status: int) -> None:
    script = Script(json_answer(status, {"detail": "no"}))
    async with client_of(script) as client:
        with pytest.raises(FencepostError):
            await client.run(RUN_ID)
    assert len(script.requests) == 1


async def test_repeating_ends_with_the_time_for_it() -> None:
    script = Script(*[httpx.ConnectError("refused") for _ in range(1000)])
    async with client_of(script, retry_for_s=0.5) as client:
        with pytest.raises(Unreachable, match=r"server\.test cannot be reached: refused") as caught:
            await client.run(RUN_ID)
    assert not caught.value.sent
    assert 2 <= len(script.requests) < 100


async def test_server_that_asks_for_more_time_than_there_is_is_not_waited_for() -> None:
    script = Script(json_answer(503, {"detail": "away"}, {"Retry-After": "60"}))
    async with client_of(script, retry_for_s=5) as client:
        with pytest.raises(Unavailable) as caught:
            await client.run(RUN_ID)
    assert caught.value.retry_after_s == 60


async def test_closed_port_is_unreachable() -> None:
    async with FencepostClient("http://127.0.0.1:1", "fp_1_secret", retry_for_s=0) as client:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 cannot be reached") as caught:
            await client.run(RUN_ID)
    assert not caught.value.sent


@pytest.mark.parametrize("url", ["", "127.0.0.1:8400", "ftp://x", "http://", "http://x:port"])
def test_url_that_cannot_be_right_is_refused_before_any_call(url: str) -> None:
    with pytest.raises(InvalidInput, match="base_url"):
        FencepostClient(url, "fp_1_secret")


async def test_queue_that_would_change_the_path_is_refused_before_any_call() -> None:
    script = Script()
    async with client_of(script) as client:
        with pytest.raises(InvalidInput):
            await client.lease("../jobs", "w")
    assert script.requests == []


def public_calls(kind: type) -> set[str]:
    return {name for name, member in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_sync_client_has_every_call_of_the_async_one() -> None:
    assert public_calls(SyncClient) == public_calls(FencepostClient)


async def test_sync_client_answers_and_raises_as_the_async_one() -> None:
    script = Script(
        json_answer(200, {"runId": str(RUN_ID), "state": "completed"}), json_answer(404, {"detail": "no such run"})
    )

    def blocking_program() -> str:
        with SyncClient("http://server.test", "fp_1_secret", transport=httpx.MockTransport(script)) as client:
            state = client.run(RUN_ID).state
            with pytest.raises(NotFound):
                client.run(RUN_ID)
            return state

    assert await asyncio.to_thread(blocking_program) == "completed"


@pytest.mark.parametrize("key", ["", "é", "two\nlines", " padded", "x" * 201])
async def test_idempotency_key_that_would_not_arrive_as_it_is_is_refused(key: str) -> None:
    script = Script()
    async with client_of(script) as client:
        with pytest.raises(InvalidInput, match="Idempotency-Key"):
            await client.pause_job(JOB_ID, idempotency_key=key)
    assert script.requests == []


@pytest.mark.parametrize("token", ["", "fp_1 secret", "fp_1\n", "fp_ä"])
def test_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(InvalidInput, match="token"):
        FencepostClient("http://server.test", token)


@pytest.mark.parametrize("answered", [[], [JOB_ID], [RUN_ID, RUN_ID]])
async def test_batch_answer_about_other_runs_is_the_server_s_fault(answered: list[UUID]) -> None:
    results = [{"runId": str(run_id), "status": 200} for run_id in answered]
    async with client_of(Script(json_answer(200, {"results": results}))) as client:
        with pytest.raises(ServerFault, match="not in their order"):
            await client.complete_many([Completion(RUN_ID, 1)])
