"""Limits of live runs, of a queue and of its concurrency keys: two API processes on two shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from api.app import Api, ApiSettings
from ledger.connection import Pool, session
from ledger.leases import LeaseAsk, lease_at_once
from ledger.partitions import list_partitions
from ledger.permits import Wish, take_permits
from ledger.queue_settings import QueueName
from ledger.shards import Shards, open_shards
from schemas.ids import partition_of_run
from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner
from tests.ledger_fixtures import Database

MAIL = QueueName("acme", "mail")
QUEUE = "/v1/queues/mail"


@pytest_asyncio.fixture
async def shards(two_ledgers: list[Database]) -> AsyncIterator[Shards]:
    async with open_shards(two_ledgers[0].dsn, size=8) as shards:
        await shards.ask_all(list_partitions)
        yield shards


@pytest.fixture
def ledger_pool(shards: Shards) -> Pool:
    """Home: where tokens are."""
    return shards.home


@pytest_asyncio.fixture
async def another_api(two_ledgers: list[Database], settings: ApiSettings) -> AsyncIterator[Api]:
    """A second process on the same ledger, with sessions of its own."""
    async with open_shards(two_ledgers[0].dsn, size=8) as shards:
        api = Api(shards, settings)
        async with api.running():
            yield api


@pytest_asyncio.fixture
async def another_worker(another_api: Api, ledger_pool: Pool) -> Caller:
    return await Callers(another_api, ledger_pool)("worker")


async def limit(operator: Caller, **limits: int | None) -> dict[str, Any]:
    response = await operator.patch(QUEUE, limits)
    assert response.status_code == 200, response.text
    view: dict[str, Any] = response.json()
    return view


async def end(worker: Caller, runs: Sequence[dict[str, Any]], how: str = "complete", **fields: Any) -> None:
    for run in runs:
        response = await worker.post(f"/v1/runs/{run['runId']}/{how}", {"leaseToken": run["leaseToken"], **fields})
        assert response.status_code == 200, response.text


async def live_runs(shards: Shards) -> set[UUID]:
    rows = await shards.ask_all(_leased)
    return {run_id for shard in rows for (run_id,) in shard}


async def _leased(conn: Any) -> list[Any]:
    return await (await conn.execute("SELECT run_id FROM runs WHERE state = 'leased'")).fetchall()  # type: ignore[no-any-return]


async def permits(shards: Shards) -> set[UUID]:
    async with session(shards.home) as conn:
        return {run_id for (run_id,) in await (await conn.execute("SELECT run_id FROM permits")).fetchall()}


async def until_no_permit_is_out(shards: Shards) -> None:
    async with asyncio.timeout(20):
        while await permits(shards):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # the upkeep tells nobody


async def test_no_more_runs_of_a_queue_are_leased_than_it_may_have_live(
    worker: Caller, another_worker: Caller, operator: Caller, owner: Owner, shards: Shards, api: Api
) -> None:
    await limit(operator, maxLiveRuns=3)
    await owner.make_due(12)
    polls = await asyncio.gather(*(each.lease(max=5, waitSeconds=1) for each in (worker, another_worker) * 3))
    assert sum(map(len, polls)) == 3
    view = (await operator.get(QUEUE)).json()
    assert (view["liveRuns"], view["maxLiveRuns"], view["maxLiveRunsPerKey"]) == (3, 3, None)
    assert await permits(shards) == await live_runs(shards)
    await api.permit_upkeep.sweep()
    assert api.metrics.permits_out._value.get() == 3


async def test_a_place_that_a_run_leaves_is_another_s_at_once(worker: Caller, operator: Caller, owner: Owner) -> None:
    await limit(operator, maxLiveRuns=1)
    await owner.make_due(6)
    done: list[str] = []
    for how, fields in (
        ("complete", {}),
        ("fail", {"error": "x", "permanent": True}),
        ("snooze", {"delaySeconds": 99}),
    ):
        [run] = await worker.lease(waitSeconds=10)
        waiting = asyncio.create_task(worker.lease(waitSeconds=20))
        await end(worker, [run], how, **fields)
        [following] = await waiting
        await end(worker, [following])
        done += [run["runId"], following["runId"]]
    assert len({*done}) == 6


async def test_all_of_a_backlog_is_worked_off_within_the_limit(
    worker: Caller, another_worker: Caller, operator: Caller, owner: Owner, shards: Shards
) -> None:
    await limit(operator, maxLiveRuns=4)
    made = {str(run_id) for run_id in await owner.make_due(60)}
    done: set[str] = set()
    most = 0

    async def work(caller: Caller) -> None:
        nonlocal most
        while len(done) < len(made):
            runs = await caller.lease(max=3, waitSeconds=2)
            most = max(most, len(await live_runs(shards)))
            await end(caller, runs)
            done.update(run["runId"] for run in runs)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(caller) for caller in (worker, another_worker) for _ in range(3)))
    assert done == made
    assert 0 < most <= 4
    await until_no_permit_is_out(shards)


async def test_a_full_key_holds_up_neither_other_keys_nor_runs_without_one(
    worker: Caller, operator: Caller, owner: Owner
) -> None:
    await limit(operator, maxLiveRunsPerKey=1)
    made = await owner.make_due(250, concurrency_key="a", due_in_s=-10)  # more than a look finds, or are kept
    others = await owner.make_due(concurrency_key="b") + await owner.make_due(2)
    got: set[UUID] = set()
    async with asyncio.timeout(30):
        while len(got) < 4:
            got |= {UUID(run["runId"]) for run in await worker.lease(max=10, waitSeconds=5)}
    assert got.issuperset(others)
    assert len(got.intersection(made)) == 1
    assert await worker.lease(max=10, waitSeconds=1) == []


async def test_runs_of_one_key_go_one_after_the_other_in_the_order_they_were_due(
    worker: Caller, operator: Caller, owner: Owner, api: Api
) -> None:
    await limit(operator, maxLiveRunsPerKey=1)
    made = await owner.make_due(5, concurrency_key="a")
    api.index.add(MAIL, owner.ready(made))
    got = []
    for _ in made:
        [run] = await worker.lease(max=10, waitSeconds=10)
        got.append(run["runId"])
        await end(worker, [run])
    assert got == [str(run_id) for run_id in made]


async def test_another_queue_goes_on_beside_a_full_one_in_the_same_call(
    worker: Caller, operator: Caller, owner: Owner
) -> None:
    await limit(operator, maxLiveRuns=1)
    await owner.make_due(3)
    [sms] = await owner.make_due(queue="sms")
    got: list[str] = []
    async with asyncio.timeout(20):
        while len(got) < 2:
            asked = {"workerId": "w1", "max": 10, "waitSeconds": 2, "queues": ["mail", "sms"]}
            got += [run["runId"] for run in (await worker.post("/v1/lease", asked)).json()["runs"]]
    assert str(sms) in got


async def test_what_was_leased_before_there_was_a_limit_counts(
    worker: Caller, another_worker: Caller, operator: Caller, owner: Owner, shards: Shards
) -> None:
    await owner.make_due(6)
    before: list[dict[str, Any]] = []
    while len(before) < 4:
        before += await worker.lease(max=4 - len(before), waitSeconds=5)
    assert (await limit(operator, maxLiveRuns=2))["liveRuns"] == 4
    assert await another_worker.lease(waitSeconds=1.5) == []
    await end(worker, before[:2])
    assert await another_worker.lease(waitSeconds=1.5) == []  # 2 are live still
    await end(worker, before[2:3])
    assert len(await another_worker.lease(waitSeconds=10)) == 1
    assert await permits(shards) >= await live_runs(shards)


async def test_a_lower_limit_takes_no_lease_away_and_a_higher_one_gives_more(
    worker: Caller, operator: Caller, owner: Owner
) -> None:
    await limit(operator, maxLiveRuns=3)
    await owner.make_due(8)
    runs = await worker.lease(max=3, waitSeconds=5)
    assert len(runs) == 3
    await limit(operator, maxLiveRuns=1)
    assert [(await worker.post(f"/v1/runs/{run['runId']}/heartbeat", {"leaseToken": run["leaseToken"]})).status_code
            for run in runs] == [200] * 3  # fmt: skip
    await end(worker, runs[:2])
    assert await worker.lease(waitSeconds=1.5) == []
    await limit(operator, maxLiveRuns=4)
    assert len(await worker.lease(max=10, waitSeconds=10)) == 3


async def test_without_its_limit_a_queue_goes_on_as_before(
    worker: Caller, another_worker: Caller, operator: Caller, owner: Owner, shards: Shards
) -> None:
    await limit(operator, maxLiveRuns=1)
    await owner.make_due(5)
    [run] = await worker.lease(max=5, waitSeconds=5)
    view = await limit(operator, maxLiveRuns=None)
    assert (view["maxLiveRuns"], view["liveRuns"]) == (None, None)
    got: list[dict[str, Any]] = []
    async with asyncio.timeout(20):
        while len(got) < 4:
            got += await another_worker.lease(max=5, waitSeconds=2)
    await end(worker, [run, *got])
    await until_no_permit_is_out(shards)


async def test_an_expired_lease_gives_its_place_to_another(
    worker: Caller, operator: Caller, owner: Owner, shards: Shards
) -> None:
    await limit(operator, maxLiveRuns=1)
    await owner.make_due(2, max_attempts=1)
    [run] = await worker.lease(waitSeconds=5, visibilitySeconds=1)
    waiting = asyncio.create_task(worker.lease(waitSeconds=20))
    async with asyncio.timeout(10):
        while not await owner.expire(UUID(run["runId"])):  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # no clock of ours ends a lease
    [following] = await waiting
    assert following["runId"] != run["runId"]
    assert len(await live_runs(shards)) == 1


async def test_a_permit_that_a_crash_left_without_a_lease_comes_back(
    worker: Caller, operator: Caller, owner: Owner, shards: Shards
) -> None:
    await limit(operator, maxLiveRuns=1)
    made = await owner.make_due(2)
    taken = await take_permits(shards.home, MAIL, [Wish(made[0], None)])  # whose process dies here
    assert taken is not None
    [run] = await worker.lease(waitSeconds=20)
    # It was not dead, only frozen: its permit is good for nothing now.
    asks = [LeaseAsk(run_id, owner.fences[partition_of_run(run_id)].epoch, "w", 30.0, permit=permit)
            for run_id, permit in taken.permits.items()]  # fmt: skip
    assert await lease_at_once(shards.of_run(made[0]), asks) == []
    assert await live_runs(shards) == {UUID(run["runId"])}


async def test_a_permit_whose_run_ended_unheard_comes_back(
    worker: Caller, operator: Caller, owner: Owner, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit(operator, maxLiveRuns=1)
    await owner.make_due(2)
    [run] = await worker.lease(waitSeconds=5)
    monkeypatch.setattr(api.permits, "give_back", lambda spent: [*spent])  # the process dies between the two
    await end(worker, [run])
    monkeypatch.undo()
    assert len(await worker.lease(waitSeconds=20)) == 1


async def test_a_lease_without_a_permit_is_refused_by_the_run_s_shard(
    operator: Caller, owner: Owner, shards: Shards
) -> None:
    made = await owner.make_due(6)
    await limit(operator, maxLiveRuns=6)
    for run_id in made:
        ask = LeaseAsk(run_id, owner.fences[partition_of_run(run_id)].epoch, "w", 30.0)
        assert await lease_at_once(shards.of_run(run_id), [ask]) == []


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "3", True, 1_000_001])
@pytest.mark.parametrize("field", ["maxLiveRuns", "maxLiveRunsPerKey"])
async def test_a_limit_that_is_none_is_rejected(operator: Caller, field: str, wrong: Any) -> None:
    response = await operator.patch(QUEUE, {field: wrong})
    assert (response.status_code, response.json()["field"]) == (422, field)
