"""The public cases (tests/cases.py) about occurrences that nobody was there for, a test each, by its name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.cases import given
from tests.streams.commands import create, delete, job_on, pause, resume, update
from tests.streams.scene import HOUR, MINUTE, SECOND, Scene, at
from tests.streams.simulated_owner import PARTITION


async def _minutely_down(scene: Scene, case_id: str, **spec: Any) -> None:
    case, _ = given(case_id)
    start, end = map(at, given("mis-001")[0]["scheduler_down"])
    assert case.get("as", case_id) in ("mis-001", case_id)
    await scene.create(start - 10 * SECOND, {"cron": "* * * * *"}, **spec)
    await scene.down(start, end)


async def test_mis_001(scene: Scene) -> None:
    case, expected = given("mis-001")
    await _minutely_down(scene, "mis-001", catch_up=case["catch_up"], overlap=case["overlap"])
    assert await scene.runs() == [at(run["scheduled_for"]) for run in expected["runs_at_restart"]]
    assert await scene.missed() == expected["missed_recorded"]
    assert await scene.next() == at(expected["next"])


async def test_mis_004(scene: Scene) -> None:
    case, expected = given("mis-004")
    await _minutely_down(scene, "mis-004", catch_up=case["catch_up"], start_deadline_seconds=case["start_deadline_s"])
    assert await scene.runs() == list(map(at, expected["runs"]))
    assert await scene.missed() == expected["missed_recorded"]


async def test_mis_005(scene: Scene) -> None:
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


async def test_mis_006(scene: Scene) -> None:
    case, expected = given("mis-006")
    start, end = map(at, case["deploy_restart"])
    await scene.create(start - HOUR, {"cron": case["schedule"]}, catch_up=case["catch_up"])
    await scene.down(start, end)
    assert await scene.runs() == [at(run["scheduled_for"]) for run in expected["runs"]]
    assert list(scene.simulation.hinted.values()) == [end]


async def test_mis_008(scene: Scene) -> None:
    _, expected = given("mis-008")
    await scene.create(at("2024-05-01T10:01:00Z"), {"cron": "*/5 * * * *"})
    for start, end in (("10:04:50", "10:04:55"), ("10:04:57", "10:05:03"), ("10:05:05", "10:05:10")):
        await scene.down(at(f"2024-05-01T{start}Z"), at(f"2024-05-01T{end}Z"))
    await scene.simulation.run_until(at("2024-05-01T10:15:00Z"))
    assert await scene.runs() == [
        at(f"2024-05-01T{time}") for time in ["10:05:00Z", *expected["schedule_keeps_running_at"]]
    ]
    assert await scene.missed() == 0


async def test_mis_009(scene: Scene) -> None:
    case, expected = given("mis-009")
    edited = at(case["edit_at"])
    await scene.create(at(case["last_fired"]) - HOUR, {"cron": case["schedule_before"]}, catch_up=case["catch_up"])
    await scene.simulation.run_until(edited)
    await scene.simulation.apply(update(scene.job_id, {"cron": case["schedule_after"]}, catch_up=case["catch_up"]))
    await scene.simulation.run_until(at("2024-05-03T00:00:00Z"))
    assert [run for run in await scene.runs() if run > edited] == expected["runs_on_2024-05-02_after_edit"]
    assert await scene.next() == at(expected["next"])


async def test_mis_010(scene: Scene) -> None:
    case, expected = given("mis-010")
    edited = at(case["edit_at"])
    await scene.create(edited - HOUR, {"cron": case["schedule_before"]})
    scene.simulation.clock.now = edited
    await scene.simulation.apply(update(scene.job_id, {"cron": case["schedule_after"]}))
    await scene.simulation.work()
    assert (await scene.runs() != []) == expected["immediate_run"]
    assert await scene.next() == at(expected["next"])


async def test_mis_011(scene: Scene) -> None:
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


async def test_mis_014(scene: Scene) -> None:
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


async def test_mis_016(scene: Scene) -> None:
    case, expected = given("mis-016")
    start = at("2024-05-01T10:00:30Z")
    await scene.create(start, {"cron": case["schedule"]}, catch_up=case["catch_up"])
    scene.simulation.clock.now = start + 30 * MINUTE  # the same owner, whose loop stood still
    await scene.simulation.work()
    assert await scene.runs() == [start + 30 * SECOND + minute * MINUTE for minute in range(expected["runs"])]


async def test_mis_018(scene: Scene) -> None:
    case, expected = given("mis-018")
    start, end = map(at, case["scheduler_down"])
    await scene.create(start - HOUR, {"cron": case["schedule"], "zone": case["zone"]}, catch_up=case["catch_up"])
    await scene.down(start, end)
    assert await scene.runs() == list(map(at, expected["runs"]))


async def test_mis_019(scene: Scene) -> None:
    case, _ = given("mis-019")
    start = at("2024-05-01T10:00:30Z")
    await scene.create(start, {"cron": case["schedule"]}, catch_up=case["catch_up"], catch_up_limit=case["cap"])
    await scene.down(start, start + timedelta(days=case["scheduler_down_days"]))
    last = scene.simulation.now - 30 * SECOND
    assert await scene.runs() == [last - minute * MINUTE for minute in range(case["cap"] - 1, -1, -1)]
    assert await scene.missed() == 42_200
    assert len(await scene.simulation.events(scene.job_id, "occurrences_skipped")) == 1


async def test_mis_020(scene: Scene) -> None:
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


async def test_mis_021(scene: Scene) -> None:
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


async def test_mis_022(scene: Scene) -> None:
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


async def test_mis_023(scene: Scene) -> None:
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
