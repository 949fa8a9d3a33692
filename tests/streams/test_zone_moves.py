"""An upgrade of tzdata: what is pending moves to where the new rules have it, and no occurrence is lost or doubled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
import pytest_asyncio

import ledger.advances
import ledger.edits
import ledger.jobs
import ledger.zone_rules
from ledger.connection import Pool
from schemas import zones
from schemas.ids import run_id_for
from schemas.zones import KeptZone
from streams import opening, partition_owner, zone_moves
from streams.missed_events import Fold
from tests.schemas.zone_files import tzif
from tests.streams.commands import cancel, create, job_on, pause, resume
from tests.streams.ledger_dump import fetch
from tests.streams.simulated_owner import PARTITION, Simulation, simulating

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
CHANGE = MONDAY + DAY + HOUR  # on Tuesday at 01:00 UTC
ZONE = "Europe/Chisinau"
NINE = {"cron": "0 9 * * *", "zone": ZONE}


class Tzdata(NamedTuple):
    """A tzdata in which only one zone matters, with made-up rules."""

    version: str
    rules: bytes


WINTER = Tzdata("2026a", tzif(3600))
SUMMER = Tzdata("2026b", tzif(3600, (CHANGE, 7200)))  # the clock is put forward on Tuesday, as became known late
BACK = Tzdata("2026c", tzif(3600, (CHANGE, 0)))


class Fleet:
    """A simulation whose owners run one tzdata or another."""

    def __init__(self, simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
        self.simulation, self._monkeypatch = simulation, monkeypatch
        self._real = zones.zone_data

    def install(self, tzdata: Tzdata) -> None:
        for module in (ledger.jobs, ledger.edits, ledger.advances, ledger.zone_rules, opening, partition_owner):
            self._monkeypatch.setattr(module, "TZDATA_VERSION", tzdata.version)
        for module in (zones, zone_moves):
            self._monkeypatch.setattr(module, "zone_data", lambda name: self._data(name, tzdata))
        forget_zones()

    def _data(self, name: str, tzdata: Tzdata) -> bytes:
        return tzdata.rules if name == ZONE and not isinstance(name, KeptZone) else self._real(name)

    async def start(self, tzdata: Tzdata) -> None:
        """Another process takes over, with that tzdata."""
        await self.simulation.stop()
        self.install(tzdata)
        await self.simulation.start()
        await self.simulation.owner._stamp()
        await self.simulation.work()

    async def create(self, schedule: dict[str, Any], **spec: Any) -> UUID:
        command = create(job_on(PARTITION), schedule, issued_at=self.simulation.now, **spec)
        await self.simulation.apply(command)
        return command.job_id

    async def hinted(self, job_id: UUID) -> list[datetime]:
        """When the job's runs were first hinted, to the second."""
        scheduled = await self.simulation.events(job_id, "run_scheduled")
        run_ids = {run_id_for(job_id, event.scheduled_for, PARTITION) for event in scheduled}
        hinted = self.simulation.hinted.items()
        return sorted(at.replace(microsecond=0) for run_id, at in hinted if run_id in run_ids)


def forget_zones() -> None:
    zones.zone.cache_clear()
    zones.timeline.cache_clear()


@pytest_asyncio.fixture
async def fleet(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    """A fleet on Monday at noon, with the rules of winter."""
    async with simulating(ledger_pool, tmp_path, MONDAY + 12 * HOUR, monkeypatch) as simulation:
        fleet = Fleet(simulation, monkeypatch)
        await fleet.start(WINTER)
        yield fleet
    forget_zones()


async def stamps(fleet: Fleet) -> set[str]:
    return set(await fetch(fleet.simulation.pool, "SELECT tzdata_version FROM jobs"))


async def test_an_occurrence_that_comes_earlier_now_runs_then(fleet: Fleet) -> None:
    job_id = await fleet.create(NINE)
    assert await fleet.simulation.cursor(job_id) == MONDAY + DAY + 8 * HOUR
    await fleet.start(SUMMER)
    assert await fleet.simulation.runs(job_id) == [MONDAY + DAY + 7 * HOUR]
    assert await stamps(fleet) == {SUMMER.version}
    [old] = await fleet.simulation.events(job_id, "run_cancelled")
    assert (old.scheduled_for, old.reason) == (MONDAY + DAY + 8 * HOUR, "zone rules")
    await fleet.simulation.run_until(MONDAY + 3 * DAY)
    assert await fleet.simulation.due(job_id) == [MONDAY + days * DAY + 7 * HOUR for days in (1, 2)]


async def test_an_occurrence_that_comes_later_now_waits(fleet: Fleet) -> None:
    job_id = await fleet.create(NINE)
    await fleet.start(BACK)
    assert await fleet.simulation.runs(job_id) == [MONDAY + DAY + 9 * HOUR]
    await fleet.simulation.run_until(MONDAY + 2 * DAY)
    assert await fleet.hinted(job_id) == [MONDAY + DAY + 9 * HOUR]


async def test_who_comes_back_moves_what_another_with_other_rules_has_moved_meanwhile(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own state says that all cursors are of its rules, which they were."""
    simulation, missed = fleet.simulation, list[int]()

    async def read_missed(_partition: int, _offset: int, end: int, _limit: int, fold: Fold) -> int:
        fold(await simulation.told(), end)
        missed.append(end)
        return end

    async def end_offset(_: int) -> int:
        return len(await simulation.told())

    async def nothing_waits(_: object) -> None:
        return None

    simulation.missed_events, simulation.end_offset = read_missed, end_offset
    monkeypatch.setattr(opening, "oldest_unpublished", nothing_waits)
    job_id, its_folder = await fleet.create(NINE), simulation.folder
    simulation.folder = tmp_path / "another"
    await fleet.start(SUMMER)
    assert await simulation.runs(job_id) == [MONDAY + DAY + 7 * HOUR]
    simulation.folder = its_folder
    await fleet.start(WINTER)
    assert len(missed) == 1
    assert await simulation.runs(job_id) == [MONDAY + DAY + 8 * HOUR]
    await simulation.run_until(MONDAY + 2 * DAY)
    assert (await fleet.hinted(job_id))[-1] == MONDAY + DAY + 8 * HOUR
    assert await simulation.cursor(job_id) == MONDAY + 2 * DAY + 8 * HOUR


async def test_an_occurrence_that_the_new_rules_put_into_the_past_is_due_at_once_and_once(fleet: Fleet) -> None:
    job_id = await fleet.create(NINE)
    upgrade = MONDAY + DAY + 7 * HOUR + 30 * MINUTE
    await fleet.simulation.run_until(upgrade)
    assert await fleet.hinted(job_id) == []
    await fleet.start(SUMMER)
    assert await fleet.hinted(job_id) == [upgrade]
    await fleet.simulation.run_until(MONDAY + 2 * DAY)
    assert await fleet.simulation.due(job_id) == [MONDAY + DAY + 7 * HOUR]
    assert await fleet.simulation.cursor(job_id) == MONDAY + 2 * DAY + 7 * HOUR
    assert await fleet.simulation.skipped(job_id) == {}


async def test_a_local_time_that_has_fired_does_not_fire_again_when_it_comes_once_more(fleet: Fleet) -> None:
    """09:00 was at 08:00Z; half an hour later it becomes known that it is at 09:00Z."""
    job_id = await fleet.create(NINE)
    await fleet.simulation.run_until(MONDAY + DAY + 8 * HOUR + 30 * MINUTE)
    assert await fleet.hinted(job_id) == [MONDAY + DAY + 8 * HOUR]
    await fleet.start(BACK)
    assert await fleet.simulation.cursor(job_id) == MONDAY + 2 * DAY + 9 * HOUR
    await fleet.simulation.run_until(MONDAY + 2 * DAY + 10 * HOUR)
    assert await fleet.simulation.due(job_id) == [MONDAY + DAY + 8 * HOUR, MONDAY + 2 * DAY + 9 * HOUR]


async def test_what_was_leased_while_nobody_owned_the_partition_stays_and_counts(fleet: Fleet) -> None:
    job_id = await fleet.create(NINE)
    [run_id] = await fleet.simulation.run_ids(job_id)
    await fleet.simulation.stop()
    fleet.simulation.clock.now = MONDAY + DAY + 8 * HOUR + 10 * SECOND
    [lease] = await fleet.simulation.lease(run_id)
    await fleet.simulation.start()
    await fleet.start(BACK)
    assert await fleet.simulation.run_ids(job_id, "leased") == [run_id]
    assert await fleet.simulation.cursor(job_id) == MONDAY + 2 * DAY + 9 * HOUR
    assert await fleet.simulation.complete(lease)
    await fleet.simulation.feed()
    await fleet.simulation.run_until(MONDAY + 2 * DAY)
    assert await fleet.simulation.runs(job_id) == [MONDAY + 2 * DAY + 9 * HOUR]


async def test_what_was_due_but_not_leased_while_nobody_owned_the_partition_waits_for_its_new_time(
    fleet: Fleet,
) -> None:
    job_id = await fleet.create(NINE)
    await fleet.simulation.stop()
    fleet.simulation.clock.now = MONDAY + DAY + 8 * HOUR + 30 * MINUTE
    await fleet.simulation.start()
    await fleet.start(BACK)
    await fleet.simulation.run_until(MONDAY + DAY + 12 * HOUR)
    assert await fleet.hinted(job_id) == [MONDAY + DAY + 9 * HOUR]


async def test_a_cancelled_occurrence_stays_cancelled(fleet: Fleet) -> None:
    job_id = await fleet.create(NINE)
    [run_id] = await fleet.simulation.run_ids(job_id)
    await fleet.simulation.apply(cancel(job_id, run_id))
    await fleet.start(BACK)
    assert await fleet.simulation.runs(job_id) == [MONDAY + 2 * DAY + 9 * HOUR]


async def test_a_paused_job_s_held_run_moves_and_stays_held(fleet: Fleet) -> None:
    job_id = await fleet.create(NINE)
    await fleet.simulation.apply(pause(job_id))
    await fleet.start(SUMMER)
    [run_id] = await fleet.simulation.run_ids(job_id, "held")
    await fleet.simulation.apply(resume(job_id))
    assert await fleet.simulation.run_ids(job_id) == [run_id]
    await fleet.simulation.run_until(MONDAY + 2 * DAY)
    assert await fleet.hinted(job_id) == [MONDAY + DAY + 7 * HOUR]


@pytest.mark.parametrize(
    "schedule",
    [
        {"cron": "0 9 * * *"},
        {"cron": "0 9 * * *", "zone": "Asia/Tokyo"},
        {"cron": "0 0 * * *", "zone": ZONE},  # before the change
        {"everySeconds": 3600},
        {"runAt": "2026-03-09T09:00:00Z"},
        {"delaySeconds": 86_400},
    ],
)
async def test_what_stays_where_it_was_is_only_stamped(fleet: Fleet, schedule: dict[str, Any]) -> None:
    job_id = await fleet.create(schedule)
    query = "SELECT version, next_fire_at, edited_at FROM jobs"
    before, runs = await fetch(fleet.simulation.pool, query), await fleet.simulation.run_ids(job_id)
    await fleet.start(SUMMER)
    assert await fetch(fleet.simulation.pool, query) == before
    assert await fleet.simulation.run_ids(job_id) == runs
    assert await stamps(fleet) == {SUMMER.version}


async def test_a_night_that_jumps_over_a_local_time_now_fires_it_after_the_gap(fleet: Fleet) -> None:
    job_id = await fleet.create({"cron": "0,30 2 * * *", "zone": ZONE})
    assert await fleet.simulation.cursor(job_id) == CHANGE
    await fleet.start(SUMMER)
    await fleet.simulation.run_until(MONDAY + DAY + 12 * HOUR)
    assert await fleet.hinted(job_id) == [CHANGE]


async def test_a_gap_that_is_none_after_all_gives_each_of_its_local_times_a_run(fleet: Fleet) -> None:
    await fleet.start(SUMMER)
    job_id = await fleet.create({"cron": "0,30 2 * * *", "zone": ZONE})
    assert await fleet.simulation.cursor(job_id) == CHANGE
    await fleet.start(WINTER)
    await fleet.simulation.run_until(MONDAY + 2 * DAY)
    assert await fleet.hinted(job_id) == [CHANGE, CHANGE + 30 * MINUTE]


async def test_a_night_that_has_a_local_time_twice_now_fires_it_at_its_first(fleet: Fleet) -> None:
    job_id = await fleet.create({"cron": "30 1 * * *", "zone": ZONE})
    await fleet.start(BACK)
    await fleet.simulation.run_until(MONDAY + 2 * DAY)
    assert await fleet.hinted(job_id) == [CHANGE - 30 * MINUTE]


async def test_an_hourly_job_goes_on_by_real_time(fleet: Fleet) -> None:
    job_id = await fleet.create({"cron": "0 * * * *", "zone": ZONE})
    await fleet.simulation.run_until(CHANGE + 30 * MINUTE)
    await fleet.start(SUMMER)
    await fleet.simulation.run_until(CHANGE + 2 * HOUR)
    await fleet.start(BACK)
    await fleet.simulation.run_until(CHANGE + 4 * HOUR)
    start = MONDAY + 13 * HOUR
    assert await fleet.hinted(job_id) == [start + hours * HOUR for hours in range(17)]


async def test_rules_that_nobody_kept_are_guessed_by_the_nearest_fire(fleet: Fleet) -> None:
    job_id = await fleet.create(NINE)
    await fetch(fleet.simulation.pool, "WITH gone AS (DELETE FROM zone_rules RETURNING 1) SELECT count(*) FROM gone")
    await fleet.start(SUMMER)
    assert await fleet.simulation.cursor(job_id) == MONDAY + DAY + 7 * HOUR
    assert await stamps(fleet) == {SUMMER.version}


async def test_what_was_created_after_its_local_time_by_the_old_rules_and_before_by_the_new_runs(fleet: Fleet) -> None:
    await fleet.simulation.run_until(MONDAY + DAY + 8 * HOUR + 15 * MINUTE)
    job_id = await fleet.create(NINE)
    assert await fleet.simulation.cursor(job_id) == MONDAY + 2 * DAY + 8 * HOUR
    await fleet.start(BACK)
    assert await fleet.simulation.cursor(job_id) == MONDAY + DAY + 9 * HOUR


async def test_a_fleet_that_runs_several_versions_runs_each_local_time_once(fleet: Fleet) -> None:
    """A rolling deploy at its worst: every few hours another version owns the partition, on days that differ."""
    jobs = {
        await fleet.create({"cron": f"{minute} {hour} * * *", "zone": ZONE}): (hour, minute)
        for hour in (0, 1, 2, 3, 9, 17)
        for minute in (0, 30)
    }
    start = fleet.simulation.now
    for turn in range(16):
        await fleet.simulation.run_until(start + (turn + 1) * 7 * HOUR)
        await fleet.start((SUMMER, BACK, WINTER)[turn % 3])
    assert len(await stamps(fleet)) == 1
    await fleet.simulation.run_until(start + 5 * DAY)
    for job_id, local in jobs.items():
        assert len(await fleet.hinted(job_id)) == 5, local


async def test_once_all_run_one_version_nothing_moves_any_more(fleet: Fleet) -> None:
    job_id = await fleet.create(NINE)
    await fleet.start(SUMMER)
    before = await fetch(fleet.simulation.pool, "SELECT xmin::text, version FROM jobs")
    await fleet.start(SUMMER)
    assert await fetch(fleet.simulation.pool, "SELECT xmin::text, version FROM jobs") == before
    assert len(await fleet.simulation.events(job_id, "job_updated")) == 1
    kept = await fetch(fleet.simulation.pool, "SELECT tzdata_version, count(*) FROM zone_rules GROUP BY 1")
    versions = ("2026a", "2026b", zones.TZDATA_VERSION)
    assert dict(kept) == dict.fromkeys(versions, len(zones.zone_names()))
