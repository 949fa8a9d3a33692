"""The role on a real socket: clients that hang up, calls that arrive together, and a stop in the middle of it all."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import httpx
import pytest
import pytest_asyncio

from api.api_role import ApiRole
from api.app import ApiSettings
from ledger.connection import Pool, session
from ledger.connection import ledger_pool as open_ledger_pool
from ledger.fence import FENCE_PARTITIONS
from ledger.runs import read_run
from ledger.shards import Shards
from schemas.ids import partition_of_run
from tests.api.owner import Owner
from tests.api.served import Served, serving
from tests.ledger_fixtures import PARTITIONS


@pytest_asyncio.fixture
async def served(shards: Shards, ledger_pool: Pool, settings: ApiSettings) -> AsyncIterator[Served]:
    async with serving(shards, ledger_pool, settings) as served:
        yield served


async def until_it_leaves(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(10):
        while (await client.get("/readyz")).json()["state"] != "leaving":
            pass  # each look is a call of its own


async def run_state(pool: Pool, run_id: UUID) -> tuple[str, int, int]:
    async with session(pool) as conn:
        run = await read_run(conn, run_id)
    assert run is not None
    return run.state, run.attempt, run.lease_token


async def test_the_whole_way_over_http(served: Served, owner: Owner) -> None:
    made = await owner.make_due(20)
    runs = await served.lease(max=20, waitSeconds=5)
    assert [run["runId"] for run in runs] == [str(run_id) for run_id in made]
    items = [{"runId": run["runId"], "leaseToken": run["leaseToken"]} for run in runs]
    answer = (await served.post("/v1/runs/complete", {"runs": items})).json()
    assert [result["status"] for result in answer["results"]] == [200] * 20


async def test_every_answer_tells_when_it_was_made(served: Served) -> None:
    seen = set[datetime]()
    async with asyncio.timeout(20):
        while len(seen) < 2:  # until the second has another
            began = datetime.now(UTC).replace(microsecond=0)
            answer = await served.client.get("/healthz")
            told = parsedate_to_datetime(answer.headers["date"])
            assert began <= told <= datetime.now(UTC)
            seen.add(told)


async def test_a_client_that_hangs_up_while_it_waits_is_forgotten(served: Served, owner: Owner) -> None:
    writer = await served.raw_lease(waitSeconds=20)
    await served.until("fencepost_api_long_polls_waiting", 1)
    writer.close()
    await served.until("fencepost_api_long_polls_waiting", 0)
    [run_id] = await owner.make_due()
    [run] = await served.lease(waitSeconds=5)
    assert (run["runId"], run["attempt"]) == (str(run_id), 1)


async def test_of_calls_in_a_row_on_one_connection_the_one_that_waits_is_forgotten_too(
    served: Served, owner: Owner
) -> None:
    writer = await served.raw_lease(waitSeconds=0)
    writer.write(served.lease_call(waitSeconds=20) + served.lease_call(waitSeconds=20))
    await served.until("fencepost_api_long_polls_waiting", 1)
    writer.close()
    await served.until("fencepost_api_long_polls_waiting", 0)
    [run_id] = await owner.make_due()
    [run] = await served.lease(waitSeconds=5)
    assert (run["runId"], run["attempt"]) == (str(run_id), 1)


async def test_a_client_that_hangs_up_while_its_lease_is_committed_leaves_no_lease(
    served: Served, owner: Owner, ledger_pool: Pool
) -> None:
    [run_id] = await owner.make_due()
    async with ledger_pool.connection() as conn, conn.transaction():
        # Whoever holds the row makes the lease wait in its transaction.
        await conn.execute("SELECT 1 FROM runs WHERE run_id = %s FOR UPDATE", (run_id,))
        writer = await served.raw_lease(waitSeconds=20)
        await served.until("fencepost_api_commit_batch_runs_sum", 1)
        writer.close()
        await served.until("fencepost_api_long_polls_waiting", 0)
        await asyncio.sleep(0.05)  # the hang-up reaches the server while the row is still held
    await served.until("fencepost_api_leases_given_back_total", 1)
    assert await run_state(ledger_pool, run_id) == ("pending", 0, 1)
    [run] = await served.lease(waitSeconds=5)
    assert (run["attempt"], run["leaseToken"]) == (1, 2)


async def test_a_call_withdrawn_before_its_transaction_leaves_its_runs_to_others(
    served: Served, owner: Owner, ledger_pool: Pool
) -> None:
    made = await owner.make_due(3)
    async with ledger_pool.connection() as conn, conn.transaction():
        await conn.execute("SELECT 1 FROM runs FOR UPDATE")
        writers = [await served.raw_lease(waitSeconds=20, max=1) for _ in range(3)]
        # Two transactions hang on the rows, the third call has not begun one.
        await served.until("fencepost_api_commit_batch_runs_count", 2)
        for writer in writers:
            writer.close()
        await asyncio.sleep(0.05)
    await served.until("fencepost_api_leases_given_back_total", 2)
    runs = await served.lease(waitSeconds=5, max=3)
    assert {run["runId"] for run in runs} == {str(run_id) for run_id in made}
    assert sorted(run["leaseToken"] for run in runs) == [1, 2, 2]
    assert {run["attempt"] for run in runs} == {1}


async def test_a_repeated_call_after_a_hang_up_gets_fresh_leases(
    served: Served, owner: Owner, ledger_pool: Pool
) -> None:
    [run_id] = await owner.make_due()
    request_id = str(uuid4())
    async with ledger_pool.connection() as conn, conn.transaction():
        await conn.execute("SELECT 1 FROM runs WHERE run_id = %s FOR UPDATE", (run_id,))
        writer = await served.raw_lease(waitSeconds=20, requestId=request_id)
        await served.until("fencepost_api_commit_batch_runs_sum", 1)
        writer.close()
        repeated = asyncio.create_task(served.lease(waitSeconds=20, requestId=request_id))
        await asyncio.sleep(0.1)
        assert not repeated.done()
    [run] = await repeated
    assert run["leaseToken"] == 2
    assert await run_state(ledger_pool, run_id) == ("leased", 1, 2)


async def test_single_calls_that_arrive_together_are_committed_together(served: Served, owner: Owner) -> None:
    await owner.make_due(100)
    runs = await served.lease(max=100, waitSeconds=5)
    before = await served.metric("fencepost_api_commit_batch_runs_count")
    responses = await asyncio.gather(
        *(served.post(f"/v1/runs/{run['runId']}/complete", {"leaseToken": run["leaseToken"]}) for run in runs)
    )
    assert {response.status_code for response in responses} == {200}
    assert await served.metric("fencepost_api_commit_batch_runs_count") - before < 50


async def test_a_stop_answers_who_waits_and_finishes_what_is_under_way(
    served: Served, owner: Owner, ledger_pool: Pool
) -> None:
    [run_id] = await owner.make_due()
    [run] = await served.lease(waitSeconds=5)
    poll = asyncio.create_task(served.lease(waitSeconds=20))
    await served.until("fencepost_api_long_polls_waiting", 1)
    async with ledger_pool.connection() as conn, conn.transaction():
        await conn.execute("SELECT 1 FROM runs WHERE run_id = %s FOR UPDATE", (run_id,))
        body = {"leaseToken": run["leaseToken"]}
        complete = asyncio.create_task(served.post(f"/v1/runs/{run_id}/complete", body))
        await served.until("fencepost_api_commit_batch_runs_sum", 2)
        served.stop.set()
        assert await poll == []
        assert not complete.done()
    assert (await complete).status_code == 200
    async with session(ledger_pool) as conn:
        assert await read_run(conn, run_id) is None


async def test_an_answer_at_the_stop_says_that_its_connection_is_closed(served: Served) -> None:
    """Else the worker's next call, which follows at once, may cross with the end of the connection."""
    poll = asyncio.create_task(served.post("/v1/queues/mail/lease", {"workerId": "w", "max": 1, "waitSeconds": 20}))
    await served.until("fencepost_api_long_polls_waiting", 1)
    served.stop.set()
    answer = await poll
    assert (answer.json()["runs"], answer.headers["connection"]) == ([], "close")


async def test_a_process_that_is_told_to_stop_gives_balancers_notice(
    shards: Shards, ledger_pool: Pool, settings: ApiSettings, owner: Owner
) -> None:
    async with serving(shards, ledger_pool, dataclasses.replace(settings, notice_s=5)) as served:
        served.stop.set()
        await until_it_leaves(served.client)
        poll = asyncio.create_task(served.lease(waitSeconds=20))
        [run_id] = await owner.make_due()
        [run] = await poll  # on a new connection, which waits as ever
        answer = await served.post(f"/v1/runs/{run_id}/complete", {"leaseToken": run["leaseToken"]})
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert await served.lease(waitSeconds=20) == []  # until the notice is over


async def test_a_takeover_in_between_costs_a_lease_nothing_but_a_moment(
    served: Served, owner: Owner, ledger_pool: Pool
) -> None:
    [run_id] = await owner.make_due()
    partition = partition_of_run(run_id)
    async with ledger_pool.connection() as conn, conn.transaction():
        await conn.execute(FENCE_PARTITIONS, ([partition],))
        takeover = asyncio.create_task(owner.take_over_all())
        poll = asyncio.create_task(served.lease(waitSeconds=10))
        await asyncio.sleep(0.1)
        assert not takeover.done()
    await takeover
    [run] = await poll
    assert run["runId"] == str(run_id)


async def test_a_port_that_is_taken_is_told_at_once(served: Served, shards: Shards, settings: ApiSettings) -> None:
    port = urlsplit(served.role.url).port
    assert port is not None
    with pytest.raises(OSError, match="in use"):
        ApiRole(shards, "127.0.0.1", port, settings)


async def test_without_the_ledger_a_call_answers_503_and_says_when_to_come_back(settings: ApiSettings) -> None:
    async with open_ledger_pool("postgresql://nobody@127.0.0.1:1/none") as pool:
        role = ApiRole(Shards.alone(pool, PARTITIONS), "127.0.0.1", 0, settings)
        stop = asyncio.Event()
        running = asyncio.create_task(role.run(stop))
        await role.ready.wait()
        async with httpx.AsyncClient(
            base_url=role.url, headers={"authorization": "Bearer fp_a_b"}, timeout=30
        ) as client:
            response = await client.post("/v1/queues/mail/lease", json={"workerId": "w", "max": 1})
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["ledger"]) == (503, "away")
            assert (await client.get("/healthz")).status_code == 200
        stop.set()
        await running
