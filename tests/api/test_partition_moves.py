"""Calls about runs whose partition is just moving to another shard: they wait, and are answered as ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from api.app import Api
from ledger import partition_moves
from ledger.connection import Connection, Pool
from ledger.partition_moves import move_partition
from ledger.shard_map import ShardMap, read_changes
from ledger.shards import Shards, open_shards
from schemas.ids import partition_of_run
from tests.api.conftest import Caller
from tests.api.owner import Owner
from tests.ledger.moving import holders, relaying
from tests.ledger_fixtures import Database, all_back


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_moves, "STALE_S", 0.0)
    monkeypatch.setattr(partition_moves, "DRAINED_WITHIN_S", 60.0)
    monkeypatch.setattr("ledger.shards.LOOK_EVERY_S", 3600.0)  # the API learns of a move by being refused


@pytest.fixture
def patience_s() -> float:
    """Nobody applies commands."""
    return 0.2


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[ShardMap]:
    """Each time that somebody reads the map."""
    readings: list[ShardMap] = []

    async def noting(home: Connection, known: ShardMap) -> ShardMap:
        readings.append(found := await read_changes(home, known))
        return found

    monkeypatch.setattr("ledger.shards.read_changes", noting)
    return readings


@pytest_asyncio.fixture
async def shards(two_ledgers: list[Database]) -> AsyncIterator[Shards]:
    async with open_shards(two_ledgers[0].dsn, size=8) as shards:
        await all_back(shards)  # sessions are there before the test starts
        yield shards


@pytest.fixture
def ledger_pool(shards: Shards) -> Pool:
    """Home: where tokens are."""
    return shards.home


@pytest_asyncio.fixture
async def mover(two_ledgers: list[Database]) -> AsyncIterator[Shards]:
    """Another process's: what it knows of the map the API does not."""
    async with open_shards(two_ledgers[0].dsn, size=4) as mover, relaying(mover):
        yield mover


async def move(mover: Shards, partition: int, while_nobody_has_it: Callable[[], Awaitable[object]]) -> None:
    """To the other shard."""

    async def step(done: str) -> None:
        if done == "frozen":
            assert await holders(mover, partition) == []
            await while_nobody_has_it()

    await mover.look_again()
    await move_partition(mover, partition, 1 - mover.number_of(partition), lambda _: None, step=step)


async def nothing() -> None:
    pass


class UnderWay:
    """Calls that are begun at one time and looked at later."""

    def __init__(self, *calls: Callable[[], Awaitable[Any]]) -> None:
        self._calls = calls
        self.tasks: list[asyncio.Task[Any]] = []

    async def begin(self) -> None:
        self.tasks = [asyncio.ensure_future(call()) for call in self._calls]
        done, _ = await asyncio.wait(self.tasks, timeout=0.3)
        assert not done, [task.result() for task in done]


async def test_no_call_reads_the_map_until_a_shard_refuses_what_has_moved(
    worker: Caller, producer: Caller, owner: Owner, api: Api, mover: Shards, readings: list[ShardMap]
) -> None:
    async def create(number: int) -> None:
        body = {"queue": "mail", "schedule": {"everySeconds": 3600}}
        assert (await producer.post("/v1/jobs", body, idempotency_key=f"job-{number}")).status_code == 202

    async def execute(run_id: UUID) -> None:
        api.index.add(("acme", "mail"), owner.ready([run_id]))
        [run] = await worker.lease(waitSeconds=10)
        done = await worker.post(f"/v1/runs/{run_id}/complete", {"leaseToken": run["leaseToken"]})
        assert done.status_code == 200, done.text

    [run_id] = await owner.make_due()
    await create(1)
    await execute(run_id)
    assert readings == []
    [moving] = await owner.make_due()
    await move(mover, partition_of_run(moving), nothing)
    readings.clear()
    await execute(moving)
    await create(2)
    assert len(readings) == 1


async def test_outcomes_wait_for_the_partition_and_are_accepted(
    worker: Caller, owner: Owner, api: Api, mover: Shards
) -> None:
    made = await owner.make_due(8)
    api.index.add(("acme", "mail"), owner.ready(made))
    single, *rest = await worker.lease(max=len(made), visibilitySeconds=3600)
    partition = partition_of_run(made[0])
    of_it = next(run for run in (single, *rest) if run["runId"] == str(made[0]))
    batch = [run for run in (single, *rest) if run is not of_it]

    async def beat() -> Any:
        asks = [{"runId": run["runId"], "leaseToken": run["leaseToken"]} for run in (of_it, *batch)]
        return (await worker.post("/v1/runs/heartbeat", {"runs": asks})).json()

    async def fail() -> Any:
        body = {"leaseToken": of_it["leaseToken"], "error": "odd", "retryAfterSeconds": 60}
        return (await worker.post(f"/v1/runs/{of_it['runId']}/fail", body)).json()

    under_way = UnderWay(beat)
    await move(mover, partition, under_way.begin)
    answer = await under_way.tasks[0]
    assert [item["status"] for item in answer["results"]] == [200] * len(made)
    under_way = UnderWay(fail)
    await move(mover, partition, under_way.begin)
    assert (await under_way.tasks[0])["outcome"] == "retried"
    asks = [{"runId": run["runId"], "leaseToken": run["leaseToken"]} for run in batch]
    answer = (await worker.post("/v1/runs/complete", {"runs": asks})).json()
    assert [item["status"] for item in answer["results"]] == [200] * len(batch)


async def test_a_lease_call_waits_for_runs_of_the_partition_and_gets_them_under_the_old_hint(
    worker: Caller, owner: Owner, api: Api, mover: Shards
) -> None:
    made = await owner.make_due(1)

    async def lease() -> list[dict[str, Any]]:
        api.index.add(("acme", "mail"), owner.ready(made))
        return await worker.lease(max=5, waitSeconds=20)

    under_way = UnderWay(lease)
    await move(mover, partition_of_run(made[0]), under_way.begin)
    [run] = await under_way.tasks[0]
    assert run["runId"] == str(made[0])
    completed = await worker.post(f"/v1/runs/{run['runId']}/complete", {"leaseToken": run["leaseToken"]})
    assert completed.status_code == 200, completed.text


async def test_runs_of_other_partitions_are_leased_and_completed_meanwhile(
    worker: Caller, owner: Owner, api: Api, mover: Shards
) -> None:
    made = await owner.make_due(10)
    partition = partition_of_run(made[0])
    others = {str(run_id) for run_id in made if partition_of_run(run_id) != partition}

    async def meanwhile() -> None:
        api.index.add(("acme", "mail"), owner.ready(made))
        runs = await worker.lease(max=len(made), waitSeconds=10)
        assert {run["runId"] for run in runs} == others
        asks = [{"runId": run["runId"], "leaseToken": run["leaseToken"]} for run in runs]
        answer = (await worker.post("/v1/runs/complete", {"runs": asks})).json()
        assert [item["status"] for item in answer["results"]] == [200] * len(asks)

    await move(mover, partition, meanwhile)
    got: list[dict[str, Any]] = []
    while len(got) + len(others) < len(made):
        got += await worker.lease(max=len(made), waitSeconds=10)
    assert others | {run["runId"] for run in got} == set(map(str, made))


async def test_a_partition_that_stays_away_is_told_as_a_failure_that_passes(
    worker: Caller, owner: Owner, api: Api, mover: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.outcomes.MOVES_WITHIN_S", 0.1)
    made = await owner.make_due(4)
    api.index.add(("acme", "mail"), owner.ready(made))
    runs = await worker.lease(max=len(made), visibilitySeconds=3600)
    partition = partition_of_run(made[0])
    gone = [partition_of_run(run_id) == partition for run_id in made]

    async def try_both() -> None:
        asks = [{"runId": run["runId"], "leaseToken": run["leaseToken"]} for run in runs]
        answer = (await worker.post("/v1/runs/heartbeat", {"runs": asks})).json()
        if not all(gone):
            assert [item["status"] for item in answer["results"]] == [503 if away else 200 for away in gone]
        single = await worker.post(f"/v1/runs/{made[0]}/complete", {"leaseToken": runs[0]["leaseToken"]})
        assert (single.status_code, single.headers["retry-after"]) == (503, "1")
        assert "is being moved to another shard" in single.json()["detail"]

    await move(mover, partition, try_both)
