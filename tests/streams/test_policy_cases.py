"""The public cases (tests/cases.py) about retries, leases and clocks that owners bring to their end, a test each."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from fencepost import FencepostClient, RunContext, Worker
from ledger.connection import Connection
from ledger.fence import api_transaction
from ledger.leases import Beat, LeaseAsk, extend_leases, lease_runs
from ledger.runs import read_runs
from schemas.http import NewJob
from schemas.ids import run_id_for
from schemas.zones import TZDATA_VERSION
from streams import partition_owner
from streams.faust_app import SESSION_TIMEOUT_S
from streams.partition_owner import EXPIRY_BATCH
from streams.timekeeper import EXPIRY_ROUNDS, LONGEST_SLEEP_US
from tests.cases import given
from tests.streams.commands import create, job_on
from tests.streams.ledger_dump import fetch
from tests.streams.scene import HOUR, MINUTE, SECOND, Scene, at
from tests.streams.simulated_owner import PARTITION


async def test_rty_002(scene: Scene) -> None:
    case, _ = given("rty-002")
    delays_s = await _retry_delays_s(scene, 200, case["base_s"])
    assert min(delays_s) > 0
    assert len(set(delays_s)) > 150


async def test_rty_005(scene: Scene) -> None:
    case, expected = given("rty-005")
    start = at("2024-05-01T10:00:00Z")
    await scene.create(start, {"delaySeconds": 0})
    [run_id] = await scene.simulation.run_ids(scene.job_id)
    [lease] = await scene.simulation.lease(run_id, visibility_s=case["lease_s"])
    await scene.simulation.fail(lease, retry_after_s=case["retry_delay_s"])
    await scene.simulation.feed()
    claims = []
    for seconds in (31, 3600, case["retry_delay_s"] - 1, case["retry_delay_s"] + 1):
        await scene.simulation.run_until(start + seconds * SECOND)
        await scene.simulation.sweep()
        claims.append(len(await scene.simulation.lease(*await scene.simulation.run_ids(scene.job_id))))
    assert sum(claims[:3]) == expected["claims_before_due"]
    assert claims[3] == expected["claims_after_due"]


async def test_rty_010(scene: Scene) -> None:
    delays_s = await _retry_delays_s(scene, 1_000, 60)
    starts = Counter(int(delay_s) for delay_s in delays_s)
    assert max(starts.values()) <= 60
    assert max(delays_s) <= 60


async def _retry_delays_s(scene: Scene, count: int, base_s: float) -> list[float]:
    """How long runs that all fail at the same instant wait for their next attempt."""
    scene.simulation.clock.now = start = at("2024-05-01T10:00:00Z")
    spec: dict[str, Any] = {"retry_backoff": "fixed", "retry_base_seconds": base_s}
    jobs = [create(job_on(PARTITION), {"delaySeconds": 0}, issued_at=start, **spec) for _ in range(count)]
    await scene.simulation.apply(*jobs)
    await scene.simulation.fail(*await scene.simulation.lease(*await scene.simulation.poll(count)))
    due = await fetch(scene.simulation.pool, "SELECT due_at FROM runs")
    assert len(due) == count
    return [(each - start).total_seconds() for each in due]


async def test_clk_001(scene: Scene) -> None:
    _, expected = given("clk-001")
    noon = at("2024-05-01T15:00:00Z")
    await scene.create(noon, {"cron": "* * * * *"})
    await scene.simulation.run_until(noon + 2 * HOUR)
    scene.simulation.clock.now = noon + 30 * SECOND
    await scene.simulation.run_until(noon + 2 * HOUR + 5 * MINUTE)
    slots = Counter(event.scheduled_for for event in await scene.simulation.events(scene.job_id, "run_scheduled"))
    assert sum(slots.values()) - len(slots) == expected["duplicate_slots"]
    assert sorted(slots)[:-1] == [noon + minute * MINUTE for minute in range(1, 126)]
    assert expected["max_sleep_s"] >= LONGEST_SLEEP_US / 1e6


async def test_clk_005(scene: Scene) -> None:
    case, expected = given("clk-005")
    await scene.create(at(case["start"]), {"cron": case["schedule"], "zone": case["zone"]})
    assert await scene.next() == at(expected["node_2_value"])
    assert await fetch(scene.simulation.pool, "SELECT tzdata_version FROM jobs") == [TZDATA_VERSION]


async def test_lse_005(scene: Scene) -> None:
    """The first rows of the reaper's list are leases that heartbeats have extended, more than a batch of them."""
    _, expected = given("lse-005")
    scene.simulation.clock.now = start = at("2024-05-01T10:00:00Z")
    jobs = [create(job_on(PARTITION), {"delaySeconds": 0}, issued_at=start) for _ in range(EXPIRY_BATCH + 2)]
    await scene.simulation.apply(*jobs)
    *healthy, lost = await scene.simulation.lease(*await scene.simulation.poll(len(jobs)))
    await scene.simulation.feed()
    scene.simulation.clock.now = start + 20 * SECOND
    await scene.simulation.beat(*healthy)
    scene.simulation.clock.now = start + 31 * SECOND
    await scene.simulation.owner._expire()
    assert await scene.simulation.run_ids(UUID(str(lost.job_id))) == [lost.run_id]
    states = Counter(await fetch(scene.simulation.pool, "SELECT state FROM runs"))
    assert states == {"leased": len(healthy), "pending": expected["reclaimed"]}


async def test_clk_007(scene: Scene) -> None:
    """Ours are open for 10 s at most; this one is for a second when it leases, as if it had waited for the fence."""
    case, _ = given("clk-007")
    lease_s = 30
    assert f"lease {lease_s} s" in case["event"]
    scene.simulation.clock.now = start = datetime.now(UTC) - MINUTE
    await scene.create(start, {"delaySeconds": 0})
    run_ids = await scene.simulation.run_ids(scene.job_id)
    async with api_transaction(scene.simulation.pool, run_ids) as conn:
        await conn.execute("SELECT pg_sleep(1)")
        opened, real = await _clocks(conn)
        [lease] = await lease_runs(conn, [LeaseAsk(run_ids[0], scene.simulation.fence.epoch, "worker", lease_s)])
    assert real - opened >= SECOND
    assert lease.lease_expires_at >= real + lease_s * SECOND
    async with api_transaction(scene.simulation.pool, run_ids) as conn:
        await conn.execute("SELECT pg_sleep(1)")
        _, real = await _clocks(conn)
        [beat] = await extend_leases(conn, [Beat(lease.run_id, lease.lease_token, lease_s)])
    assert beat.lease_expires_at >= real + lease_s * SECOND


async def _clocks(conn: Connection) -> tuple[datetime, datetime]:
    """When the transaction was opened, and what time it is."""
    row = await (await conn.execute("SELECT now(), clock_timestamp()")).fetchone()
    assert row is not None
    return row[0], row[1]


@pytest.fixture
def host_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Puts this process into a zone."""

    def put(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield put
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("change", ["2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"])
async def test_heartbeats_keep_a_run_alive_while_the_clocks_are_changed(
    scene: Scene, host_zone: Callable[[str], None], change: str
) -> None:
    """clk-010: nobody is taken for dead because local time jumps, neither the worker nor the owner."""
    host_zone("Europe/Paris")
    _, expected = given("clk-010")
    assert expected == {"server": "stays alive"}
    await scene.create(at(change) - 5 * MINUTE, {"delaySeconds": 0})
    [lease] = await scene.simulation.lease(*await scene.simulation.run_ids(scene.job_id))
    await scene.simulation.feed()
    while scene.simulation.now < at(change) + HOUR + 5 * MINUTE:
        scene.simulation.clock.now += 20 * SECOND
        await scene.simulation.beat(lease)
        await scene.simulation.owner._expire()
    assert await scene.simulation.run_ids(scene.job_id, "leased") == [lease.run_id]
    assert await scene.simulation.complete(lease)
    assert not scene.simulation.owner._lost


async def test_an_owner_that_restarts_east_of_greenwich_misses_no_hour(
    scene: Scene, host_zone: Callable[[str], None]
) -> None:
    """clk-011."""
    host_zone("Etc/GMT-1")  # which is +01:00
    _, expected = given("clk-011")
    assert expected["delay_after_restart_s"] == "< 1 poll"
    start = at("2024-05-01T10:00:00Z")
    await scene.create(start, {"cron": "* * * * *"})
    await scene.down(start + 50 * SECOND, start + 55 * SECOND)
    await scene.simulation.run_until(start + 3 * MINUTE)
    await scene.down(start + 3 * MINUTE + 50 * SECOND, start + 4 * MINUTE + 30 * SECOND)
    due = {run_id_for(scene.job_id, at, PARTITION): at for at in await scene.runs()}
    assert len(due) == 4
    for run_id, hinted in scene.simulation.hinted.items():
        in_time = hinted - max(due[run_id], start if due[run_id] < start + 4 * MINUTE else scene.simulation.now)
        assert in_time.total_seconds() < 2


async def test_idm_006(scene: Scene) -> None:
    _, expected = given("idm-006")
    start = at("2024-05-01T10:00:00Z")
    await scene.create(start, {"everySeconds": 60}, overlap="skip")
    await scene.simulation.run_until(start + 5 * MINUTE)
    assert expected["applies_to_every_occurrence"]
    assert list((await scene.simulation.skipped(scene.job_id)).values()) == [4]
    assert expected["unknown_option"] == "rejected"
    command = create(job_on(PARTITION), {"everySeconds": 60, "dedupe": True})
    effects = await scene.simulation.apply(command)
    assert effects.rejected[command.command_id].field == "dedupe"
    with pytest.raises(msgspec.ValidationError, match="unknown field `dedupe`"):
        msgspec.convert({"queue": "mail", "schedule": {"everySeconds": 60}, "dedupe": True}, NewJob)


async def test_lse_003(scene: Scene) -> None:
    """Two runs of six hours; the worker of one dies after two."""
    case, expected = given("lse-003")
    start = at("2024-05-01T10:00:00Z")
    scene.simulation.clock.now = start
    jobs = [create(job_on(PARTITION), {"delaySeconds": 0}, issued_at=start) for _ in range(2)]
    await scene.simulation.apply(*jobs)
    leases = await scene.simulation.lease(*await scene.simulation.poll(2), visibility_s=case["lease_s"])
    healthy, lost = leases
    await scene.simulation.feed()
    died, reclaimed = start + 2 * HOUR, None
    while scene.simulation.now < start + case["run_length_h"] * HOUR:
        near = died <= scene.simulation.now < died + MINUTE
        scene.simulation.clock.now += SECOND if near else 20 * SECOND
        if not near or scene.simulation.now.second % 20 == 0:
            await scene.simulation.beat(*(leases if scene.simulation.now <= died else [healthy]))
        await scene.simulation.owner._expire()
        if reclaimed is None and await scene.simulation.run_ids(UUID(str(lost.job_id))):
            reclaimed = scene.simulation.now
    assert reclaimed is not None
    reaper_s = EXPIRY_ROUNDS.period_us / 1e6 + 1  # how often it looks, and how often this test does
    assert (reclaimed - died).total_seconds() <= case["lease_s"] + reaper_s
    assert case["lease_s"] + reaper_s <= 45
    assert "<= 45" in expected["reclaimed_within_s"]
    assert expected["healthy 6 h run"] == "never reclaimed"
    states = await fetch(scene.simulation.pool, "SELECT state, attempt FROM runs WHERE run_id = %s", healthy.run_id)
    assert states == [("leased", 1)]
    assert await scene.simulation.complete(healthy)


async def test_lse_007(scene: Scene) -> None:
    """Two starts of a worker, on one host and even under one process id."""
    _, expected = given("lse-007")
    client, handler = FencepostClient("http://localhost:1", "token"), _no_handler
    before, after = (Worker(client, "mail", handler).worker_id for _ in range(2))
    await client.close()
    assert expected["holder_identity"] == "unique per process start"
    assert before != after
    await scene.create(start := at("2024-05-01T10:00:00Z"), {"delaySeconds": 0})
    [run_id] = await scene.simulation.run_ids(scene.job_id)
    [old] = await scene.simulation.lease(run_id, worker_id=before)
    await scene.simulation.feed()
    scene.simulation.clock.now = start + 2 * SECOND
    assert await scene.simulation.lease(run_id, worker_id=after) == []
    scene.simulation.clock.now = start + 31 * SECOND
    await scene.simulation.owner._expire()
    assert expected["old_run"] == "reclaimed after expiry"
    assert await scene.simulation.run_ids(scene.job_id) == [run_id]
    scene.simulation.clock.now += MINUTE
    [new] = await scene.simulation.lease(run_id, worker_id=after)
    assert new.lease_token == old.lease_token + 1
    assert await fetch(scene.simulation.pool, "SELECT worker_id FROM runs") == [after]
    assert not await scene.simulation.complete(old)


async def _no_handler(_: RunContext) -> None:
    raise AssertionError


async def test_reaping_goes_on_after_the_owner_that_reaped_has_died_in_the_middle(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lse-012: its batch is undone, and whoever takes over begins again. Nothing is locked, nothing is left out."""
    _, expected = given("lse-012")
    scene.simulation.clock.now = start = at("2024-05-01T10:00:00Z")
    jobs = [create(job_on(PARTITION), {"delaySeconds": 0}, issued_at=start) for _ in range(EXPIRY_BATCH + 2)]
    await scene.simulation.apply(*jobs)
    await scene.simulation.lease(*await scene.simulation.poll(len(jobs)))
    await scene.simulation.feed()
    passes = 0

    async def die_in_the_second_pass(*args: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes == 2:
            raise asyncio.CancelledError
        return await read_runs(*args)

    died = scene.simulation.clock.now = start + 31 * SECOND
    with monkeypatch.context() as patch:
        patch.setattr(partition_owner, "read_runs", die_in_the_second_pass)
        with pytest.raises(asyncio.CancelledError):
            await scene.simulation.owner._expire()
    states = Counter(await fetch(scene.simulation.pool, "SELECT state FROM runs"))
    assert states == {"pending": EXPIRY_BATCH, "leased": 2}
    # Kafka's group misses it after a session, and gives the partition to another process.
    await scene.simulation.stop()
    scene.simulation.clock.now = died + 15 * SECOND
    await scene.simulation.start()
    await scene.simulation.owner._expire()
    resumed_s = (scene.simulation.now - died).total_seconds() + EXPIRY_ROUNDS.period_us / 1e6
    assert SESSION_TIMEOUT_S < resumed_s <= expected["reaping_resumes_within_s"]
    assert Counter(await fetch(scene.simulation.pool, "SELECT state FROM runs")) == {"pending": len(jobs)}
