"""The cases of tests/data/cases.jsonl about policies, with their expected values; and where others of them are."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
import pytest_asyncio

from fencepost import FencepostClient, RunContext, Worker
from ledger.connection import Connection, Pool
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
from tests.streams.commands import create, delete, job_on, pause, resume, update
from tests.streams.ledger_dump import fetch
from tests.streams.simulated_owner import PARTITION, Simulation, simulating

TESTS = Path(__file__).parents[1]
CASES = {
    case["id"]: case for case in map(json.loads, (TESTS / "data/cases.jsonl").read_text(encoding="utf-8").splitlines())
}
AREAS = ("misfire", "overlap", "retry", "idempotency", "lease", "fencing", "clock")
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def given(case_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return CASES[case_id]["input"], CASES[case_id]["expected"]


class Scene:
    """A simulation for one job, whose scheduler can be stopped."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.job_id = simulation, job_on(PARTITION)

    async def create(self, now: datetime, schedule: dict[str, Any], **spec: Any) -> UUID:
        self.simulation.clock.now = now
        await self.simulation.apply(create(self.job_id, schedule, issued_at=now, **spec))
        await self.simulation.work()
        return self.job_id

    async def down(self, start: datetime, end: datetime) -> None:
        await self.simulation.run_until(start)
        await self.simulation.stop()
        self.simulation.clock.now = end
        await self.simulation.start()
        await self.simulation.work()

    async def runs(self) -> list[datetime]:
        return await self.simulation.due(self.job_id)

    async def next(self) -> datetime | None:
        return await self.simulation.cursor(self.job_id)

    async def missed(self) -> int:
        return sum((await self.simulation.skipped(self.job_id)).values())


@pytest_asyncio.fixture
async def scene(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async with simulating(ledger_pool, tmp_path, datetime(2017, 1, 1, tzinfo=UTC), monkeypatch) as simulation:
        yield Scene(simulation)


async def _minutely_down(scene: Scene, case_id: str, **spec: Any) -> None:
    case, _ = given(case_id)
    start, end = map(at, given("mis-001")[0]["scheduler_down"])
    assert case.get("as", case_id) in ("mis-001", case_id)
    await scene.create(start - 10 * SECOND, {"cron": "* * * * *"}, **spec)
    await scene.down(start, end)


async def mis_001(scene: Scene) -> None:
    case, expected = given("mis-001")
    await _minutely_down(scene, "mis-001", catch_up=case["catch_up"], overlap=case["overlap"])
    assert await scene.runs() == [at(run["scheduled_for"]) for run in expected["runs_at_restart"]]
    assert await scene.missed() == expected["missed_recorded"]
    assert await scene.next() == at(expected["next"])


async def mis_004(scene: Scene) -> None:
    case, expected = given("mis-004")
    await _minutely_down(scene, "mis-004", catch_up=case["catch_up"], start_deadline_seconds=case["start_deadline_s"])
    assert await scene.runs() == list(map(at, expected["runs"]))
    assert await scene.missed() == expected["missed_recorded"]


async def mis_005(scene: Scene) -> None:
    case, _ = given("mis-005")
    start, end = map(at, case["scheduler_down"])
    spec = {"start_deadline_seconds": case["start_deadline_s"]}
    await scene.create(start - MINUTE, {"cron": case["schedule"]}, **spec)
    await scene.down(start, end)
    assert len(scene.simulation.hinted) == 1
    [in_time, following] = await scene.simulation.run_ids(scene.job_id)
    assert await scene.simulation.lease(in_time)
    scene.simulation.clock.now = at("2024-05-02T08:00:00Z")
    await scene.simulation.work()
    assert await scene.simulation.lease(following)
    # A millisecond later, another job of the kind:
    late = Scene(scene.simulation)
    await late.create(at("2024-05-03T07:58:00Z"), {"cron": case["schedule"]}, **spec)
    await late.down(at("2024-05-03T07:59:00Z"), at("2024-05-03T08:30:00.001Z"))
    assert await late.simulation.skipped(late.job_id) == {"start deadline": 1}
    assert await late.next() == at("2024-05-04T08:00:00Z")


async def mis_006(scene: Scene) -> None:
    case, expected = given("mis-006")
    start, end = map(at, case["deploy_restart"])
    await scene.create(start - HOUR, {"cron": case["schedule"]}, catch_up=case["catch_up"])
    await scene.down(start, end)
    assert await scene.runs() == [at(run["scheduled_for"]) for run in expected["runs"]]
    assert list(scene.simulation.hinted.values()) == [end]


async def mis_008(scene: Scene) -> None:
    _, expected = given("mis-008")
    await scene.create(at("2024-05-01T10:01:00Z"), {"cron": "*/5 * * * *"})
    for start, end in (("10:04:50", "10:04:55"), ("10:04:57", "10:05:03"), ("10:05:05", "10:05:10")):
        await scene.down(at(f"2024-05-01T{start}Z"), at(f"2024-05-01T{end}Z"))
    await scene.simulation.run_until(at("2024-05-01T10:15:00Z"))
    assert await scene.runs() == [
        at(f"2024-05-01T{time}") for time in ["10:05:00Z", *expected["schedule_keeps_running_at"]]
    ]
    assert await scene.missed() == 0


async def mis_009(scene: Scene) -> None:
    case, expected = given("mis-009")
    edited = at(case["edit_at"])
    await scene.create(at(case["last_fired"]) - HOUR, {"cron": case["schedule_before"]}, catch_up=case["catch_up"])
    await scene.simulation.run_until(edited)
    await scene.simulation.apply(update(scene.job_id, {"cron": case["schedule_after"]}, catch_up=case["catch_up"]))
    await scene.simulation.run_until(at("2024-05-03T00:00:00Z"))
    assert [run for run in await scene.runs() if run > edited] == expected["runs_on_2024-05-02_after_edit"]
    assert await scene.next() == at(expected["next"])


async def mis_010(scene: Scene) -> None:
    case, expected = given("mis-010")
    edited = at(case["edit_at"])
    await scene.create(edited - HOUR, {"cron": case["schedule_before"]})
    scene.simulation.clock.now = edited
    await scene.simulation.apply(update(scene.job_id, {"cron": case["schedule_after"]}))
    await scene.simulation.work()
    assert (await scene.runs() != []) == expected["immediate_run"]
    assert await scene.next() == at(expected["next"])


async def mis_011(scene: Scene) -> None:
    case, expected = given("mis-011")
    paused, resumed = map(at, case["paused"])
    await scene.create(paused - 2 * MINUTE, {"cron": case["schedule"]}, catch_up=case["catch_up"])
    scene.simulation.clock.now = paused
    await scene.simulation.apply(pause(scene.job_id))
    await scene.simulation.feed()
    scene.simulation.clock.now = resumed
    await scene.simulation.apply(resume(scene.job_id))
    await scene.simulation.feed()
    assert await scene.runs() == expected["runs_on_resume"]
    assert await scene.next() == at(expected["next"])
    assert set(await scene.simulation.skipped(scene.job_id)) == {"paused"}


async def mis_014(scene: Scene) -> None:
    case, expected = given("mis-014")
    scene.simulation.clock.now = at(case["received_at"])
    for deadline_s in case["start_deadline_s"]:
        command = create(job_on(PARTITION), {"runAt": case["one_off_run_at"]}, start_deadline_seconds=deadline_s)
        effects = await scene.simulation.apply(command)
        await scene.simulation.work()
        ran = [run_id for run_id in await scene.simulation.run_ids(command.job_id) if run_id in scene.simulation.hinted]
        if expected[str(deadline_s)] == "runs once at once":
            assert len(ran) == 1
        else:
            assert effects.rejected[command.command_id].field == "schedule"


async def mis_016(scene: Scene) -> None:
    case, expected = given("mis-016")
    start = at("2024-05-01T10:00:30Z")
    await scene.create(start, {"cron": case["schedule"]}, catch_up=case["catch_up"])
    scene.simulation.clock.now = start + 30 * MINUTE  # the same owner, whose loop stood still
    await scene.simulation.work()
    assert await scene.runs() == [start + 30 * SECOND + minute * MINUTE for minute in range(expected["runs"])]


async def mis_018(scene: Scene) -> None:
    case, expected = given("mis-018")
    start, end = map(at, case["scheduler_down"])
    await scene.create(start - HOUR, {"cron": case["schedule"], "zone": case["zone"]}, catch_up=case["catch_up"])
    await scene.down(start, end)
    assert await scene.runs() == list(map(at, expected["runs"]))


async def mis_019(scene: Scene) -> None:
    case, _ = given("mis-019")
    start = at("2024-05-01T10:00:30Z")
    await scene.create(start, {"cron": case["schedule"]}, catch_up=case["catch_up"], catch_up_limit=case["cap"])
    await scene.down(start, start + timedelta(days=case["scheduler_down_days"]))
    last = scene.simulation.now - 30 * SECOND
    assert await scene.runs() == [last - minute * MINUTE for minute in range(case["cap"] - 1, -1, -1)]
    assert await scene.missed() == 42_200
    assert len(await scene.simulation.events(scene.job_id, "occurrences_skipped")) == 1


async def mis_020(scene: Scene) -> None:
    case, expected = given("mis-020")
    slot = at("2026-08-03T04:00:00Z")
    await scene.create(slot - HOUR, {"cron": case["schedule"], "zone": case["zone"]})
    await scene.simulation.run_until(slot)
    [first, _] = await scene.simulation.run_ids(scene.job_id)
    [lease] = await scene.simulation.lease(first)
    assert await scene.simulation.complete(lease)
    scene.simulation.clock.now = slot + timedelta(milliseconds=54)
    scene.simulation.owner.decider._on_time.add([scene.job_id.bytes])  # the second tick that observes it
    await scene.simulation.work()
    scheduled = [event.scheduled_for for event in await scene.simulation.events(scene.job_id, "run_scheduled")]
    assert scheduled.count(slot) == expected["runs_for_slot"]
    assert await scene.next() == at(expected["next"])


async def mis_021(scene: Scene) -> None:
    case, expected = given("mis-021")
    monday = at("2024-04-29T09:00:00+08:00")
    await scene.create(monday - 12 * HOUR, {"cron": case["schedule"], "zone": case["zone"]}, catch_up=case["catch_up"])
    await scene.down(monday - 9 * HOUR, monday + 25 * HOUR)
    assert await scene.runs() == [monday] * expected["runs"]
    interval = Scene(scene.simulation)
    start = scene.simulation.now
    await interval.create(start, {"everySeconds": 7 * 86_400})
    await interval.down(start + HOUR, start + timedelta(days=8))
    assert await interval.runs() == [start + timedelta(days=7)]


async def mis_022(scene: Scene) -> None:
    case, expected = given("mis-022")
    noon = at("2024-05-01T12:00:00Z")
    await scene.create(noon, {"cron": case["schedule"]}, catch_up=case["catch_up"], name="report")
    await scene.simulation.run_until(noon + 2 * MINUTE + 30 * SECOND)
    await scene.simulation.apply(delete(scene.job_id))
    await scene.simulation.feed()
    again = Scene(scene.simulation)
    await again.create(noon + 5 * MINUTE + 30 * SECOND, {"cron": case["schedule"]}, catch_up="all", name="report")
    await scene.simulation.run_until(noon + 6 * MINUTE)
    assert await again.runs() == [at(f"2024-05-01T{expected['first']}")]
    assert await scene.runs() == []


async def mis_023(scene: Scene) -> None:
    case, _ = given("mis-023")
    slot = at("2024-05-01T10:00:00Z")
    schedule = {"cron": case["schedule"], "jitterSeconds": case["jitter_s"]}
    spec = {"start_deadline_seconds": case["start_deadline_s"]}
    # A job whose jitter comes later than it is seen, as in the case: found by its id.
    due = None
    while due is None or not slot + 95 * SECOND < due < slot + 115 * SECOND:
        scene.job_id = job_on(PARTITION)
        await scene.create(slot - 10 * MINUTE, schedule, **spec)
        [event] = await scene.simulation.events(scene.job_id, "run_scheduled")
        due = event.due_at
    await scene.down(slot - MINUTE, slot + 90 * SECOND)
    assert await scene.missed() == 0
    [run_id, _] = await scene.simulation.run_ids(scene.job_id)
    await scene.simulation.run_until(due + SECOND)
    assert abs(scene.simulation.hinted[run_id] - due) < timedelta(seconds=0.05)
    assert await scene.simulation.lease(run_id)


async def rty_002(scene: Scene) -> None:
    case, _ = given("rty-002")
    delays_s = await _retry_delays_s(scene, 200, case["base_s"])
    assert min(delays_s) > 0
    assert len(set(delays_s)) > 150


async def rty_005(scene: Scene) -> None:
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


async def rty_010(scene: Scene) -> None:
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


async def clk_001(scene: Scene) -> None:
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


async def clk_005(scene: Scene) -> None:
    case, expected = given("clk-005")
    await scene.create(at(case["start"]), {"cron": case["schedule"], "zone": case["zone"]})
    assert await scene.next() == at(expected["node_2_value"])
    assert await fetch(scene.simulation.pool, "SELECT tzdata_version FROM jobs") == [TZDATA_VERSION]


async def lse_005(scene: Scene) -> None:
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


async def clk_007(scene: Scene) -> None:
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
        assert in_time.total_seconds() < LONGEST_SLEEP_US / 1e6


async def idm_006(scene: Scene) -> None:
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


async def lse_003(scene: Scene) -> None:
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


async def lse_007(scene: Scene) -> None:
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


HERE = {
    name.replace("_", "-"): test for name, test in list(globals().items()) if re.fullmatch(r"[a-z]{3}_[0-9]{3}", name)
}

# Where the other cases are asserted: a file below tests/, and its test.
ELSEWHERE = {
    "clk-006": "streams/test_zone_moves.py test_a_fleet_that_runs_several_versions_runs_each_local_time_once",
    "clk-009": "schemas/test_commands.py test_a_command_s_time_without_a_zone_is_not_encoded",
    "clk-010": "streams/test_policy_cases.py test_heartbeats_keep_a_run_alive_while_the_clocks_are_changed",
    "clk-011": "streams/test_policy_cases.py test_an_owner_that_restarts_east_of_greenwich_misses_no_hour",
    "fen-002": "ledger/test_leases.py test_an_older_token_is_refused",
    "fen-003": "ledger/test_leases.py test_the_token_grows_with_every_lease_of_a_run",
    "fen-006": "api/test_outcomes.py test_an_older_lease_token_is_refused",
    "fen-008": "connectors/client/test_against_api.py "
    "test_a_webhook_called_again_after_a_lost_lease_lets_the_receiver_refuse_the_older_call",
    "fen-007": "ledger/test_restoration.py test_after_a_restoration_no_token_or_epoch_that_was_seen_is_given_again",
    "fen-009": "streams/test_decisions.py test_an_owner_whose_epoch_is_over_decides_nothing",
    "idm-002": "api/test_jobs.py test_the_same_key_sent_twice_at_once_creates_one_job",
    "idm-004": "streams/test_decisions.py test_a_decision_that_was_committed_but_not_remembered_is_not_made_twice",
    "idm-007": "streams/test_command_applier.py test_the_same_commands_produced_again_change_nothing_but_the_offset",
    "idm-009": "api/test_jobs.py test_the_same_key_and_body_create_one_job",
    "lse-001": "connectors/client/test_worker_leases.py "
    "test_heartbeats_keep_a_run_that_takes_longer_than_its_visibility",
    "lse-002": "connectors/client/test_worker_leases.py "
    "test_blocking_handlers_that_burn_the_processor_do_not_starve_heartbeats",
    "lse-010": "connectors/client/test_worker_drain.py test_drain_ends_the_poll_and_lets_running_handlers_finish",
    "lse-012": "streams/test_policy_cases.py test_reaping_goes_on_after_the_owner_that_reaped_has_died_in_the_middle",
    "lse-014": "connectors/client/test_worker_leases.py test_worker_that_was_frozen_past_its_lease_reports_nothing",
    "lse-015": "connectors/client/test_worker.py test_conflict_is_counted_and_does_not_disturb_the_others",
    "ovl-001": "streams/test_overlap.py test_occurrences_during_a_long_run_are_skipped_and_the_next_one_after_it_runs",
    "ovl-003": "streams/test_overlap.py test_an_expired_and_retried_run_still_counts_as_active",
    "ovl-004": "streams/test_overlap.py test_a_manual_run_takes_part_in_the_rule",
    "ovl-005": "streams/test_overlap.py test_a_run_that_no_worker_asks_for_is_active_too",
    "ovl-008": "streams/test_overlap.py test_a_replaced_run_is_fenced_before_the_next_one_starts",
    "ovl-010": "streams/test_overlap.py test_replacing_faster_than_the_runs_take_never_finishes_and_shows_it",
    "ovl-011": "streams/test_overlap.py test_a_run_longer_than_its_lease_is_started_once_while_it_beats",
    "ovl-013": "streams/test_overlap.py test_skipped_occurrences_are_decided_and_not_caught_up_with",
    "rty-009": "connectors/client/webhook/test_webhook.py test_answers_are_tried_again_or_final_as_the_case_says",
    "rty-011": "connectors/client/test_worker_drain.py test_drain_waits_for_outcomes_that_the_server_does_not_take_yet",
}


@pytest.mark.parametrize("case_id", sorted(HERE))
async def test_a_case_ends_as_it_says(scene: Scene, case_id: str) -> None:
    await HERE[case_id](scene)


def test_every_case_of_these_areas_is_somewhere() -> None:
    assert {case_id for case_id, case in CASES.items() if case["area"] in AREAS} == {*HERE, *ELSEWHERE}


@pytest.mark.parametrize("case_id", ELSEWHERE)
def test_a_case_that_another_file_asserts_is_there(case_id: str) -> None:
    file, name = ELSEWHERE[case_id].split()
    assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8")
