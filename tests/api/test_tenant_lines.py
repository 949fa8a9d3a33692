"""Turns of tenants that compete for one process: who passes, who waits, and in what order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest

from api.app import Api
from api.budgets import Budget, Budgets, ShedAt
from api.metrics import ApiMetrics
from api.problems import Problem
from api.tenant_lines import ACTIVE_S, AT_ONCE, MOST_IN_LINE, SLACK, TenantLines, Turn
from ledger.clock import LedgerClock
from ledger.connection import Pool, session
from ledger.news import read_news
from tests.api.conftest import Caller, Callers
from tests.api.test_lease_quotas import TENANT

QUICK_S, LATE_S = 0.001, 0.050


class Workers:
    """Calls of tenants on lines of their own, under a clock of the test's."""

    def __init__(self) -> None:
        metrics = ApiMetrics()
        self.budget: Budget = Budgets(ShedAt(), metrics).leases
        self.now = 1_000.0
        self.lines = TenantLines(metrics, clock=lambda: self.now)
        self.order: list[str] = []  # of those whose turn it was
        self.turns: list[Turn] = []  # theirs
        self._calls: list[asyncio.Task[Turn]] = []

    def call(self, tenant: str, runs: int = 10) -> asyncio.Task[Turn]:
        """Ask for a turn."""
        self._calls.append(task := asyncio.create_task(self._take(tenant, runs)))
        return task

    async def _take(self, tenant: str, runs: int) -> Turn:
        turn = self.lines.turn(tenant, self.budget)
        await turn.take(runs, self.now)
        self.order.append(tenant)
        self.turns.append(turn)
        return turn

    async def flood(self, tenant: str, calls: int, runs: int = 10) -> list[Turn]:
        """So many calls at once; the turns of those that got one, which is more than the tenant's share."""
        tasks = [self.call(tenant, runs) for _ in range(calls)]
        await settle()
        return [task.result() for task in tasks if task.done()]

    async def beside_another(self) -> None:
        """From here on tenants compete, and flood has used more than its share."""
        (await self.call("other")).end(0)
        for _ in range(10):
            (await self.call("flood", 100)).end(100)

    async def stop(self) -> None:
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)


async def soon(call: asyncio.Task[Turn]) -> Turn:
    """Its turn. Raises TimeoutError when it is not to come."""
    async with asyncio.timeout(5):
        return await call


async def settle() -> None:
    """Let all that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def workers() -> Workers:
    return Workers()


async def test_a_tenant_alone_is_held_back_by_nothing(workers: Workers) -> None:
    turns = await workers.flood("flood", 10 * AT_ONCE, runs=1_000)
    assert len(turns) == 10 * AT_ONCE
    assert not any(turn.is_within for turn in turns)  # there is nobody whom it would have to pass


async def test_a_flood_waits_and_who_is_within_its_share_passes_at_once(workers: Workers) -> None:
    await workers.beside_another()
    turns = await workers.flood("flood", 2 * AT_ONCE)
    assert len(turns) == AT_ONCE
    passes = await soon(workers.call("on time", 1))
    assert passes.is_within
    await workers.stop()


async def test_the_next_in_line_is_taken_on_when_a_turn_ends(workers: Workers) -> None:
    await workers.beside_another()
    turns = await workers.flood("flood", AT_ONCE + 1)
    waits = workers.call("flood")
    turns[0].end(10)
    turns[1].end(10)
    await soon(waits)


async def test_tenants_that_compete_have_turns_by_their_weights(workers: Workers) -> None:
    workers.lines.weigh({"heavy": 3.0})
    await workers.beside_another()
    workers.turns = await workers.flood("flood", AT_ONCE)
    for tenant, runs in (("heavy", 1_500), ("light", 500)):  # more than what they may use beyond their share
        (await workers.call(tenant, runs)).end(runs)
        workers.turns.pop()
        assert await workers.flood(tenant, 300) == []
    begun = len(workers.order)
    for _ in range(200):
        workers.turns.pop(0).end(10)
        await settle()
    turns = Counter(workers.order[begun:])
    assert turns.total() == 200
    assert 2.8 < turns["heavy"] / turns["light"] < 3.2
    await workers.stop()


async def test_a_call_that_found_nothing_to_do_costs_its_tenant_nothing(workers: Workers) -> None:
    await workers.beside_another()
    for _ in range(int(SLACK)):
        turn = await workers.call("idle", 1_000)
        assert turn.is_within
        turn.give_up()


async def test_who_does_not_wait_any_more_leaves_the_line(workers: Workers) -> None:
    await workers.beside_another()
    turns = await workers.flood("flood", AT_ONCE)
    gone, next_one = workers.call("flood"), workers.call("flood")
    await settle()
    gone.cancel()
    turns[0].end(10)
    await soon(next_one)
    for turn in turns[1:]:
        turn.end(10)
    assert len(await workers.flood("flood", AT_ONCE)) == AT_ONCE - 1  # nothing is counted that is not there


async def test_a_tenant_whose_line_is_full_is_shed_and_no_other(workers: Workers) -> None:
    await workers.beside_another()
    await workers.flood("flood", AT_ONCE + MOST_IN_LINE)
    with pytest.raises(Problem, match="too much is under way"):
        await workers.call("flood")
    await soon(workers.call("on time", 1))
    await workers.stop()


async def test_a_late_lease_of_who_is_within_its_share_paces_a_flood_which_goes_on_in_rounds(workers: Workers) -> None:
    await workers.beside_another()
    under_way = await workers.flood("flood", 2)
    for took_s in (QUICK_S, LATE_S):
        turn = await workers.call("on time", 1)
        turn.end(1, workers.now + took_s)
    waits = workers.call("flood")
    await settle()
    assert not waits.done()  # although there is nobody before it
    await soon(waits)
    assert len(under_way) == 2


async def test_a_late_lease_paces_nobody_when_no_other_is_at_work(workers: Workers) -> None:
    await workers.beside_another()
    for took_s in (QUICK_S, LATE_S):
        turn = await workers.call("on time", 1)
        turn.end(1, workers.now + took_s)
    assert (await workers.flood("flood", 1)) != []


async def test_tenants_that_are_not_seen_any_more_hold_nobody_back(workers: Workers) -> None:
    await workers.beside_another()
    workers.now += ACTIVE_S + 1
    assert len(await workers.flood("flood", 2 * AT_ONCE)) == 2 * AT_ONCE


async def test_a_tenant_s_weight_is_set_and_shown_and_heeded(
    callers: Callers, api: Api, ledger_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin: Caller = await callers("admin")
    assert (await admin.get(TENANT)).json()["weight"] is None
    assert (await admin.patch(TENANT, {"weight": 3})).json()["weight"] == 3
    heeded: list[Mapping[str, float]] = []
    monkeypatch.setattr(api.lines, "weigh", heeded.append)
    async with session(ledger_pool) as conn:
        api._hear(await read_news(conn, LedgerClock()))
    assert heeded[-1] == {"acme": 3}
    assert (await admin.patch(TENANT, {"weight": 0})).json()["field"] == "weight"
    assert (await admin.patch(TENANT, {"weight": None})).json()["weight"] is None
