"""Keeping time: each owner is looked at when its own time has come, and all of them decide at the same instants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import cast

import pytest
import pytest_asyncio

from ledger.clock import LedgerClock, monotonic_us
from ledger.connection import Pool
from ledger.fence import Fence
from streams.partition_owner import PartitionOwner
from streams.timekeeper import (
    DECISION_ROUNDS,
    EXPIRY_ROUNDS,
    LONGEST_SLEEP_US,
    SWEEP_PERIOD_US,
    Timekeeper,
    sweep_rounds,
)
from streams.timers import EVERY_INSTANT, Rhythm
from tests.streams.waiting import until


class Sleeper:
    """In an owner's place: notes when it is looked at, and always wants to be so much later.

    round_us: how much later it has something to begin.
    """

    def __init__(self, partition: int, pause_us: int, *, round_us: int | None = None) -> None:
        self.fence, self.looks_us = Fence(partition, 1, "sleeper"), list[int]()
        self.pause_us, self.round_us, self.rounds = pause_us, round_us, [EVERY_INSTANT]

    def tick(self, now_us: int, _ahead_us: int, rounds: Rhythm) -> int:
        self.looks_us.append(now_us)
        self.rounds = [rounds]
        return now_us + self.pause_us

    def go_round(self, now_us: int, expiries: Rhythm, sweeps: Rhythm) -> int | None:
        self.rounds += [expiries, sweeps]
        return None if self.round_us is None else now_us + self.round_us


@pytest_asyncio.fixture
async def clock(ledger_pool: Pool) -> LedgerClock:
    clock = LedgerClock()
    await clock.sample(ledger_pool)
    return clock


@asynccontextmanager
async def keeping_time(clock: LedgerClock, sleepers: Sequence[Sleeper]) -> AsyncIterator[Timekeeper]:
    timekeeper = Timekeeper(clock, lambda: cast(Sequence[PartitionOwner], sleepers))
    running = asyncio.create_task(timekeeper.run())
    yield timekeeper
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_an_owner_is_looked_at_when_its_time_has_come_and_not_for_another_one(clock: LedgerClock) -> None:
    quick, slow = Sleeper(1, 20_000), Sleeper(2, 900_000)
    async with keeping_time(clock, [quick, slow]):
        await until(lambda: len(slow.looks_us) == 3)
    assert len(quick.looks_us) > 10
    for sleeper in (quick, slow):
        pauses = [after - before for before, after in zip(sleeper.looks_us, sleeper.looks_us[1:], strict=False)]
        assert min(pauses) >= sleeper.pause_us


async def test_an_owner_that_is_told_of_a_timer_is_looked_at_before_its_time_and_alone(clock: LedgerClock) -> None:
    other, told = Sleeper(1, 900_000), Sleeper(2, 900_000)
    async with keeping_time(clock, [other, told]) as timekeeper:
        await until(lambda: len(other.looks_us) == 1)
        timekeeper.wake(2)
        await until(lambda: len(other.looks_us) == 2)
    assert told.looks_us[1] < other.looks_us[1]


async def test_owners_that_know_of_nothing_are_looked_at_together_every_ten_seconds(clock: LedgerClock) -> None:
    idle, told = Sleeper(1, 3_600_000_000), Sleeper(2, 3_600_000_000)
    async with keeping_time(clock, [idle, told]) as timekeeper:
        await until(lambda: len(idle.looks_us) == 1)
        timekeeper.wake(2)
        await until(lambda: len(idle.looks_us) == 3)
    assert idle.looks_us[2] - idle.looks_us[1] >= 0.9 * LONGEST_SLEEP_US
    assert len(told.looks_us) == 4
    assert idle.rounds == [DECISION_ROUNDS, EXPIRY_ROUNDS, sweep_rounds(1)]


@pytest.mark.parametrize("partitions", [4, 16, 256])
def test_partitions_are_swept_one_after_the_other_over_a_period(partitions: int) -> None:
    begins = sorted(sweep_rounds(partition).next_us(0) for partition in range(partitions))
    pauses = [after - before for before, after in pairwise([*begins, begins[0] + SWEEP_PERIOD_US])]
    assert 0.3 * SWEEP_PERIOD_US / partitions < min(pauses)
    assert max(pauses) < 2 * SWEEP_PERIOD_US / partitions


async def test_all_owners_are_looked_at_once_the_ledger_s_clock_was_set(clock: LedgerClock) -> None:
    idle = [Sleeper(1, 3_600_000_000), Sleeper(2, 3_600_000_000)]
    async with keeping_time(clock, idle) as timekeeper:
        clock.on_set = timekeeper.wake_all
        await until(lambda: all(len(sleeper.looks_us) == 1 for sleeper in idle))
        set_at_us = clock.now_us()
        clock.learn(0, set_at_us - monotonic_us() + 60_000_000)
        await until(lambda: all(len(sleeper.looks_us) == 2 for sleeper in idle))
    assert all(60_000_000 <= sleeper.looks_us[1] - set_at_us < 60_000_000 + LONGEST_SLEEP_US / 2 for sleeper in idle)


async def test_an_owner_is_looked_at_when_it_has_something_to_begin(clock: LedgerClock) -> None:
    sleeper = Sleeper(1, 3_600_000_000, round_us=50_000)
    async with keeping_time(clock, [sleeper]):
        await until(lambda: len(sleeper.looks_us) == 4)
    assert sleeper.looks_us[-1] - sleeper.looks_us[0] < LONGEST_SLEEP_US


def test_a_rhythm_knows_its_last_and_its_next_instant() -> None:
    rhythm = Rhythm(period_us=250, phase_us=200)
    assert [rhythm.latest_us(at) for at in (200, 201, 449, 450, 1_199)] == [200, 200, 200, 450, 950]
    assert [rhythm.next_us(at) for at in (200, 201, 449, 450, 1_000)] == [200, 450, 450, 450, 1_200]
    assert (EVERY_INSTANT.latest_us(7), EVERY_INSTANT.next_us(7)) == (7, 7)
