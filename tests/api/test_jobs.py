"""The job endpoints: what is applied, what is refused and by which name, and what a repeated call gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import pytest_asyncio

from api import command_producer
from api.app import Api, ApiSettings
from api.command_producer import CommandProducer
from ledger.connection import Pool, session
from ledger.jobs import read_jobs
from ledger.runs import read_run
from ledger.shards import Shards
from schemas.commands import PauseJob
from schemas.errors import KafkaUnavailable
from schemas.ids import idempotent_id, new_id
from schemas.json_depth import MAX_DEPTH
from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner
from tests.fatal_producer import fatal_at_first
from tests.ledger_fixtures import PARTITIONS

HOURLY = {"queue": "mail", "schedule": {"everySeconds": 3600}}
RUN_AT = {"queue": "mail", "schedule": {"runAt": "2040-05-06T07:08:09.123456Z"}}


@pytest_asyncio.fixture
async def applying(owner: Owner) -> AsyncIterator[Owner]:
    """An owner who applies commands as they come."""
    async with owner.applying_commands():
        yield owner


async def create(producer: Caller, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    response = await producer.post("/v1/jobs", body, **headers)
    assert response.status_code == 201, response.text
    job: dict[str, Any] = response.json()
    return job


@pytest.mark.usefixtures("applying")
async def test_a_created_job_is_there_with_its_next_run(producer: Caller) -> None:
    body = RUN_AT | {
        "name": "Once", "lane": "high", "payload": {"a": [1, None]}, "maxAttempts": 3, "timeoutSeconds": 9.5,
        "catchUp": "none", "overlap": "skip", "startDeadlineSeconds": 60,
    }  # fmt: skip
    response = await producer.post("/v1/jobs", body)
    assert response.status_code == 201
    created = response.json()
    assert response.headers["location"] == f"/v1/jobs/{created['jobId']}"
    assert created["nextRunAt"] == "2040-05-06T07:08:09.123456Z"
    shown = (await producer.get(response.headers["location"])).json()
    assert body.items() <= shown.items()
    assert (shown["jobId"], shown["tenant"], shown["state"], shown["version"]) == (
        created["jobId"],
        "acme",
        "active",
        1,
    )
    assert shown["createdAt"].endswith("Z")


@pytest.mark.usefixtures("applying")
async def test_every_kind_of_schedule_can_be_created(producer: Caller) -> None:
    for schedule in (
        {"cron": "0 9 * * MON-FRI", "zone": "Europe/Paris"},
        {"everySeconds": 300, "anchor": "2026-01-01T00:00:00Z"},
        {"runAt": "2039-01-01T09:00", "zone": "America/New_York"},
        {"delaySeconds": 1200},
    ):
        created = await create(producer, {"queue": "mail", "schedule": schedule})
        assert datetime.fromisoformat(created["nextRunAt"]) > datetime.now(UTC)


@pytest.mark.usefixtures("applying")
async def test_a_due_job_can_be_leased_by_a_worker(producer: Caller, worker: Caller) -> None:
    created = await create(producer, {"queue": "mail", "schedule": {"delaySeconds": 0}, "payload": "hi"})
    [run] = await worker.lease(waitSeconds=5)
    assert (run["jobId"], run["payload"]) == (created["jobId"], "hi")
    shown = (await worker.get(f"/v1/runs/{run['runId']}")).json()
    assert (shown["state"], shown["workerId"], shown["attempt"], shown["maxAttempts"]) == ("leased", "w1", 1, 5)


@pytest.mark.usefixtures("applying")
async def test_the_same_key_and_body_create_one_job(producer: Caller, ledger_pool: Pool) -> None:
    first = await create(producer, HOURLY, idempotency_key="order-7")
    spelled_otherwise = {"schedule": {"everySeconds": 3600, "anchor": None}, "queue": "mail", "lane": "normal"}
    assert await create(producer, spelled_otherwise, idempotency_key="order-7") == first
    assert first["jobId"] == str(idempotent_id("acme", "order-7"))
    async with session(ledger_pool) as conn:
        row = await (await conn.execute("SELECT count(*), max(version) FROM jobs")).fetchone()
    assert row == (1, 1)


@pytest.mark.usefixtures("applying")
async def test_the_same_key_sent_twice_at_once_creates_one_job(producer: Caller) -> None:
    first, second = await asyncio.gather(*(create(producer, HOURLY, idempotency_key="k") for _ in range(2)))
    assert first == second


@pytest.mark.usefixtures("applying")
async def test_a_key_that_was_used_for_another_body_is_a_conflict(producer: Caller) -> None:
    await create(producer, HOURLY | {"payload": {"n": 1}}, idempotency_key="k")
    for change in ({"payload": {"n": 2}}, {"payload": None}, {"queue": "sms"}, {"schedule": {"everySeconds": 60}}):
        response = await producer.post("/v1/jobs", HOURLY | {"payload": {"n": 1}} | change, idempotency_key="k")
        assert (response.status_code, response.json()["field"]) == (409, "Idempotency-Key"), change


@pytest.mark.usefixtures("applying")
async def test_two_bodies_that_race_for_one_key_make_one_job_and_one_conflict(producer: Caller) -> None:
    bodies = [HOURLY, HOURLY | {"queue": "sms"}]
    responses = await asyncio.gather(*(producer.post("/v1/jobs", body, idempotency_key="k") for body in bodies))
    assert sorted(response.status_code for response in responses) == [201, 409]


@pytest.mark.usefixtures("applying")
async def test_a_key_means_another_job_to_another_tenant(producer: Caller, callers: Callers) -> None:
    other = await callers("producer", tenant="other")
    mine = await create(producer, HOURLY, idempotency_key="k")
    theirs = await create(other, HOURLY | {"queue": "sms"}, idempotency_key="k")
    assert mine["jobId"] != theirs["jobId"]


@pytest.mark.usefixtures("applying")
async def test_pause_and_resume_tell_the_state_and_the_next_run(producer: Caller, operator: Caller) -> None:
    job = await create(producer, RUN_AT)
    path = f"/v1/jobs/{job['jobId']}"
    for caller, verb, state in (
        (producer, "pause", "paused"),
        (operator, "pause", "paused"),
        (operator, "resume", "active"),
    ):
        response = await caller.post(f"{path}/{verb}")
        assert response.status_code == 200
        assert response.json() == {"jobId": job["jobId"], "state": state, "nextRunAt": job["nextRunAt"]}


@pytest.mark.usefixtures("applying")
async def test_a_paused_job_s_run_is_held(producer: Caller, ledger_pool: Pool) -> None:
    job = await create(producer, RUN_AT)
    await producer.post(f"/v1/jobs/{job['jobId']}/pause")
    async with session(ledger_pool) as conn:
        [[run_id]] = await (await conn.execute("SELECT run_id FROM runs")).fetchall()
    shown = (await producer.get(f"/v1/runs/{run_id}")).json()
    assert shown["state"] == "held"
    assert "leaseExpiresAt" not in shown


@pytest.mark.usefixtures("applying")
async def test_delete_ends_the_job_and_keeps_its_memory(producer: Caller) -> None:
    job = await create(producer, RUN_AT)
    path = f"/v1/jobs/{job['jobId']}"
    for _ in range(2):
        response = await producer.delete(path)
        assert (response.status_code, response.json()) == (
            200, {"jobId": job["jobId"], "state": "deleted", "nextRunAt": None},
        )  # fmt: skip
    assert (await producer.get(path)).json()["state"] == "deleted"
    for verb in ("pause", "resume", "trigger"):
        assert (await producer.post(f"{path}/{verb}")).status_code == 404


@pytest.mark.usefixtures("applying")
async def test_trigger_makes_a_run_at_once_and_names_it(producer: Caller, worker: Caller, ledger_pool: Pool) -> None:
    job = await create(producer, RUN_AT | {"payload": 1})
    answers = []
    for body in (None, {"payload": {"by": "hand"}}):
        response = await producer.post(f"/v1/jobs/{job['jobId']}/trigger", body)
        assert response.status_code == 200
        answers.append(response.json())
    async with session(ledger_pool) as conn:
        for answer in answers:
            run = await read_run(conn, UUID(answer["runId"]))
            assert run is not None
            assert run.state == "pending"
    runs = await worker.lease(waitSeconds=5)
    assert {run["runId"]: run["payload"] for run in runs} == {
        answers[0]["runId"]: 1, answers[1]["runId"]: {"by": "hand"},
    }  # fmt: skip


@pytest.mark.usefixtures("applying")
async def test_a_repeated_trigger_with_its_key_makes_one_run_and_names_it_again(
    producer: Caller, ledger_pool: Pool
) -> None:
    job = await create(producer, RUN_AT)
    path = f"/v1/jobs/{job['jobId']}/trigger"
    first, again = [await producer.post(path, idempotency_key="k") for _ in range(2)]
    other = await producer.post(path, idempotency_key="l")
    assert first.json() == again.json()
    assert other.json() != first.json()
    async with session(ledger_pool) as conn:
        row = await (await conn.execute("SELECT count(*) FROM runs")).fetchone()
    assert row == (3,)


@pytest.mark.usefixtures("applying")
async def test_the_same_key_on_another_job_is_another_command(producer: Caller) -> None:
    for job in [await create(producer, RUN_AT) for _ in range(2)]:
        response = await producer.post(f"/v1/jobs/{job['jobId']}/pause", idempotency_key="k")
        assert response.json()["state"] == "paused"


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize("patience_s", [0.1])
async def test_what_nobody_applies_in_time_is_accepted_with_its_command_id(producer: Caller, ledger_pool: Pool) -> None:
    response = await producer.post("/v1/jobs", HOURLY)
    assert response.status_code == 202
    answer = response.json()
    assert set(answer) == {"jobId", "commandId"}
    assert response.headers["location"] == f"/v1/jobs/{answer['jobId']}"
    async with session(ledger_pool) as conn:
        assert await read_jobs(conn, [UUID(answer["jobId"])]) == {}
    assert (await producer.get(response.headers["location"])).status_code == 404


@pytest.mark.usefixtures("applying")
async def test_another_tenant_s_job_does_not_exist(producer: Caller, callers: Callers) -> None:
    job = await create(producer, RUN_AT)
    path, stranger = f"/v1/jobs/{job['jobId']}", await callers("admin", tenant="other")
    missing = f"/v1/jobs/{uuid4()}"
    for url in (path, missing, "/v1/jobs/abc"):
        responses = [await stranger.get(url), await stranger.delete(url)]
        responses += [await stranger.post(f"{url}/{verb}") for verb in ("pause", "resume", "trigger")]
        assert [response.status_code for response in responses] == [404] * 5
        assert {response.json()["detail"] for response in responses} == {"no such job"}
    assert (await producer.get(path)).json()["state"] == "active"


@pytest.mark.usefixtures("applying")
async def test_a_job_of_a_queue_outside_of_the_token_is_refused_by_name(producer: Caller, callers: Callers) -> None:
    narrow = await callers("producer", queues=["sms"])
    job = await create(producer, RUN_AT)
    responses = [
        await narrow.post("/v1/jobs", HOURLY),
        await narrow.get(f"/v1/jobs/{job['jobId']}"),
        await narrow.post(f"/v1/jobs/{job['jobId']}/pause"),
    ]
    assert [(response.status_code, response.json()["field"]) for response in responses] == [(403, "queue")] * 3
    await create(narrow, HOURLY | {"queue": "sms"})


WRONG_JOBS: list[tuple[dict[str, Any], str]] = [
    ({"queue": None}, "queue"),
    ({"queue": ""}, "queue"),
    ({"queue": "a b"}, "queue"),
    ({"queue": "x" * 101}, "queue"),
    ({"lane": "urgent"}, "lane"),
    ({"name": "x" * 201}, "name"),
    ({"schedule": None}, "schedule"),
    ({"schedule": []}, "schedule"),
    ({"schedule": {}}, "schedule"),
    ({"schedule": {"cron": "60 * * * *"}}, "schedule.cron"),
    ({"schedule": {"cron": "0 0 30 2 *"}}, "schedule.cron"),
    ({"schedule": {"cron": "0 9 * * *", "zone": "Mars/Olympus"}}, "schedule.zone"),
    ({"schedule": {"everySeconds": 0}}, "schedule.everySeconds"),
    ({"schedule": {"everySeconds": 60, "runAt": "2040-01-01T00:00:00Z"}}, "schedule.runAt"),
    ({"schedule": {"everySecond": 60}}, "schedule"),
    ({"schedule": {"delaySeconds": -1}}, "schedule.delaySeconds"),
    ({"schedule": {"runAt": "2040-01-01T00:00:00"}}, "schedule.runAt"),
    ({"schedule": {"everySeconds": 60, "endAt": "2001-01-01T00:00:00Z"}}, "schedule"),
    ({"payload": "x" * (64 * 1024)}, "payload"),
    ({"maxAttempts": 0}, "maxAttempts"),
    ({"maxAttempts": "5"}, "maxAttempts"),
    ({"timeoutSeconds": 0}, "timeoutSeconds"),
    ({"catchUp": "some"}, "catchUp"),
    ({"overlap": "maybe"}, "overlap"),
    ({"startDeadlineSeconds": -1}, "startDeadlineSeconds"),
    ({"qeue": "mail"}, "qeue"),
]


async def test_a_wrong_field_is_named_before_anything_is_sent(producer: Caller) -> None:
    for change, field in WRONG_JOBS:
        response = await producer.post("/v1/jobs", HOURLY | change)
        assert response.status_code == 422, (change, response.text)
        assert response.json()["field"] == field, (change, response.text)


async def test_an_endless_or_empty_idempotency_key_is_refused(producer: Caller) -> None:
    for key in ("", "x" * 201):
        response = await producer.post("/v1/jobs", HOURLY, idempotency_key=key)
        assert (response.status_code, response.json()["field"]) == (422, "Idempotency-Key")


async def test_a_payload_that_is_no_utf8_or_bottomless_is_refused(producer: Caller) -> None:
    for payload in (b'"\xff"', b"[" * 20_000 + b"]" * 20_000):
        wire = b'{"queue":"mail","schedule":{"delaySeconds":1},"payload":' + payload + b"}"
        response = await producer.http.post("/v1/jobs", content=wire, headers={"content-type": "application/json"})
        assert response.status_code == 400


@pytest.mark.usefixtures("applying")
async def test_a_payload_that_is_too_large_or_too_deep_is_refused_wherever_one_is_given(producer: Caller) -> None:
    job = f"/v1/jobs/{(await create(producer, HOURLY))['jobId']}"
    span = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z"}
    deep: Any = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    for payload, status in (("x" * (64 * 1024), 422), ([deep], 422), ("x" * (64 * 1024 - 2), 200), (deep, 200)):
        for call, path, body in (
            (producer.post, "/v1/jobs", HOURLY),
            (producer.put, job, HOURLY),
            (producer.post, f"{job}/trigger", {}),
            (producer.post, f"{job}/backfill", span),
        ):
            response = await call(path, body | {"payload": payload})
            if status == 422:
                assert (response.status_code, response.json()["field"]) == (422, "payload"), path
            else:
                assert response.is_success, (path, response.text)


async def test_without_kafka_a_command_is_refused_for_now(settings: ApiSettings) -> None:
    producer = CommandProducer(
        "127.0.0.1:1", settings.commands_topic, settings.codec, idle_s=settings.idle_s, ack_within_s=0.3
    )
    command = PauseJob(command_id=new_id(), tenant="acme", job_id=new_id(), issued_at=datetime.now(UTC))
    with pytest.raises(KafkaUnavailable):
        await producer.send(command)
    assert not await asyncio.to_thread(producer.reachable, 0.2)
    await producer.stop()


async def test_after_a_fatal_error_commands_go_out_by_another_producer(
    settings: ApiSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_producer, "Producer", fatal_at_first())
    producer = CommandProducer(settings.bootstrap, settings.commands_topic, settings.codec, idle_s=settings.idle_s)
    command = PauseJob(command_id=new_id(), tenant="acme", job_id=new_id(), issued_at=datetime.now(UTC))
    with pytest.raises(KafkaUnavailable, match="out of sequence"):
        await producer.send(command)
    await producer.send(command)
    await producer.stop()


async def test_without_kafka_a_create_answers_503_and_says_when_to_come_back(
    ledger_pool: Pool, settings: ApiSettings
) -> None:
    no_kafka = ApiSettings(
        bootstrap="127.0.0.1:1",
        commands_topic="commands",
        ready_topic="ready",
        codec=settings.codec,
        kafka_config={"message.timeout.ms": 300},
    )
    api = Api(Shards.alone(ledger_pool, PARTITIONS), no_kafka)
    async with api.running():
        producer = await Callers(api, ledger_pool)("producer")
        response: httpx.Response = await producer.post("/v1/jobs", HOURLY)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["retryAfterSeconds"] == 1
