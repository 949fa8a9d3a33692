"""What an API process tells of others on /metrics, each caused: it is seen as long as it lasts, and then no more."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import psycopg
import pytest
import pytest_asyncio

from api.app import Api
from api.history_client import HistoryClient
from api.metrics import ApiMetrics
from api.watchdogs import Watchdogs
from connectors.stack import KafkaBroker
from ledger.clock import LedgerClock, monotonic_us
from ledger.connection import Pool, session
from ledger.shards import Shards, open_shards
from schemas.codec import Codec
from streams.history_service import HistoryRole
from tests.api.conftest import new_topics
from tests.ledger.owned_partition import OwnedPartition
from tests.ledger_fixtures import IDLE_S, Database, all_back
from tests.streams.waiting import until

Told = dict[str, float]


def text(metrics: ApiMetrics) -> Told:
    """The samples of /metrics that have one label at most, by name and label as they stand there."""
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {
        name.removeprefix("fencepost_api_"): float(value) for name, _, value in (line.rpartition(" ") for line in lines)
    }


class Watch:
    """Watchdogs that look each time."""

    def __init__(
        self, shards: Shards, clocks: Mapping[int, LedgerClock] | None = None, history_url: str | None = None
    ) -> None:
        self.metrics = ApiMetrics()
        self.hints_read = True
        history = HistoryClient(history_url, 0.0)
        clocks = clocks or {number: LedgerClock() for number in shards.pools}
        self.dogs = Watchdogs(shards, history, clocks, lambda: self.hints_read, self.metrics, look_every_s=0)

    async def look(self) -> Told:
        await self.dogs.look()
        return text(self.metrics)


@pytest.fixture
def watch(shards: Shards) -> Watch:
    return Watch(shards)


async def change(pool: Pool, statement: str) -> None:
    async with session(pool) as conn:
        await conn.execute(statement.encode())


async def test_partitions_without_an_owner_and_with_a_silent_one_are_told_apart(
    watch: Watch, ledger_pool: Pool
) -> None:
    an_hour_ago = "now() - interval '1 hour'"
    await change(ledger_pool, f"UPDATE partitions SET owner = NULL, owner_since = {an_hour_ago}")
    told = await watch.look()
    assert (told['unowned_partitions{shard="0"}'], told['silent_partitions{shard="0"}']) == (16, 0)
    assert 3_600 <= told['unowned_s{shard="0"}'] < 3_700
    await change(ledger_pool, f"UPDATE partitions SET owner = 'o', decided_through = {an_hour_ago}")
    told = await watch.look()
    assert (told['unowned_partitions{shard="0"}'], told['silent_partitions{shard="0"}']) == (0, 16)
    assert 3_600 <= told['silent_s{shard="0"}'] < 3_700
    await change(ledger_pool, "UPDATE partitions SET decided_through = now()")
    assert (await watch.look())['silent_partitions{shard="0"}'] == 0


async def test_events_that_no_relay_takes_are_told_with_their_age(watch: Watch, ledger_pool: Pool) -> None:
    assert (await watch.look())['outbox_lag_s{shard="0"}'] == 0
    owned = await OwnedPartition.take(ledger_pool)
    await owned.runs(1)
    await change(ledger_pool, "UPDATE outbox SET at = now() - interval '90 s'")
    told = await watch.look()
    assert told['outbox_rows{shard="0"}'] > 0
    assert 90 <= told['outbox_lag_s{shard="0"}'] < 150


async def test_a_snapshot_that_is_held_open_is_told_until_it_ends(
    watch: Watch, ledger_dsn: str, ledger_pool: Pool
) -> None:
    async with await psycopg.AsyncConnection.connect(ledger_dsn) as conn:
        await conn.execute("UPDATE settings SET value = value")
        for _ in range(3):
            await change(ledger_pool, "UPDATE partitions SET owner_since = now()")

        async def is_seen() -> bool:
            told = await watch.look()
            return told['oldest_snapshot_s{shard="0"}'] > 0 and told['oldest_snapshot_transactions{shard="0"}'] >= 3

        await until(is_seen)
        await conn.rollback()


async def test_a_process_whose_clock_is_off_tells_so_for_each_shard(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LedgerClock()
    clock.learn(1_000, 0)  # the ledger's time is this process's monotonic clock
    watch = Watch(shards, {0: clock})
    monkeypatch.setattr("ledger.clock.time.time_ns", lambda: (monotonic_us() + 7_000_000) * 1_000)
    assert 6.9 < (await watch.look())['clock_skew_s{shard="0"}'] <= 7.0
    monkeypatch.setattr("ledger.clock.time.time_ns", lambda: monotonic_us() * 1_000)
    assert abs((await watch.look())['clock_skew_s{shard="0"}']) < 0.5


async def test_hints_that_do_not_come_through_and_a_history_that_is_away_are_told(watch: Watch) -> None:
    watch.hints_read = False
    told = await watch.look()
    assert (told["hints_read"], told["history_up"]) == (0, 0)
    assert math.isnan(told["history_lag_records"])
    watch.hints_read = True
    assert (await watch.look())["hints_read"] == 1


@pytest_asyncio.fixture
async def both(two_ledgers: list[Database]) -> AsyncIterator[Shards]:
    async with open_shards(two_ledgers[0].dsn, size=2) as shards:
        await all_back(shards)
        yield shards


async def test_of_a_shard_that_is_away_nothing_is_told_but_that(both: Shards, two_ledgers: list[Database]) -> None:
    watch = Watch(both)
    assert (await watch.look())['unowned_partitions{shard="1"}'] == 8
    two_ledgers[1].go_away()
    told = await watch.look()
    assert (told['ledger_up{shard="0"}'], told['ledger_up{shard="1"}']) == (1, 0)
    assert {name for name in told if 'shard="1"' in name} == {'ledger_up{shard="1"}', 'clock_skew_s{shard="1"}'}
    assert told['unowned_partitions{shard="0"}'] == 8
    two_ledgers[1].come_back()
    await all_back(both)
    told = await watch.look()
    assert (told['ledger_up{shard="1"}'], told['unowned_partitions{shard="1"}']) == (1, 8)


async def test_whoever_reads_metrics_often_costs_one_look(shards: Shards) -> None:
    looks = 0
    metrics = ApiMetrics()

    class Counting(HistoryClient):
        async def health(self, timeout_s: float) -> object:  # type: ignore[override]
            nonlocal looks
            looks += 1
            return await super().health(timeout_s)

    dogs = Watchdogs(shards, Counting(None, 0.0), {}, lambda: True, metrics, look_every_s=3_600)
    await asyncio.gather(*(dogs.look() for _ in range(10)))
    await dogs.look()
    assert looks == 1


async def test_a_history_that_is_stopped_is_told(shards: Shards, kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topics, stop = new_topics(kafka_broker), asyncio.Event()
    path = tmp_path / "history.duckdb"
    role = HistoryRole(kafka_broker.bootstrap, topics, Codec(), path, "127.0.0.1", 0, idle_s=IDLE_S)
    running = asyncio.create_task(role.run(stop))
    watch = Watch(shards, history_url=role.url)

    async def up() -> float:
        return (await watch.look())["history_up"]

    async def is_up() -> bool:
        return await up() == 1

    await until(is_up)
    assert (await watch.look())["history_lag_records"] == 0
    stop.set()
    await running
    assert await up() == 0


async def test_whoever_reads_the_api_s_metrics_is_told_of_the_installation(api: Api, ledger_pool: Pool) -> None:
    await change(ledger_pool, "UPDATE partitions SET owner = NULL, owner_since = now() - interval '1 min'")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api.app()), base_url="http://api") as client:
        told = (await client.get("/metrics")).text
    assert 'fencepost_api_unowned_partitions{shard="0"} 16.0' in told
    assert 'fencepost_api_ledger_up{shard="0"} 1.0' in told
