"""Made-up runs of a queue with a rate: which instant each of them gets, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.connection import Pool, session
from ledger.fence import owner_transaction, take_over
from ledger.queue_settings import QueueName, set_rate
from streams.backlog import Missed
from streams.command_batch import apply_commands
from streams.partition_memory import PartitionMemory
from streams.rebuild import rebuild
from streams.spreading import find_missed, spread_missed
from streams.timers import to_us
from tests.streams.commands import create, job_on, update
from tests.streams.ledger_dump import fetch
from tests.streams.simulated_owner import PARTITION, Simulation, simulating

START = datetime(2026, 5, 1, 8, 29, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FIRST = START + timedelta(seconds=30)  # 08:30
BACK = FIRST + 9.5 * MINUTE  # ten minutes were missed, 08:30 to 08:39


@pytest_asyncio.fixture
async def simulation(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Simulation]:
    async with simulating(ledger_pool, tmp_path, START, monkeypatch) as simulation:
        yield simulation


async def job(simulation: Simulation, cron: str = "* * * * *", catch_up: Any = "all", **spec: Any) -> UUID:
    await simulation.apply(
        create(job_id := job_on(PARTITION), {"cron": cron}, issued_at=START, catch_up=catch_up, **spec)
    )
    return job_id


async def restart(simulation: Simulation, back: datetime = BACK) -> None:
    await simulation.stop()
    simulation.clock.now = back
    await simulation.start()
    await simulation.work()


def minutes(count: int, first: datetime = FIRST) -> list[datetime]:
    return [first + number * MINUTE for number in range(count)]


def apart(count: int, seconds: float, first: datetime = BACK) -> list[datetime]:
    return [first + number * timedelta(seconds=seconds) for number in range(count)]


async def due(simulation: Simulation, *job_ids: UUID) -> list[tuple[datetime, datetime]]:
    """(nominal time, due time) of the jobs' runs, in the order in which they come due."""
    query = "SELECT scheduled_for, due_at FROM runs WHERE job_id = ANY (%s) ORDER BY due_at, scheduled_for"
    return await fetch(simulation.pool, query, list(job_ids))


async def test_made_up_runs_come_due_at_their_queues_rate_the_oldest_first(simulation: Simulation) -> None:
    await simulation.set_rate(2)
    job_id = await job(simulation)
    await restart(simulation)
    live = BACK + MINUTE / 2
    made_up = list(zip(minutes(10), apart(10, 0.5), strict=True))
    assert await due(simulation, job_id) == [*made_up, (live, live)]
    assert await simulation.cursor(job_id) == live
    await simulation.run_until(BACK + timedelta(seconds=5))
    run_ids = await simulation.run_ids(job_id)
    hinted = [simulation.hinted[run_id] for run_id in run_ids[:10]]
    late = [at - instant for at, instant in zip(hinted, apart(10, 0.5), strict=True)]
    assert all(timedelta(0) <= each < timedelta(seconds=0.05) for each in late)


async def test_a_shard_among_several_takes_its_share_of_the_rate(simulation: Simulation) -> None:
    await simulation.set_rate(2)
    job_id = await job(simulation)
    simulation.rate_share = 0.25
    await restart(simulation)
    assert [at for _, at in await due(simulation, job_id)][:10] == apart(10, 2)


async def test_jobs_of_a_queue_take_turns_by_the_age_of_what_they_missed(simulation: Simulation) -> None:
    await simulation.set_rate(4)
    every, second, third = [await job(simulation, cron) for cron in ("* * * * *", "*/2 * * * *", "*/3 * * * *")]
    await restart(simulation)
    found = [each for each in await due(simulation, every, second, third) if each[0] < BACK]
    assert [at for _, at in found] == apart(19, 0.25)
    nominal = [at for at, _ in found]
    assert nominal == sorted(nominal)
    assert {at: nominal.count(at) for at in nominal} == {
        at: 1 + (at.minute % 2 == 0) + (at.minute % 3 == 0) for at in minutes(10)
    }


async def test_a_turn_ends_where_a_job_has_had_enough_and_the_next_goes_on_in_order(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.spreading.LINKS_A_JOB", 3)
    monkeypatch.setattr("streams.spreading.SPREAD_BATCH", 7)
    await simulation.set_rate(10)
    jobs = [await job(simulation) for _ in range(4)]
    await restart(simulation, FIRST + timedelta(minutes=40, seconds=10))
    found = [each for each in await due(simulation, *jobs) if each[0] < simulation.now]
    assert [at for at, _ in found] == [at for at in minutes(41) for _ in jobs]
    assert [at for _, at in found] == apart(164, 0.1, simulation.now)


async def test_nothing_is_made_up_for_before_all_that_is_late_is_known(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.decider.BATCH", 3)
    await simulation.set_rate(10)
    jobs = [await job(simulation) for _ in range(7)]
    await simulation.stop()
    simulation.clock.now = BACK
    await simulation.start()
    owner = simulation.owner
    owner.tick(simulation.clock.now_us())
    await owner.decider.sort_late()
    spreading = asyncio.create_task(owner.decider.spread())
    await owner.decider.sort_late()
    assert not spreading.done()
    assert {at for _, at in await due(simulation, *jobs)} == {FIRST}
    await owner.decider.sort_late()
    await spreading
    await simulation.work()
    found = [each for each in await due(simulation, *jobs) if each[0] < BACK]
    assert found == list(zip([at for at in minutes(10) for _ in jobs], apart(70, 0.1), strict=True))


async def test_a_job_that_is_late_during_a_turn_joins_the_next(simulation: Simulation) -> None:
    queue, early, late = QueueName("acme", "mail"), Missed(1, b"1", 1, True), Missed(2, b"2", 1, True)
    backlog = simulation.owner.decider._backlog
    backlog.add(queue, early)
    assert backlog.turn() == (queue, [early])
    backlog.add(queue, late)
    backlog.keep(queue, [early._replace(at_us=3)], [])
    assert backlog.turn() == (queue, [late, early._replace(at_us=3)])
    backlog.keep(queue, [], [b"1", b"2"])
    assert len(backlog) == 0


async def test_a_restart_in_the_middle_goes_on_where_it_was(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.spreading.SPREAD_BATCH", 4)
    await simulation.set_rate(1)
    jobs = [await job(simulation) for _ in range(2)]
    await simulation.stop()
    simulation.clock.now = BACK
    await simulation.start()
    owner = simulation.owner
    owner.tick(simulation.clock.now_us())
    await owner.decider.sort_late()
    await owner.decider.spread()
    await owner.decider.spread()
    before = await due(simulation, *jobs)
    await restart(simulation, BACK + timedelta(seconds=3))
    found = [each for each in await due(simulation, *jobs) if each[0] < BACK]
    assert found[: len(before)] == before
    assert found == list(zip([at for at in minutes(10) for _ in jobs], apart(20, 1), strict=True))


async def test_another_rate_sets_apart_what_is_left_and_leaves_what_has_come_due(simulation: Simulation) -> None:
    await simulation.set_rate(1)
    job_id = await job(simulation)
    await restart(simulation)
    simulation.clock.now = changed = BACK + timedelta(seconds=3, milliseconds=500)
    await simulation.set_rate(4)
    made_up = [at for nominal, at in await due(simulation, job_id) if nominal < BACK]
    assert made_up == apart(4, 1) + apart(6, 0.25, changed)
    simulation.clock.now = again = changed + timedelta(seconds=0.5)
    await simulation.set_rate(0.1)
    made_up = [at for nominal, at in await due(simulation, job_id) if nominal < BACK]
    assert made_up == apart(4, 1) + apart(3, 0.25, changed) + apart(3, 10, again)
    nominal = [nominal for nominal, _ in await due(simulation, job_id)]
    assert nominal[:5] == minutes(5)  # what is live comes between the last ones


async def test_without_its_rate_a_queue_makes_up_for_the_rest_at_once(simulation: Simulation) -> None:
    await simulation.set_rate(1)
    job_id = await job(simulation)
    await restart(simulation)
    simulation.clock.now = cleared = BACK + timedelta(seconds=2)
    await simulation.set_rate(None)
    assert [at for nominal, at in await due(simulation, job_id) if nominal < BACK] == apart(3, 1) + [cleared] * 7
    assert await fetch(simulation.pool, "SELECT count(*) FROM runs WHERE rate_version IS NOT NULL") == [3]


async def test_a_rate_that_changed_while_nobody_owned_the_partition_is_followed_afterwards(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.spreading.SPREAD_BATCH", 3)
    await simulation.set_rate(0.01)
    job_id = await job(simulation)
    await restart(simulation)
    await simulation.stop()
    async with simulation.pool.connection() as conn:
        await conn.execute("UPDATE queue_settings SET rate_per_s = 5, rate_version = 2, spread_through = NULL")
    await simulation.hear_news()
    simulation.clock.now = BACK + timedelta(seconds=1)
    await simulation.start()
    await simulation.owner.decider.follow_rates()
    made_up = [at for nominal, at in await due(simulation, job_id) if nominal < BACK]
    assert made_up == [BACK, *apart(9, 0.2, simulation.now)]


async def test_what_is_on_time_is_on_time_whatever_is_made_up_for(simulation: Simulation) -> None:
    await simulation.set_rate(0.1)
    behind = await job(simulation)
    other = await job(simulation, queue="sms")
    await restart(simulation)
    one_off = create(job_on(PARTITION), {"delaySeconds": 7}, issued_at=BACK)
    await simulation.apply(one_off)
    await simulation.run_until(live := BACK + MINUTE / 2)
    for job_id, at in ((one_off.job_id, BACK + timedelta(seconds=7)), (behind, live)):
        [run_id] = await fetch(
            simulation.pool, "SELECT run_id FROM runs WHERE job_id = %s AND due_at = %s AND due_at >= scheduled_for "
            "AND rate_version IS NULL", job_id, at,
        )  # fmt: skip
        assert simulation.hinted[run_id] - at < timedelta(seconds=0.05)
    made_up = [each for each in await due(simulation, other) if each[0] < BACK]
    assert made_up == [(at, at) for at in minutes(10)]


@pytest.mark.parametrize("policy", ["latest", "none"])
async def test_the_other_policies_are_as_without_a_rate(simulation: Simulation, policy: str) -> None:
    await simulation.set_rate(0.01)
    job_id = await job(simulation, catch_up=policy)
    await restart(simulation)
    live = BACK + MINUTE / 2
    last = [(live - MINUTE, live - MINUTE)] if policy == "latest" else []
    assert await due(simulation, job_id) == [*last, (live, live)]


async def test_a_single_occurrence_that_was_missed_waits_for_its_instant_too(simulation: Simulation) -> None:
    await simulation.set_rate(0.5)
    jobs = [await job(simulation, "35 8 * * *") for _ in range(3)]
    await restart(simulation)
    missed = [each for each in await due(simulation, *jobs) if each[0] < BACK]
    assert missed == [(FIRST + 5 * MINUTE, at) for at in apart(3, 2)]


async def test_a_run_that_was_leased_before_is_left_alone_and_takes_no_instant(simulation: Simulation) -> None:
    await simulation.set_rate(1)
    job_id = await job(simulation)
    simulation.clock.now = FIRST
    [first] = await simulation.poll()
    await simulation.lease(first, visibility_s=3600)
    await restart(simulation)
    assert await due(simulation, job_id) == [
        (FIRST, FIRST), *zip(minutes(9, FIRST + MINUTE), apart(9, 1), strict=True), (BACK + MINUTE / 2,) * 2,
    ]  # fmt: skip


async def test_what_could_not_start_at_its_instant_any_more_is_skipped_and_takes_none(simulation: Simulation) -> None:
    await simulation.set_rate(1 / 60)
    job_id = await job(simulation, start_deadline_seconds=270)
    await restart(simulation)
    made_up = [each for each in await due(simulation, job_id) if each[0] < BACK]
    # 08:35 is the first that may start at 08:39:30; at 08:40:30 that is 08:36; and so on until none is left.
    assert made_up == list(zip(minutes(5, FIRST + 5 * MINUTE), apart(5, 60), strict=True))
    assert await simulation.skipped(job_id) == {"start deadline": 5}
    start_by = await fetch(simulation.pool, "SELECT start_by - scheduled_for FROM runs WHERE job_id = %s", job_id)
    assert set(start_by) == {timedelta(seconds=270)}


@pytest.mark.parametrize("batch", [1, 2, 500])
async def test_a_run_that_waited_and_could_not_start_at_its_instant_is_skipped_in_whichever_turn(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr("streams.spreading.SPREAD_BATCH", batch)
    await simulation.set_rate(1 / 600)
    jobs = [await job(simulation, "35 8 * * *", start_deadline_seconds=700) for _ in range(3)]
    await restart(simulation)
    late = FIRST + 5 * MINUTE
    assert [each for each in await due(simulation, *jobs) if each[0] < BACK] == [(late, BACK)]
    skipped = [await simulation.skipped(each) for each in jobs]
    assert sorted(skipped, key=len) == [{}, {"start deadline": 1}, {"start deadline": 1}]


async def test_only_the_newest_are_made_up_for_beyond_the_limit(simulation: Simulation) -> None:
    await simulation.set_rate(2)
    job_id = await job(simulation, catch_up_limit=4)
    await restart(simulation)
    made_up = [each for each in await due(simulation, job_id) if each[0] < BACK]
    assert made_up == list(zip(minutes(4, FIRST + 6 * MINUTE), apart(4, 0.5), strict=True))
    assert await simulation.skipped(job_id) == {"catch-up limit": 6}


async def test_every_occurrence_is_decided_once_and_said_to_be(simulation: Simulation) -> None:
    await simulation.set_rate(0.001)
    job_id = await job(simulation)
    await restart(simulation)
    made = [event.scheduled_for for event in await simulation.events(job_id, "run_scheduled") if not event.reason]
    assert made == [FIRST, BACK + MINUTE / 2]
    spread = await simulation.events(job_id, "run_scheduled")
    assert sorted(event.scheduled_for for event in spread if event.reason == "catch-up spread") == minutes(10)
    assert simulation.owner.decider.decided_through_us() == simulation.clock.now_us()


async def test_a_job_that_moves_to_another_queue_in_the_middle_is_looked_at_anew(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.spreading.SPREAD_BATCH", 4)
    await simulation.set_rate(1)
    job_id = await job(simulation)
    await simulation.stop()
    simulation.clock.now = BACK
    await simulation.start()
    simulation.owner.tick(simulation.clock.now_us())
    await simulation.owner.decider.sort_late()
    await simulation.owner.decider.spread()
    await simulation.apply(update(job_id, {"cron": "* * * * *"}, queue="sms", catch_up="all"))
    await simulation.work()
    live = BACK + MINUTE / 2
    made_up = dict(zip(minutes(4), apart(4, 1), strict=True))
    assert dict(await due(simulation, job_id)) == made_up | {at: at for at in [*minutes(10)[4:], live]}
    assert len(simulation.owner.decider._backlog) == 0


async def test_after_a_second_downtime_the_new_backlog_comes_behind_the_old(simulation: Simulation) -> None:
    await simulation.set_rate(1 / 300)
    job_id = await job(simulation)
    await restart(simulation)
    await restart(simulation, BACK + 5 * MINUTE)
    missed = [each for each in await due(simulation, job_id) if each[0] < simulation.now]
    assert [at for _, at in missed] == apart(15, 300)
    assert all(earlier[0] < later[0] for earlier, later in pairwise(missed))


async def test_partitions_share_their_queues_rate(ledger_pool: Pool, tmp_path: Path) -> None:
    """Real transactions, side by side: wherever the backlog is, it gets the whole rate, and all together no more."""
    partitions, queue = [2, 5, 9], QueueName("acme", "mail")
    created_at = datetime.now(UTC) - timedelta(minutes=40)
    async with ledger_pool.connection() as conn:
        await set_rate(conn, *queue, 200, "operator")
    turns = await asyncio.gather(
        *(_catch_up_alone(ledger_pool, tmp_path / str(each), each, created_at) for each in partitions)
    )
    rows = await fetch(ledger_pool, "SELECT due_at FROM runs WHERE rate_version = 1 ORDER BY due_at")
    assert len(rows) == sum(turns) > 3 * 2 * 35
    assert all(later - earlier >= timedelta(milliseconds=5) for earlier, later in pairwise(rows))
    for partition in partitions:
        query = "SELECT scheduled_for FROM runs WHERE partition = %s AND rate_version = 1 ORDER BY due_at"
        nominal = await fetch(ledger_pool, query, partition)
        assert nominal == sorted(nominal)


async def _catch_up_alone(pool: Pool, folder: Path, partition: int, created_at: datetime) -> int:
    """Two jobs of the partition are caught up with; returns how many runs were made up for."""
    fence = (await take_over(pool, partition, "owner")).fence
    jobs = [job_on(partition) for _ in range(2)]
    async with owner_transaction(pool, fence) as tx:
        await apply_commands(
            tx, [create(each, {"cron": "* * * * *"}, issued_at=created_at, catch_up="all") for each in jobs]
        )
    memory = PartitionMemory(folder)
    try:
        await rebuild(memory, pool, partition)
        async with session(pool) as conn:
            now_us = to_us(datetime.now(UTC))
            found = await find_missed(conn, memory.state, [each.bytes for each in jobs], partition, now_us)
        left = sorted(missed for _, missed in found)
        made_up = 0
        while left:
            async with owner_transaction(pool, fence) as tx:
                spread = await spread_missed(tx, memory.state, found[0][0], left)
            memory.fold(spread.decided.events)
            # Not the one of each job that is still to come, and none that has come on time meanwhile.
            made_up += sum(event.due_us != event.scheduled_us for event in spread.decided.events)
            left = spread.left
    finally:
        memory.close()
    return made_up


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_happens_each_occurrence_is_decided_once_and_no_second_has_more_than_the_rate(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("streams.spreading.SPREAD_BATCH", chance.randint(3, 40))
    monkeypatch.setattr("streams.spreading.LINKS_A_JOB", chance.randint(1, 20))
    rates = [chance.choice([0.2, 1, 3.7, 20])]
    await simulation.set_rate(rates[0])
    crons = ["* * * * *", "*/2 * * * *", "*/5 * * * *"]
    jobs = {await job(simulation, cron := chance.choice(crons)): cron for _ in range(6)}
    for _ in range(6):
        down_s = chance.choice([1, 90, 600])
        await restart(simulation, simulation.now + timedelta(seconds=down_s))
        if chance.random() < 0.6:
            rates.append(chance.choice([rate for rate in (0.2, 1, 3.7, 20) if rate != rates[-1]]))
            await simulation.set_rate(rates[-1])
        await simulation.run_until(simulation.now + timedelta(seconds=chance.choice([1, 45])))
    for job_id, cron in jobs.items():
        every = timedelta(minutes=5 if "5" in cron else 2 if "2" in cron else 1)
        expected = [at for at in minutes(200) if at.minute % (every // MINUTE) == 0 and at <= simulation.now]
        assert await simulation.due(job_id) == expected
    for version, rate in enumerate(rates, 1):
        query = "SELECT due_at, scheduled_for FROM runs WHERE rate_version = %s ORDER BY due_at"
        spread = await fetch(simulation.pool, query, version)
        gaps = [later[0] - earlier[0] for earlier, later in pairwise(spread)]
        assert all(gap >= timedelta(seconds=1 / rate, microseconds=-1) for gap in gaps)
    on_time = "SELECT count(*) FROM runs WHERE rate_version IS NULL AND due_at <> scheduled_for"
    assert await fetch(simulation.pool, on_time) == [0]
