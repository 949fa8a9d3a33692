"""`fencepost verify` on a whole installation: a rich life gets its certificate, and what no ledger would do is told."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
import pytest_asyncio

from connectors.stack import KafkaBroker
from fencepost import FencepostClient, JobSpec, PermanentFailure, RunContext, Worker, at, cron, every
from fencepost.models import DeadFilter
from tests.fencepostd.installation import Installation, installed

pytestmark = pytest.mark.apache_kafka(reason="on tansu a join waits for half the session timeout")

QUEUE = "verified"


class Lived:
    """An installation with a client and the command line for it."""

    def __init__(self, installation: Installation, dsn: str, bootstrap: str) -> None:
        self.http = installation._http
        self.dsn, self.bootstrap, self.topics = dsn, bootstrap, installation.topics
        self.url = str(self.http.base_url)
        self.token = self.http.headers["authorization"].removeprefix("Bearer ")

    async def rows(self, sql: str) -> Any:
        answer = await self.http.post("/v1/query", json={"sql": sql})
        return answer.json()["rows"] if answer.is_success else None

    async def until(self, sql: str, holds: Callable[[Any], bool]) -> Any:
        """The first cell of a query, once it is as wanted."""
        async with asyncio.timeout(90):
            while (rows := await self.rows(sql)) is None or not holds(rows[0][0]):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return rows[0][0]

    async def verify(self, *options: str) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "fencepost", "--url", self.url, "--token", self.token, "verify", *options]
        return await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    async def certificate(self, *options: str) -> Any:
        verifying = await self.verify("--json", *options)
        told, complaint = await verifying.communicate()
        assert told, complaint.decode()
        made = json.loads(told)
        made["exit"] = verifying.returncode
        return made

    @asynccontextmanager
    async def working(self) -> AsyncIterator[FencepostClient]:
        """A worker that fails each first attempt of what is to fail, and buries what is to die."""

        async def handle(run: RunContext) -> None:
            wish = (run.payload or {}).get("wish")
            if wish == "die":
                raise PermanentFailure("as was asked for")
            if wish == "fail" and run.attempt == 1:
                raise RuntimeError("as was asked for")
            if wish == "stay":
                await asyncio.sleep(3600)

        async with FencepostClient(self.url, self.token) as client:
            worker = Worker(client, QUEUE, handle, slots=20)
            running = asyncio.create_task(worker.run())
            try:
                yield client
            finally:
                await worker.drain(0)
                await running


@pytest_asyncio.fixture
async def lived(kafka_broker: KafkaBroker, empty_ledger_dsn: str, tmp_path: Path) -> AsyncIterator[Lived]:
    async with installed(kafka_broker.bootstrap, [empty_ledger_dsn], tmp_path) as installation:
        yield Lived(installation, empty_ledger_dsn, kafka_broker.bootstrap)


def soon(**wishes: Any) -> JobSpec:
    due = at(datetime.now(UTC))
    return JobSpec(queue=QUEUE, schedule=due, payload=wishes, retry_base_seconds=0.1, retry_max_seconds=0.1)


async def live_richly(client: FencepostClient, lived: Lived) -> None:
    """Everything that can happen to a run or a job, or nearly."""
    for wish in ("succeed", "fail", "die"):
        for _ in range(5):
            await client.create_job(soon(wish=wish))
    often = JobSpec(queue=QUEUE, schedule=every(1), overlap="skip")
    recurring = [(await client.create_job(often)).job_id for _ in range(3)]
    stays = await client.create_job(
        JobSpec(queue=QUEUE, schedule=every(2), overlap="replace", payload={"wish": "stay"})
    )
    distant = (await client.create_job(JobSpec(queue=QUEUE, schedule=cron("0 4 1 1 *")))).job_id
    await client.trigger_job(distant)
    await lived.until("SELECT count(*) FROM runs WHERE state = 'cancelled'", lambda count: count > 1)  # replaced
    await client.pause_job(recurring[0])
    await client.update_job(recurring[1], JobSpec(queue=QUEUE, schedule=every(2)))
    await client.update_job(distant, JobSpec(queue=QUEUE, schedule=cron("0 5 1 1 *")))
    await client.update_job(distant, JobSpec(queue=QUEUE, schedule=cron("0 4 1 1 *")))  # and back
    await client.backfill(recurring[2], datetime.now(UTC) - timedelta(seconds=3), datetime.now(UTC))
    await lived.until("SELECT count(*) FROM runs WHERE state = 'dead'", lambda count: count == 5)
    await client.replay_dead(DeadFilter(queue=QUEUE))
    skipped = "SELECT count(*) FROM run_events WHERE type = 'run_skipped' OR type = 'run_held'"
    await lived.until(skipped, lambda count: count > 0)
    await client.resume_job(recurring[0])
    await client.delete_job(stays.job_id)
    await lived.until("SELECT count(*) FROM run_events WHERE type = 'run_dead'", lambda count: count == 10)
    later = f"SELECT count(*) FROM runs WHERE job_id = '{recurring[0]}' AND state = 'completed'"
    done = (await lived.rows(later))[0][0]
    await lived.until(later, lambda count: count >= done + 3)


async def test_a_rich_life_gets_its_certificate_from_the_history_and_from_the_topic(lived: Lived) -> None:
    begin = datetime.now(UTC)
    async with lived.working() as client:
        await live_richly(client, lived)
    now = datetime.now(UTC)
    newest = "SELECT max(happened_at) FROM run_events"
    await lived.until(newest, lambda at: datetime.fromisoformat(at) > now + timedelta(seconds=2))
    when = ["--from", begin.isoformat(), "--to", now.isoformat()]
    by_history = await lived.certificate(*when)
    assert by_history["violations"] == []
    assert (by_history["verdict"], by_history["exit"]) == ("holds", 0)
    facts = {rule["rule"]: rule["facts"] for rule in by_history["rules"]}
    assert [rule for rule, count in facts.items() if not count and rule != "leases_end_no_sooner_than_promised"] == []

    prefix = ["--topic-prefix", lived.topics.prefix, "--tenant", "acme"]
    by_topic = await lived.certificate("--bootstrap", lived.bootstrap, *prefix, *when)
    assert (by_topic["verdict"], by_topic["exit"]) == ("holds", 0)
    assert by_topic["counts"]["events"] == by_history["counts"]["events"] > 100
    assert {rule["rule"]: rule["facts"] for rule in by_topic["rules"]} == facts

    middle = begin + (now - begin) / 2
    from_the_middle = await lived.certificate("--from", middle.isoformat(), "--to", now.isoformat())
    assert from_the_middle["violations"] == []


COMPLETE_AGAIN = """
INSERT INTO outbox (event, job_ids, run_ids, partitions, tenants, queues, lanes, versions, attempts, lease_tokens,
                    scheduled_for, worker_ids)
VALUES ('run_completed', ARRAY[%(job_id)s::uuid], ARRAY[%(run_id)s::uuid], ARRAY[%(partition)s::int], ARRAY['acme'],
        ARRAY['verified'], ARRAY[1], ARRAY[4], ARRAY[1], ARRAY[1], ARRAY[now()], ARRAY['zombie'])
"""


async def test_following_tells_at_once_of_a_run_that_is_completed_again(lived: Lived) -> None:
    async with lived.working() as client:
        job_id = (await client.create_job(soon())).job_id
        await lived.until("SELECT count(*) FROM runs WHERE state = 'completed'", lambda count: count == 1)
        following = await lived.verify("--follow", "--json", "--last", "5m")
        assert following.stdout is not None
        assert following.stderr is not None
        async with asyncio.timeout(60):
            await following.stderr.readuntil(b"following")
        await client.create_job(soon())
        await lived.until("SELECT count(*) FROM runs WHERE state = 'completed'", lambda count: count == 2)
        [[run_id]] = await lived.rows(f"SELECT run_id FROM runs WHERE job_id = '{job_id}'")
        with psycopg.connect(lived.dsn, autocommit=True) as conn:
            partition = UUID(run_id).int >> 64 & 0xFFF
            conn.execute(COMPLETE_AGAIN, {"job_id": job_id, "run_id": run_id, "partition": partition})
        async with asyncio.timeout(60):
            found = [json.loads(await following.stdout.readline()) for _ in range(2)]
        assert {each["rule"] for each in found} == {"lives_are_legal", "completed_at_most_once"}
        assert [line["event"] for line in found[0]["trace"]] == ["scheduled", "leased", "completed", "completed"]
        following.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            told, _ = await following.communicate()
    made = json.loads(told.splitlines()[-1])
    assert (made["verdict"], following.returncode) == ("violated", 1)
    assert (made["counts"]["runs"], made["counts"]["completed"]) == (2, 3)
