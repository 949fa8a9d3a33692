"""What a tenant may lease a second: shared out among API processes that come and go, in turns, and live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from api.app import Api, ApiSettings
from api.lease_quotas import PERIOD_S, InLine, LeaseQuotas, SharedQuota
from api.token_bucket import TokenBucket
from ledger.api_instances import LIVE_S, Peers, announce_instance, forget_instance
from ledger.connection import Pool, session
from ledger.shards import Shards
from ledger.tenant_limits import TenantLimits
from tests.api.conftest import Caller, Callers
from tests.api.owner import Owner

TENANT = "/v1/tenant"
STEP_S = 0.01
QUOTA = TenantLimits(leases_per_s=100.0, lease_burst=50)


class Installation:
    """API processes that share a quota, under a virtual clock; of each so many calls want all they can get.

    What the ledger says of them is told here, as `announce_instance` does.
    """

    def __init__(self, home: Pool) -> None:
        self._home, self._now = home, 0.0
        self.apis: list[tuple[LeaseQuotas, float]] = []  # with when it began
        self._seen: dict[UUID, float] = {}
        self.leased: list[int] = []  # in each step

    def begin(self) -> None:
        self.apis.append((LeaseQuotas(self._home, clock=lambda: self._now), self._now))

    def kill(self) -> None:
        self.apis.pop()

    def run(self, for_s: float) -> None:
        for _ in range(round(for_s / STEP_S)):
            for quotas, began in self.apis:
                if round((self._now - began) / STEP_S) % round(PERIOD_S / STEP_S) == 0:
                    self._look(quotas)
            self.leased.append(sum(quotas.of("acme").take(10) for quotas, _ in self.apis))
            self._now += STEP_S

    def _look(self, quotas: LeaseQuotas) -> None:
        live = {instance for instance, at in self._seen.items() if at > self._now - LIVE_S}
        quotas.adopt({"acme": QUOTA}, Peers(len(live - {quotas.instance}), quotas.instance in live))
        self._seen[quotas.instance] = self._now

    def rate_per_s(self, last_s: float) -> float:
        steps = round(last_s / STEP_S)
        return sum(self.leased[-steps:]) / last_s


@pytest.mark.parametrize("count", [1, 2, 4])
async def test_the_rate_stays_within_a_tenth_of_the_quota_as_processes_come_and_one_is_killed(
    ledger_pool: Pool, count: int
) -> None:
    installation = Installation(ledger_pool)
    for _ in range(count):
        installation.begin()
        installation.run(0.37)  # their looks come at other instants
    installation.run(20)
    assert installation.rate_per_s(20) == pytest.approx(100, rel=0.1)
    if count > 1:
        installation.kill()
        installation.run(20)
        assert installation.rate_per_s(20) == pytest.approx(100, rel=0.1)
        assert installation.rate_per_s(15) == pytest.approx(100, rel=0.01)
    installation.begin()
    installation.run(20)
    assert installation.rate_per_s(20) == pytest.approx(100, rel=0.1)
    second = round(1 / STEP_S)
    seconds = [sum(installation.leased[start : start + second]) for start in range(len(installation.leased))]
    assert max(seconds[round(5 / STEP_S) :]) <= 100 + 50


async def test_calls_get_tokens_in_the_order_in_which_they_came_and_a_newcomer_goes_behind_them() -> None:
    quota, served = SharedQuota(), list[str]()
    calls = [InLine(3, lambda name=name: served.append(name)) for name in "abc"]  # type: ignore[misc]
    for call in calls:
        quota.wait(call)
    quota.resize(TenantLimits(leases_per_s=100.0), 1.0)
    assert quota.take(1) == 0
    async with asyncio.timeout(10):
        while len(served) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert served == ["a", "b", "c"]
    assert [call.take() for call in calls] == [3, 3, 3]


async def test_tokens_of_one_who_leaves_are_the_next_one_s() -> None:
    quota, woken = SharedQuota(), asyncio.Event()
    quota.resize(TenantLimits(leases_per_s=50.0, lease_burst=2), 1.0)
    first, second = InLine(2, lambda: None), InLine(2, woken.set)
    quota.wait(first)
    async with asyncio.timeout(10):
        while not first.tokens:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    quota.resize(TenantLimits(leases_per_s=0.001, lease_burst=2), 1.0)
    quota.wait(second)
    quota.leave(first)
    assert woken.is_set()
    assert second.take() == 2


async def test_processes_that_live_are_counted_and_those_that_left_or_were_killed_are_not(ledger_pool: Pool) -> None:
    one, two, killed = UUID(int=1), UUID(int=2), UUID(int=3)
    async with session(ledger_pool) as conn:
        assert await announce_instance(conn, one) == Peers(0, knew_us=False)
        assert await announce_instance(conn, killed) == Peers(1, knew_us=False)
        assert await announce_instance(conn, two) == Peers(2, knew_us=False)
        assert await announce_instance(conn, one) == Peers(2, knew_us=True)
        await conn.execute(
            "UPDATE api_instances SET seen_at = now() - interval '1 minute' WHERE instance = %s", (killed,)
        )
        await forget_instance(conn, two)
        assert await announce_instance(conn, one) == Peers(0, knew_us=True)


async def test_a_process_that_has_not_looked_yet_keeps_everybody_waiting_since_he_may_have_a_quota(
    ledger_pool: Pool,
) -> None:
    quotas, woken = LeaseQuotas(ledger_pool), asyncio.Event()
    assert quotas.of("acme").take(10) == 0
    call = InLine(10, woken.set)
    quotas.of("acme").wait(call)
    assert not woken.is_set()
    await quotas.look()
    assert woken.is_set()
    assert call.take() == 10
    assert quotas.of("acme").take(10) == 10


@pytest.fixture
async def admin(callers: Callers) -> Caller:
    return await callers("admin")


async def set_quota(admin: Caller, *apis: Api, **settings: Any) -> None:
    """Set it, and have the processes look, which they do by themselves after a moment."""
    assert (await admin.patch(TENANT, settings)).status_code == 200
    for _ in range(2):  # all are counted by all
        for api in apis:
            await api.quotas.look()


async def test_a_tenant_s_quota_is_set_and_cleared_and_shown(admin: Caller, operator: Caller) -> None:
    shown = (await admin.patch(TENANT, {"leasesPerSecond": 5, "leaseBurst": 20})).json()
    assert (shown["leasesPerSecond"], shown["leaseBurst"]) == (5, 20)
    assert (await admin.patch(TENANT, {"leaseBurst": None})).json()["leaseBurst"] is None
    assert (await operator.get(TENANT)).json()["leasesPerSecond"] == 5
    assert (await admin.patch(TENANT, {"leasesPerSecond": None})).json()["leasesPerSecond"] is None


@pytest.mark.parametrize("body", [{"leasesPerSecond": 0}, {"leasesPerSecond": 1_000_001}, {"leaseBurst": 0.5}])
async def test_a_quota_that_cannot_be_is_refused_by_its_field(admin: Caller, body: dict[str, Any]) -> None:
    response = await admin.patch(TENANT, body)
    assert (response.status_code, response.json()["field"]) == (422, next(iter(body)))


async def test_only_administrators_set_a_quota_and_none_whose_token_is_for_some_queues(callers: Callers) -> None:
    for role in ("producer", "worker", "operator"):
        assert (await (await callers(role)).patch(TENANT, {"leasesPerSecond": 1})).status_code == 403
    narrow = await callers("admin", queues=["mail"])
    assert (await narrow.patch(TENANT, {"leasesPerSecond": 1})).json()["field"] == "queue"


async def test_a_call_beyond_the_quota_gets_fewer_runs_and_the_next_one_waits(
    api: Api, admin: Caller, worker: Caller, callers: Callers, owner: Owner
) -> None:
    made = await owner.make_due(5)
    await owner.make_due(1, tenant="globex")
    await set_quota(admin, api, leasesPerSecond=10, leaseBurst=2)
    first = await worker.lease(waitSeconds=10)
    assert 1 <= len(first) <= 2
    assert await worker.lease() == []
    assert len(await (await callers("worker", tenant="globex")).lease()) == 1
    rest = [run for _ in range(2) for run in await worker.lease(waitSeconds=10)]
    got = [UUID(run["runId"]) for run in first + rest]
    assert got == made[: len(got)]


async def test_who_waits_for_an_idle_queue_keeps_no_tokens_from_others(
    api: Api, admin: Caller, worker: Caller, owner: Owner
) -> None:
    await set_quota(admin, api, leasesPerSecond=0.01, leaseBurst=1)
    await worker_has_token(api)
    idle = asyncio.create_task(worker.lease("idle", waitSeconds=3))
    while not api.index.wanted(("acme", "idle")):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await owner.make_due(2)
    assert len(await worker.lease(waitSeconds=2)) == 1
    assert await idle == []


async def worker_has_token(api: Api) -> None:
    """Without the hundred seconds in which one comes."""
    api.quotas.of("acme").give_back(1)


async def test_runs_that_come_to_waiting_calls_beyond_the_quota_stay_and_come_first(
    api: Api, admin: Caller, worker: Caller, owner: Owner
) -> None:
    made = await owner.make_due(4)
    await set_quota(admin, api, leasesPerSecond=0.01, leaseBurst=2)
    polls = [asyncio.create_task(worker.lease(waitSeconds=30)) for _ in range(2)]
    while api.metrics.lease_quota_waits._value.get() < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    api.quotas.of("acme").give_back(2)
    done, [waiting] = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    assert [UUID(run["runId"]) for run in done.pop().result()] == made[:2]
    await admin.patch(TENANT, {"leasesPerSecond": None})
    await api.quotas.look()
    assert [UUID(run["runId"]) for run in await waiting] == made[2:]


async def test_a_first_quota_is_heard_of_and_followed_without_a_restart(
    shards: Shards, settings: ApiSettings, ledger_pool: Pool
) -> None:
    api = Api(shards, settings)
    async with api.running():
        admin = await Callers(api, ledger_pool)("admin")
        for rate_per_s in (60, 30):
            assert (await admin.patch(TENANT, {"leasesPerSecond": rate_per_s})).status_code == 200
            await until(lambda: isinstance(api.quotas.of("acme"), SharedQuota))
            await until(lambda wanted=rate_per_s: bucket_of(api).rate_per_s == wanted)  # type: ignore[misc]
        await admin.patch(TENANT, {"leasesPerSecond": None})
        await until(lambda: not isinstance(api.quotas.of("acme"), SharedQuota))


async def test_two_processes_lease_together_what_the_tenant_may_and_one_alone_does_once_the_other_was_killed(
    shards: Shards, settings: ApiSettings, ledger_pool: Pool, owner: Owner
) -> None:
    await owner.make_due(600)
    first, second = Api(shards, settings), Api(shards, settings)
    async with first.running():
        async with second.running():
            workers = [await Callers(api, ledger_pool)("worker") for api in (first, second)]
            admin = await Callers(first, ledger_pool)("admin")
            await set_quota(admin, first, second, leasesPerSecond=60, leaseBurst=600)
            assert await given_per_s([first, second], workers, 2.0) == pytest.approx(60, rel=0.1)
            second.quotas._is_announced = False  # as one that is killed it does not say that it leaves
        await until(lambda: bucket_of(first).rate_per_s == 60)
        assert await given_per_s([first], workers[:1], 2.0) == pytest.approx(60, rel=0.1)


def bucket_of(api: Api) -> TokenBucket:
    quota = api.quotas.of("acme")
    assert isinstance(quota, SharedQuota)
    return quota._bucket


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def given_per_s(apis: list[Api], workers: list[Caller], for_s: float) -> float:
    """Leases a second of two pollers each, and what they were too slow to take: nothing of it is lost."""
    began = time.monotonic()
    for api in apis:
        bucket_of(api).take(1_000, began)

    async def poll(worker: Caller) -> int:
        leased = 0
        while (left_s := began + for_s - time.monotonic()) > 0:
            leased += len(await worker.lease(waitSeconds=left_s))
        return leased

    leased = sum(await asyncio.gather(*(poll(worker) for worker in workers * 2)))
    ended = time.monotonic()
    assert leased
    return (leased + sum(bucket_of(api).take(1_000, ended) for api in apis)) / (ended - began)
