"""A tenant's quota of leases while API processes come and one is killed. Source: ARCHITECTURE, Leases and outcomes.

Nothing relays events here, so the ledger's outbox keeps what was leased when.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest

from api.lease_quotas import PERIOD_S
from connectors.stack import KafkaBroker
from fencepost import CommandProducer, JobSpec, at
from fencepostd.local import LOCAL_TENANT
from ledger.api_instances import LIVE_S
from streams.topics import Topics
from tests.chaos.cluster import wait_for
from tests.chaos.installation import Addresses, Installation

pytestmark = pytest.mark.chaos

QUEUE = "mail"
QUOTA_PER_S = 200
RUNS = 8_000
POLLERS = 4  # of each process: each wants more than the whole quota would give it
WINDOW_S = 3.0
APIS = ("api", "api-1", "api-2", "api-3")

Begin = Callable[[str], None]


@pytest.fixture
def installation(kafka_broker: KafkaBroker, empty_ledger_dsn: str, tmp_path: Path) -> Iterator[Installation]:
    """An owner and one API process, which may get company."""
    servers, topics = Addresses(kafka_broker.bootstrap, empty_ledger_dsn), Topics(f"quotas-{uuid4().hex[:8]}")
    installation = Installation(tmp_path / "state", servers, ["streams-0", APIS[0]], topics=topics, say=print)
    try:
        installation.up()
        yield installation
    finally:
        installation.down()


async def test_a_quota_is_kept_by_one_two_and_four_processes_and_when_one_of_them_is_killed(
    installation: Installation,
) -> None:
    create_due_runs(installation)
    await set_quota(installation)
    async with greedy_pollers(installation) as begin:
        await asyncio.to_thread(wait_for_parts, installation, APIS[:1])  # it holds within two seconds
        begin(APIS[0])
        assert await leased_per_s(installation) == pytest.approx(QUOTA_PER_S, rel=0.1)
        for before, count in ((1, 2), (2, 4)):
            for api in APIS[before:count]:
                installation.add(api)
            await asyncio.gather(*(asyncio.to_thread(installation.start, api) for api in APIS[before:count]))
            for api in APIS[before:count]:
                begin(api)
            await asyncio.to_thread(wait_for_parts, installation, APIS[:count])
            assert await leased_per_s(installation) == pytest.approx(QUOTA_PER_S, rel=0.1)

        killed_at = datetime.now(UTC)
        await asyncio.to_thread(installation.kill, APIS[-1])
        await asyncio.to_thread(wait_for_parts, installation, APIS[:-1])
        split_at = datetime.now(UTC)
        assert await leased_per_s(installation) == pytest.approx(QUOTA_PER_S, rel=0.1)
    gap_s = (split_at - killed_at).total_seconds()
    meanwhile_per_s = leases_between(installation, killed_at, split_at) / gap_s
    print(f"{meanwhile_per_s:.1f} leases/s for the {gap_s:.1f} s until the killed one's part was the others'")
    assert gap_s <= LIVE_S + PERIOD_S + 1  # and what the metrics took to tell
    assert meanwhile_per_s <= 1.1 * QUOTA_PER_S


def create_due_runs(installation: Installation) -> None:
    """More than are leased, all due before anybody asks."""
    with CommandProducer(
        installation.servers.kafka, tenant=LOCAL_TENANT, topic_prefix=installation.topics.prefix
    ) as producer:
        for _ in range(RUNS):
            producer.create_job(JobSpec(queue=QUEUE, schedule=at(datetime.now(UTC))))
    wait_for(lambda: count(installation, "SELECT count(*) FROM runs") == RUNS, 60, "all runs are due")


async def set_quota(installation: Installation) -> None:
    async with client_of(installation, APIS[0]) as http:
        assert (await http.patch("/v1/tenant", json={"leasesPerSecond": QUOTA_PER_S})).status_code == 200


@asynccontextmanager
async def greedy_pollers(installation: Installation) -> AsyncIterator[Begin]:
    """Inside, each API process that is begun with has workers who want more than there is."""
    polls: list[asyncio.Task[None]] = []

    def begin(api: str) -> None:
        polls.extend(asyncio.create_task(poll(installation, api)) for _ in range(POLLERS))

    try:
        yield begin
    finally:
        for task in polls:
            task.cancel()
        for end in await asyncio.gather(*polls, return_exceptions=True):
            assert end is None or isinstance(end, asyncio.CancelledError)


async def poll(installation: Installation, api: str) -> None:
    """Until the process is killed."""
    ask = {"workerId": "greedy", "max": 100, "waitSeconds": 10, "visibilitySeconds": 600}
    async with client_of(installation, api) as http:
        while True:
            try:
                (await http.post(f"/v1/queues/{QUEUE}/lease", json=ask)).raise_for_status()
            except httpx.TransportError:
                return


def client_of(installation: Installation, api: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {installation.token}"}
    return httpx.AsyncClient(base_url=installation.url(api), headers=headers, timeout=30, trust_env=False)


def wait_for_parts(installation: Installation, apis: tuple[str, ...]) -> None:
    """Each says that it has an equal part."""

    def all_have() -> bool:
        return all(abs(part_of(installation, api) - 1 / len(apis)) < 0.001 for api in apis)

    wait_for(all_have, 20, f"{len(apis)} processes share the quota")


def part_of(installation: Installation, api: str) -> float:
    told = httpx.get(f"{installation.url(api)}/metrics", trust_env=False, timeout=10).text
    [value] = re.findall(r"^fencepost_api_lease_quota_part (\S+)$", told, re.MULTILINE)
    return float(value)


async def leased_per_s(installation: Installation) -> float:
    """From now on, over a window."""
    began = datetime.now(UTC)
    await asyncio.sleep(WINDOW_S)  # what is measured is a rate
    rate = leases_between(installation, began, began + timedelta(seconds=WINDOW_S)) / WINDOW_S
    print(f"{rate:.1f} leases/s")
    return rate


def leases_between(installation: Installation, began: datetime, ended: datetime) -> int:
    """As the ledger has them."""
    sql = (
        "SELECT coalesce(sum(cardinality(run_ids)), 0) FROM outbox WHERE event = 'run_leased' AND at >= %s AND at < %s"
    )
    return count(installation, sql, began, ended)


def count(installation: Installation, sql: str, *values: datetime) -> int:
    with psycopg.connect(installation.servers.postgres, autocommit=True) as conn:
        row = conn.execute(sql, values).fetchone()
    assert row is not None
    return int(row[0])
