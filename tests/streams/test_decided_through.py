"""An owner with nothing to decide says so, at little cost, and learns by it whether it is still the owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from ledger.connection import Pool
from ledger.fence import OwnerTransaction, take_over
from schemas.errors import EpochLost
from streams.decided_through import say_decided_through
from streams.timers import to_us
from tests.streams.commands import create, job_on
from tests.streams.ledger_dump import fetch
from tests.streams.simulated_owner import PARTITION, Simulation, simulating

START = datetime(2026, 3, 1, 9, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest_asyncio.fixture
async def simulation(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Simulation]:
    async with simulating(ledger_pool, tmp_path, START, monkeypatch) as simulation:
        yield simulation


async def decided_through(simulation: Simulation) -> datetime:
    [through] = await fetch(simulation.pool, "SELECT decided_through FROM partitions WHERE partition = %s", PARTITION)
    return through  # type: ignore[no-any-return]


async def say(simulation: Simulation) -> None:
    await say_decided_through(simulation.pool, lambda: [simulation.owner])


async def test_an_idle_partition_is_decided_through_now(simulation: Simulation) -> None:
    for seconds in (10, 12):
        await simulation.run_until(START + seconds * SECOND)
        await say(simulation)
        assert await decided_through(simulation) == START + seconds * SECOND


async def test_an_idle_partition_is_decided_through_now_without_being_looked_at(simulation: Simulation) -> None:
    await simulation.run_until(START + 10 * SECOND)
    simulation.clock.now = START + 12 * SECOND
    assert simulation.owner.decider.decided_through_us() == simulation.clock.now_us()


async def test_what_has_come_since_it_was_looked_at_is_not_taken_for_decided(simulation: Simulation) -> None:
    await simulation.apply(create(job_on(PARTITION), {"everySeconds": 60}, issued_at=START))
    await simulation.run_until(START + 59 * SECOND)
    simulation.clock.now = START + 61 * SECOND
    assert simulation.owner.decider.decided_through_us() == to_us(START + 59 * SECOND)


async def test_a_partition_that_nobody_looks_at_any_more_is_not_decided_for_ever(simulation: Simulation) -> None:
    await simulation.run_until(START + 10 * SECOND)
    simulation.clock.now = START + 600 * SECOND
    assert simulation.owner.decider.decided_through_us() == to_us(START + 10 * SECOND)


async def test_what_was_said_a_moment_ago_is_not_said_again(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    await simulation.run_until(START + 10 * SECOND)
    await say(simulation)
    monkeypatch.setattr("streams.decided_through.say_decided", _must_not_be_called)
    await simulation.run_until(START + 10 * SECOND + SECOND / 2)
    await say(simulation)


def _must_not_be_called(*_: object) -> None:
    raise AssertionError("there was nothing to say, or to find out")


async def test_nothing_is_said_while_an_occurrence_waits_for_its_decision(simulation: Simulation) -> None:
    await simulation.apply(create(job_on(PARTITION), {"everySeconds": 60}, issued_at=START))
    simulation.clock.now = START + 61 * SECOND
    simulation.owner.tick(simulation.clock.now_us())
    await say(simulation)
    assert await decided_through(simulation) == START
    await simulation.work()
    await say(simulation)
    assert await decided_through(simulation) == START + 61 * SECOND


async def test_what_was_decided_is_said_though_more_has_come_meanwhile(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first_s in (60, 65):
        await simulation.apply(create(job_on(PARTITION), {"everySeconds": first_s}, issued_at=START))
    await simulation.run_until(START + 60 * SECOND - SECOND / 2)
    simulation.clock.now = START + 61 * SECOND
    simulation.owner.tick(simulation.clock.now_us())
    open_transaction = simulation.transaction

    @asynccontextmanager
    async def slow_transaction() -> AsyncIterator[OwnerTransaction]:
        async with open_transaction() as tx:
            yield tx
        simulation.clock.now = START + 66 * SECOND
        simulation.owner.tick(simulation.clock.now_us())

    monkeypatch.setattr(simulation, "transaction", slow_transaction)
    await simulation.owner.decider.decide()
    await say(simulation)
    assert await decided_through(simulation) == START + 61 * SECOND


async def test_an_owner_whose_word_is_refused_finds_out_that_its_epoch_is_over(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = asyncio.Event()
    monkeypatch.setattr(simulation.owner, "check", checked.set)
    await take_over(simulation.pool, PARTITION, "another")
    await simulation.run_until(START + 10 * SECOND)
    await say(simulation)
    assert checked.is_set()
    assert await decided_through(simulation) == START
    with pytest.raises(EpochLost):
        await simulation.owner._prove()


async def test_an_owner_that_was_let_go_meanwhile_is_left_alone(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation.owner, "check", _must_not_be_called)
    await take_over(simulation.pool, PARTITION, "another")
    await simulation.run_until(START + 10 * SECOND)
    answers = iter([[simulation.owner], []])
    await say_decided_through(simulation.pool, lambda: next(answers))


async def test_a_release_says_what_was_decided_until_then(simulation: Simulation) -> None:
    await simulation.run_until(START + 10 * SECOND)
    await simulation.owner.close(release=True)
    assert await decided_through(simulation) == START + 10 * SECOND
    await simulation.start()
