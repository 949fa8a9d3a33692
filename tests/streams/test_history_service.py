"""The history role as the API meets it: over HTTP, on real Kafka."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import httpx
import pytest
import pytest_asyncio

from connectors.stack import KafkaBroker
from schemas.codec import Codec, Record
from streams.history_service import HistoryRole
from streams.topics import Topics
from tests.ledger_fixtures import IDLE_S
from tests.streams.event_samples import JOB_ID, START, life_of, new_topics, produce_events, run_event

DEADLINE_S = 30.0

PREDECESSOR = """
import asyncio, sys
from pathlib import Path
from schemas.codec import Codec
from streams.history_service import HistoryRole
from streams.topics import Topics

role = HistoryRole(sys.argv[1], Topics(sys.argv[2]), Codec(), Path(sys.argv[3]), "127.0.0.1", 0)
print(role.url, flush=True)
asyncio.run(role.run(asyncio.Event()))
"""

DONE, DEAD = UUID(int=1), UUID(int=2)


pytestmark = pytest.mark.asyncio(loop_scope="module")  # that of the role which most of these tests only ask


def told(broker: KafkaBroker) -> Topics:
    """Topics that tell of a run that was completed and of another tenant's that is dead."""
    topics = new_topics(broker.bootstrap)
    died = run_event(DEAD, 1, "run_dead", tenant="umbra", attempt=5, leaseToken=6, reason="boom")
    produce_events(broker.bootstrap, topics, [*life_of(DONE), died], partition=1)
    return topics


@pytest.fixture(scope="module")
def topics(kafka_broker: KafkaBroker) -> Topics:
    return told(kafka_broker)


@asynccontextmanager
async def running(broker: KafkaBroker, topics: Topics, folder: Path) -> AsyncIterator[HistoryRole]:
    """The role, for the length of a `with` block, which fails if the role did."""
    path = folder / "history.duckdb"
    role = HistoryRole(broker.bootstrap, topics, Codec(), path, "127.0.0.1", 0, query_limit_s=3, idle_s=IDLE_S)
    stop = asyncio.Event()
    task = asyncio.create_task(role.run(stop))
    try:
        yield role
    finally:
        stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await task


@asynccontextmanager
async def asking(broker: KafkaBroker, topics: Topics, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a role that has read what there is."""
    async with (
        running(broker, topics, folder) as role,
        httpx.AsyncClient(base_url=role.url, timeout=DEADLINE_S) as client,
    ):
        async with asyncio.timeout(DEADLINE_S):
            await role.ready.wait()
        await _until_known(client, DEAD)
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(
    kafka_broker: KafkaBroker, topics: Topics, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[httpx.AsyncClient]:
    """One for all tests that add nothing to what there is."""
    async with asking(kafka_broker, topics, tmp_path_factory.mktemp("history")) as client:
        yield client


async def _until_known(client: httpx.AsyncClient, run_id: UUID) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await client.get(f"/runs/{run_id}")).status_code != 200:  # noqa: ASYNC110 - another process's news
            await asyncio.sleep(0.05)


async def test_a_query_answers_columns_and_rows(client: httpx.AsyncClient) -> None:
    body = {"tenant": "acme", "sql": "SELECT type, version FROM run_events ORDER BY version", "limit": 2}
    answer = await client.post("/query", json=body)
    assert answer.status_code == 200
    assert answer.json() == {
        "columns": [{"name": "type", "type": "VARCHAR"}, {"name": "version", "type": "BIGINT"}],
        "rows": [["run_scheduled", 1], ["run_leased", 2]],
        "truncated": True,
    }


async def test_a_query_sees_one_tenant(client: httpx.AsyncClient) -> None:
    for tenant, states in {"acme": [["completed"]], "umbra": [["dead"]], "nobody": []}.items():
        answer = await client.post("/query", json={"tenant": tenant, "sql": "SELECT state FROM runs"})
        assert answer.json()["rows"] == states


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"tenant":"acme","sql":"DROP TABLE runs"}', "sql"),
        ('{"tenant":"acme","sql":"FROM runs","limit":0}', "limit"),
        ('{"tenant":"acme","sql":"FROM runs","limit":"many"}', "limit"),
        ('{"tenant":"acme","sql":1}', "sql"),
        ('{"tenant":"acme","sql":"FROM runs","sqll":1}', "sqll"),
        ('{"sql":"FROM runs"}', "tenant"),
        ("{", None),
    ],
)
async def test_a_query_that_cannot_be_right_is_a_problem_that_names_the_field(
    client: httpx.AsyncClient, body: str, field: str | None
) -> None:
    answer = await client.post("/query", content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json().get("field") == field
    assert answer.json()["detail"]


async def test_a_run_tells_its_latest_state(client: httpx.AsyncClient) -> None:
    assert (await client.get(f"/runs/{DONE}")).json() == {
        "runId": str(DONE),
        "jobId": str(JOB_ID),
        "tenant": "acme",
        "queue": "mail",
        "lane": "normal",
        "state": "completed",
        "version": 3,
        "attempt": 1,
        "leaseToken": 1,
        "scheduledFor": "2026-03-01T12:00:00Z",
        "dueAt": "2026-03-01T12:00:00Z",
        "firstLeasedAt": "2026-03-01T12:00:00.500000Z",
        "latenessMs": 500.0,
        "leaseExpiresAt": None,
        "finishedAt": "2026-03-01T12:00:03Z",
        "workerId": "worker-1",
        "reason": None,
        "result": {"sent": 2},
        "updatedAt": "2026-03-01T12:00:03Z",
    }
    dead = (await client.get(f"/runs/{DEAD}")).json()
    assert (dead["tenant"], dead["state"], dead["reason"], dead["result"]) == ("umbra", "dead", "boom", None)


@pytest.mark.parametrize("run_id", [UUID(int=3), "nonsense", "' OR true --"])
async def test_an_unknown_run_is_not_found(client: httpx.AsyncClient, run_id: UUID | str) -> None:
    answer = await client.get(f"/runs/{run_id}")
    assert (answer.status_code, answer.json()["status"]) == (404, 404)


async def test_health_tells_the_lag_of_each_partition(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (health := (await client.get("/healthz")).json())["lag"].get("1") != 0:  # noqa: ASYNC110 - polled
            await asyncio.sleep(0.05)
    assert health == {"status": "ok", "kafka": True, "lag": {"0": 0, "1": 0, "2": 0, "3": 0}}
    assert (await client.get("/readyz")).status_code == 200


async def test_a_history_that_never_reached_kafka_answers_and_is_not_ready(tmp_path: Path) -> None:
    role, stop = (
        HistoryRole("127.0.0.1:1", Topics(), Codec(), tmp_path / "history.duckdb", "127.0.0.1", 0),
        asyncio.Event(),
    )
    running = asyncio.create_task(role.run(stop))
    async with asyncio.timeout(DEADLINE_S), httpx.AsyncClient(base_url=role.url) as client:
        assert (await client.get("/healthz")).json()["kafka"] is False
        assert (await client.get("/readyz")).status_code == 503
        stop.set()
        await running


async def test_metrics_are_prometheus_text(client: httpx.AsyncClient) -> None:
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'fencepost_history_lag_records{partition="1"}' in answer.text


async def test_queries_beyond_the_budget_are_turned_away(client: httpx.AsyncClient) -> None:
    slow = "SELECT count(*) FROM " + ", ".join(f"run_events e{n}" for n in range(30))
    asks = [client.post("/query", json={"tenant": "acme", "sql": slow}) for _ in range(3)]
    answers = await asyncio.gather(*asks)
    assert sorted(answer.status_code for answer in answers) == [422, 422, 503]
    [turned_away] = [answer for answer in answers if answer.status_code == 503]
    assert int(turned_away.headers["retry-after"]) >= 1
    assert turned_away.json()["retryAfterSeconds"] >= 1
    assert (await client.post("/query", json={"tenant": "acme", "sql": "SELECT 1"})).status_code == 200


async def test_a_role_stops_at_once_with_a_query_running(
    kafka_broker: KafkaBroker, topics: Topics, tmp_path: Path
) -> None:
    slow = "SELECT count(*) FROM " + ", ".join(f"run_events e{n}" for n in range(30))
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        async with running(kafka_broker, topics, tmp_path) as role:
            client.base_url = httpx.URL(role.url)
            await _until_known(client, DEAD)
            asking = asyncio.create_task(client.post("/query", json={"tenant": "acme", "sql": slow}))
            await asyncio.sleep(0.3)  # until it runs
        assert (await asking).status_code == 503  # and not the 422 of a query whose time is up


async def test_a_successor_waits_for_the_file_and_reads_on(
    kafka_broker: KafkaBroker, topics: Topics, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", PREDECESSOR, kafka_broker.bootstrap, topics.prefix, str(tmp_path / "history.duckdb")]
    predecessor = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    assert predecessor.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        url = (await predecessor.stdout.readline()).decode().strip()
    async with httpx.AsyncClient(base_url=url) as client:
        await _until_known(client, DEAD)
    async with running(kafka_broker, topics, tmp_path) as successor:
        waiting = asyncio.create_task(successor.ready.wait())
        done, _ = await asyncio.wait({waiting}, timeout=1)
        assert not done
        predecessor.kill()
        await predecessor.wait()
        async with asyncio.timeout(DEADLINE_S):
            await waiting
        async with httpx.AsyncClient(base_url=successor.url) as client:
            assert (await client.get(f"/runs/{DONE}")).json()["state"] == "completed"


async def test_the_events_of_a_run_come_by_version(client: httpx.AsyncClient) -> None:
    events = (await client.get(f"/runs/{DONE}/events")).json()["events"]
    assert [event["type"] for event in events] == ["run_scheduled", "run_leased", "run_completed"]
    assert events[1] == {
        **{"type": "run_leased", "at": "2026-03-01T12:00:00.500000Z", "version": 2, "attempt": 1},
        **{"tenant": "acme", "jobId": str(JOB_ID), "queue": "mail", "workerId": "worker-1", "reason": None},
        **{"dueAt": "2026-03-01T12:00:00Z", "scheduledFor": "2026-03-01T12:00:00Z"},
    }
    assert (await client.get(f"/runs/{UUID(int=3)}/events")).json() == {"events": []}


@pytest.mark.parametrize(
    ("since", "until", "found"),
    [
        ("12:00:00", "12:00:01", True),  # it begins within
        ("12:00:02", "12:00:04", True),  # it ends within
        ("12:00:03", "12:00:04", False),
        ("11:00:00", "12:00:00.500000", False),
    ],
)
async def test_the_leases_of_a_job_are_those_that_reach_into_the_time(
    client: httpx.AsyncClient, since: str, until: str, found: bool
) -> None:
    asked = {"since": f"2026-03-01T{since}+00:00", "until": f"2026-03-01T{until}+00:00"}
    leases = (await client.get(f"/jobs/{JOB_ID}/leases", params=asked)).json()["leases"]
    assert [lease["runId"] for lease in leases] == ([str(DONE)] if found else [])
    if found and until != "12:00:01":
        assert leases[0]["until"] == "2026-03-01T12:00:03Z"


async def test_what_bears_on_an_occurrence_is_its_runs_and_the_ranges_around_it(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    def job_event(version: int, kind: str, **fields: object) -> Record:
        return run_event(DONE, version, kind, **fields) | {"runId": None}

    first, last = START + timedelta(hours=1), START + timedelta(hours=3)
    created = job_event(1, "job_created", definition="{}", dueAt=START)
    skipped = job_event(2, "occurrences_skipped", scheduledFor=first, dueAt=last, count=3, reason="catch-up none")
    topics = told(kafka_broker)
    produce_events(kafka_broker.bootstrap, topics, [created, skipped], partition=1)
    async with asking(kafka_broker, topics, tmp_path) as client:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                answer = (await client.get(f"/jobs/{JOB_ID}/occurrence", params={"at": first.isoformat()})).json()
                if answer["version"] == 2:
                    break
                await asyncio.sleep(0.05)
        [skipped_range] = answer["ranges"]
        assert {name: skipped_range[name] for name in ("first", "last", "count", "reason")} == {
            **{"first": "2026-03-01T13:00:00Z", "last": "2026-03-01T15:00:00Z"},
            **{"count": 3, "reason": "catch-up none"},
        }
        assert [(event["type"], event["cursor"]) for event in answer["jobEvents"]] == [
            ("job_created", "2026-03-01T12:00:00Z")
        ]
        asked = {"at": START.isoformat()}
        at_start = (await client.get(f"/jobs/{JOB_ID}/occurrence", params=asked)).json()
        assert at_start["ranges"] == []
        assert str(DONE) in [run["runId"] for run in at_start["runs"]]
