"""Each class of calls overrun by real requests: what is shed of it, and that those after it are served meanwhile.

What overruns them is a lock in Postgres, on which calls pile up: on the table of jobs those that read or make jobs, on
rows of runs those that lease or end them.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest
import pytest_asyncio

from api import budgets
from api.app import ApiSettings
from api.budgets import REFUSED_AT_ONCE, REFUSED_PER_S, RETRY_AFTER_S, RefusalPace, ShedAt
from ledger.connection import Pool, session
from ledger.shards import Shards
from schemas.ids import new_id
from tests.api.owner import Owner
from tests.api.served import Served, serving

JOBS = b"LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE"
WAIT_FOR_LOCK = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
Request = Callable[[], Awaitable[httpx.Response]]


@pytest.fixture
def shed_at() -> ShedAt:
    return ShedAt(reads=2, creates=4, outcomes=6, leases=8)


@pytest.fixture
def settings(settings: ApiSettings, shed_at: ShedAt) -> ApiSettings:
    return dataclasses.replace(settings, shed_at=shed_at)


@pytest_asyncio.fixture
async def served(shards: Shards, ledger_pool: Pool, settings: ApiSettings) -> AsyncIterator[Served]:
    async with serving(shards, ledger_pool, settings, "admin") as served:
        yield served


@asynccontextmanager
async def locked(dsn: str, statement: bytes, *parameters: Any) -> AsyncIterator[None]:
    """Inside, somebody holds what the statement locks."""
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        await conn.execute(statement, parameters)
        yield


def rows(run_ids: Sequence[UUID]) -> tuple[bytes, list[UUID]]:
    return b"SELECT 1 FROM runs WHERE run_id = ANY (%s) FOR UPDATE", list(run_ids)


class Piled:
    """Calls that hang."""

    def __init__(self, served: Served) -> None:
        self._served, self._tasks = served, list[asyncio.Task[httpx.Response]]()

    async def up(self, *requests: Request) -> None:
        """Return once these are in hand as well."""
        self._tasks += [asyncio.ensure_future(request()) for request in requests]
        await self._served.until("fencepost_api_requests_in_hand", len(self._tasks))

    async def statuses(self) -> set[int]:
        return {response.status_code for response in await asyncio.gather(*self._tasks)}


def read(served: Served) -> Request:
    return lambda: served.client.get(f"/v1/jobs/{new_id()}")


def create(served: Served, key: str | None = None) -> Request:
    """With a key it begins with a look for the job; without one it waits for the owner before any."""
    body, headers = {"queue": "mail", "schedule": {"cron": "0 0 1 1 *"}}, {"idempotency-key": key} if key else {}
    return lambda: served.client.post("/v1/jobs", json=body, headers=headers)


def complete(served: Served, run: dict[str, Any]) -> Request:
    return lambda: served.post(f"/v1/runs/{run['runId']}/complete", {"leaseToken": run["leaseToken"]})


def lease(served: Served, **fields: Any) -> Request:
    return lambda: served.post("/v1/queues/mail/lease", {"workerId": "w", "max": 1, **fields})


async def shed(*requests: Request) -> None:
    """Each is answered at once, though nothing of what hangs goes on."""
    for response in await asyncio.gather(*(request() for request in requests)):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.headers["content-type"] == "application/problem+json"
        told = response.json()
        assert (told["status"], told["retryAfterSeconds"]) == (503, 1.0)
        assert "too much is under way" in told["detail"]


async def counted(served: Served) -> list[float]:
    """How many were shed of each class, reads first."""
    names = ("reads", "creates", "outcomes", "leases")
    return [await served.sample(f'fencepost_api_requests_shed_total{{class="{name}"}}') for name in names]


async def waiting_for_a_lock(pool: Pool) -> int:
    async with session(pool) as conn:
        row = await (await conn.execute(WAIT_FOR_LOCK.encode())).fetchone()
    assert row is not None
    return int(row[0])


async def leased(served: Served, owner: Owner, count: int) -> list[dict[str, Any]]:
    await owner.make_due(count)
    runs: list[dict[str, Any]] = []
    while len(runs) < count:
        runs += await served.lease(max=count, waitSeconds=5)
    return runs


async def test_reads_are_shed_while_creates_outcomes_and_leases_are_served(
    served: Served, owner: Owner, ledger_dsn: str
) -> None:
    [run] = await leased(served, owner, 1)
    await owner.make_due()
    piled = Piled(served)
    async with owner.applying_commands():
        async with locked(ledger_dsn, JOBS):
            await piled.up(read(served), read(served))
            await shed(read(served), lambda: served.post("/v1/query", {"sql": "SELECT 1"}))
            await piled.up(create(served, "taken on"))
            assert (await complete(served, run)()).status_code == 200
            assert len(await served.lease(waitSeconds=5)) == 1
        assert await piled.statuses() == {404, 201}
    assert await counted(served) == [2, 0, 0, 0]


async def test_creates_are_shed_while_outcomes_and_leases_are_served(
    served: Served, owner: Owner, ledger_dsn: str
) -> None:
    [run] = await leased(served, owner, 1)
    await owner.make_due()
    piled = Piled(served)
    async with owner.applying_commands():
        async with locked(ledger_dsn, JOBS):
            await piled.up(*(create(served, key) for key in "1234"))
            await shed(create(served, "5"), lambda: served.post(f"/v1/jobs/{new_id()}/trigger", {}), read(served))
            assert (await complete(served, run)()).status_code == 200
            assert len(await served.lease(waitSeconds=5)) == 1
            assert (await served.post("/v1/queues/mail/pause", {})).status_code == 200
        assert await piled.statuses() == {201}
    assert await counted(served) == [1, 2, 0, 0]


async def test_outcomes_are_shed_while_leases_are_served(served: Served, owner: Owner, ledger_dsn: str) -> None:
    *runs, last = await leased(served, owner, 7)
    await owner.make_due()
    piled = Piled(served)
    beats = {"runs": [{"runId": last["runId"], "leaseToken": last["leaseToken"]}]}
    async with locked(ledger_dsn, *rows([UUID(run["runId"]) for run in runs])):
        await piled.up(*(complete(served, run) for run in runs))
        beat = lambda: served.post("/v1/runs/heartbeat", beats)  # noqa: E731
        await shed(complete(served, last), beat, create(served), read(served))
        assert len(await served.lease(waitSeconds=5)) == 1
    assert await piled.statuses() == {200}
    assert (await complete(served, last)()).status_code == 200
    assert await counted(served) == [1, 1, 2, 0]


async def test_leases_are_shed_last(served: Served, owner: Owner, ledger_dsn: str) -> None:
    made = await owner.make_due(8)
    piled = Piled(served)
    async with locked(ledger_dsn, *rows(made)):
        await piled.up(*(lease(served, waitSeconds=20) for _ in made))
        outcome = complete(served, {"runId": new_id(), "leaseToken": 1})
        await shed(lease(served), outcome, create(served), read(served))
        assert (await served.client.get("/healthz")).status_code == 200
    assert await piled.statuses() == {200}
    assert await counted(served) == [1, 1, 1, 1]
    assert (await read(served)()).status_code == 404


async def test_polls_that_wait_take_nothing_and_are_all_answered_however_many_there_are(
    served: Served, owner: Owner, shed_at: ShedAt
) -> None:
    count = 5 * shed_at.leases
    polls = [asyncio.ensure_future(lease(served, waitSeconds=20)()) for _ in range(count)]
    await served.until("fencepost_api_long_polls_waiting", count)
    assert await served.metric("fencepost_api_requests_in_hand") == 0
    assert (await read(served)()).status_code == 404
    await owner.make_due(count)
    answers = await asyncio.gather(*polls)
    assert [len(answer.json()["runs"]) for answer in answers] == [1] * count
    assert await served.metric("fencepost_api_requests_in_hand") == 0


async def test_creates_that_wait_for_their_owner_hold_up_nobody_but_may_not_be_too_many(
    monkeypatch: pytest.MonkeyPatch, shards: Shards, ledger_pool: Pool, settings: ApiSettings, owner: Owner,
    ledger_dsn: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(budgets, "COMMANDS_WAITING", 4)
    async with serving(shards, ledger_pool, settings, "admin") as served, owner.applying_commands():
        async with locked(ledger_dsn, JOBS):
            creates = [asyncio.ensure_future(create(served)()) for _ in range(4)]
            await served.until("fencepost_api_commands_waiting", 4)
            await shed(create(served))
            assert await served.metric("fencepost_api_requests_in_hand") == 0
            assert (await served.client.get("/v1/whoami")).status_code == 200
        assert {response.status_code for response in await asyncio.gather(*creates)} == {201}


async def test_slow_reads_leave_sessions_to_others(
    shards: Shards, ledger_pool: Pool, settings: ApiSettings, owner: Owner, ledger_dsn: str
) -> None:
    with_room = dataclasses.replace(settings, shed_at=ShedAt())
    async with serving(shards, ledger_pool, with_room, "admin") as served:
        [run] = await leased(served, owner, 1)
        await owner.make_due()
        piled = Piled(served)
        async with locked(ledger_dsn, JOBS):
            await piled.up(*[read(served)] * (2 * ledger_pool.max_size))
            async with asyncio.timeout(10):
                while await waiting_for_a_lock(ledger_pool) < budgets.SESSIONS_OF_READS:
                    pass
            assert (await complete(served, run)()).status_code == 200
            assert len(await served.lease(waitSeconds=5)) == 1
            assert await waiting_for_a_lock(ledger_pool) == budgets.SESSIONS_OF_READS
        await piled.statuses()


def test_who_is_shed_is_told_at_once_unless_many_are() -> None:
    pace = RefusalPace()
    assert {pace.wait_s(1_000.0) for _ in range(REFUSED_AT_ONCE)} == {0.0}
    waits_s = [pace.wait_s(1_000.0) for _ in range(1_000)]
    assert waits_s[:2] == pytest.approx([1 / REFUSED_PER_S, 2 / REFUSED_PER_S])
    assert waits_s[-1] == max(waits_s) == RETRY_AFTER_S
    assert pace.wait_s(1_000.0 + RETRY_AFTER_S + 2 / REFUSED_PER_S) == 0.0


@pytest.mark.parametrize("numbers", [(0, 1, 2, 3), (2, 1, 3, 4), (1, 3, 2, 4), (1, 2, 4, 3)])
def test_no_class_may_be_shed_before_one_that_goes_first(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="leases last"):
        ShedAt(*numbers)
