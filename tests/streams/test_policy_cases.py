"""The cases of tests/data/cases.jsonl about policies, with their expected values; and where others of them are."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.connection import Pool
from schemas.zones import TZDATA_VERSION
from streams.partition_owner import EXPIRY_BATCH
from streams.timekeeper import LONGEST_SLEEP_US
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
    scene.simulation.owner._undecided.add([scene.job_id.bytes])  # the second tick that observes it
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


HERE = {
    name.replace("_", "-"): test for name, test in list(globals().items()) if re.fullmatch(r"[a-z]{3}_[0-9]{3}", name)
}

# Where the other cases are asserted: a file below tests/, and its test.
ELSEWHERE = {
    "clk-006": "streams/test_zone_moves.py test_a_fleet_that_runs_several_versions_runs_each_local_time_once",
    "clk-007": "ledger/test_leases.py test_a_heartbeat_extends_the_lease",
    "clk-009": "schemas/test_commands.py test_a_command_s_time_without_a_zone_is_not_encoded",
    "clk-010": "streams/test_ledger_clock.py test_a_ledger_whose_clock_was_put_back_is_believed_at_once",
    "clk-011": "streams/test_ledger_clock.py test_the_ledger_s_time_is_told_within_a_round_trip",
    "fen-002": "ledger/test_leases.py test_an_older_token_is_refused",
    "fen-003": "ledger/test_leases.py test_the_token_grows_with_every_lease_of_a_run",
    "fen-006": "api/test_outcomes.py test_an_older_lease_token_is_refused",
    "fen-008": "connectors/client/test_against_api.py "
    "test_a_webhook_called_again_after_a_lost_lease_lets_the_receiver_refuse_the_older_call",
    "fen-009": "streams/test_decisions.py test_an_owner_whose_epoch_is_over_decides_nothing",
    "idm-002": "api/test_jobs.py test_the_same_key_sent_twice_at_once_creates_one_job",
    "idm-004": "streams/test_decisions.py test_a_decision_that_was_committed_but_not_remembered_is_not_made_twice",
    "idm-006": "streams/test_overlap.py test_a_run_that_no_worker_asks_for_is_active_too",
    "idm-007": "streams/test_command_applier.py test_the_same_commands_produced_again_change_nothing_but_the_offset",
    "idm-009": "api/test_jobs.py test_the_same_key_and_body_create_one_job",
    "lse-001": "connectors/client/test_worker_leases.py "
    "test_heartbeats_keep_a_run_that_takes_longer_than_its_visibility",
    "lse-002": "connectors/client/test_worker_leases.py "
    "test_blocking_handlers_that_burn_the_processor_do_not_starve_heartbeats",
    "lse-003": "streams/test_partition_owner.py test_a_lease_that_heartbeats_extended_is_not_expired",
    "lse-007": "ledger/test_leases.py test_the_token_grows_with_every_lease_of_a_run",
    "lse-010": "connectors/client/test_worker_drain.py test_drain_ends_the_poll_and_lets_running_handlers_finish",
    "lse-012": "streams/test_partition_owner.py test_a_state_of_an_older_epoch_is_rebuilt",
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

# What no test can show yet, and why.
OPEN = {
    "fen-007": "restoring a backup is the operator's: documented, not code",
}


@pytest.mark.parametrize("case_id", sorted(HERE))
async def test_a_case_ends_as_it_says(scene: Scene, case_id: str) -> None:
    await HERE[case_id](scene)


def test_every_case_of_these_areas_is_somewhere() -> None:
    assert {case_id for case_id, case in CASES.items() if case["area"] in AREAS} == {*HERE, *ELSEWHERE, *OPEN}


@pytest.mark.parametrize("case_id", ELSEWHERE)
def test_a_case_that_another_file_asserts_is_there(case_id: str) -> None:
    file, name = ELSEWHERE[case_id].split()
    assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8")
