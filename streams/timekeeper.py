"""Keeping time: wakes each owner at its next instant, by the ledger's clock, and now and then besides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from ledger.clock import LedgerClock
from ledger.pulse import until_pulse_s
from streams.breath import Breath
from streams.partition_owner import PartitionOwner
from streams.timers import Rhythm

# Or a little longer, until the pulse of what else a process does now and then. A look at an owner that knows of nothing
# brings the next half minute into its memory; whoever hears of something sooner has it looked at, and so has a clock
# that was set.
LONGEST_SLEEP_US = 10_000_000
# Its way through Kafka takes a hint some 2 ms, and some more on a busy machine; the API keeps back what comes early.
AHEAD_US = 10_000
# A run is made an occurrence ahead, and occurrences are a second apart at least, so there is time to gather. All owners
# look for them at the same instants and decide together: a decision alone costs a transaction, some 2 ms of CPU. Most
# come on whole seconds, as their runs do, which are hinted and leased first.
DECISION_ROUNDS = Rhythm(period_us=250_000, phase_us=200_000)
# Leases that are over together end together, and so on; where decisions are due too, one wake-up is for both.
EXPIRY_ROUNDS = Rhythm(period_us=500_000, phase_us=450_000)
# What nobody leases is asked about each second, of one partition after the other: of a flood in all of them at the same
# instant it would be a burst that everybody else waits behind.
SWEEP_PERIOD_US = 1_000_000
GOLDEN_STEP_US = 618_034  # of the period: however many partitions there are, none come close together


def sweep_rounds(partition: int) -> Rhythm:
    """When a partition is asked about."""
    return Rhythm(SWEEP_PERIOD_US, partition * GOLDEN_STEP_US % SWEEP_PERIOD_US)


class Timekeeper:
    """One loop for all owners on the clock's shard: a timer for each would wake an idle process many times a second."""

    def __init__(self, clock: LedgerClock, owners: Callable[[], Iterable[PartitionOwner]]) -> None:
        self._clock, self._owners = clock, owners
        self._wake = asyncio.Event()
        self._looks_us: dict[int, int] = {}  # when to look at each partition; at once if it is not in it

    def wake(self, partition: int) -> None:
        """A timer of the partition was added: it may be sooner than what we sleep for."""
        self._looks_us.pop(partition, None)
        self._wake.set()

    def wake_all(self) -> None:
        """What all go by has changed: the ledger's clock was set, or a queue's rate."""
        self._looks_us.clear()
        self._wake.set()

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            self._wake.clear()
            next_us = await self._tick()
            delay_us = next_us - self._clock.now_us()
            if delay_us > 0:
                timer = asyncio.get_running_loop().call_later(delay_us / 1e6, self._wake.set)
                await self._wake.wait()
                timer.cancel()
            else:
                await asyncio.sleep(0)

    async def _tick(self) -> int:
        """Look at all whose instant has come; returns the next one's."""
        next_us = pulse_us = self._clock.now_us() + round(1e6 * until_pulse_s(LONGEST_SLEEP_US / 1e6))
        async for owner in self._each():
            partition, now_us = owner.fence.partition, self._clock.now_us()
            look_us = self._looks_us.get(partition, 0)
            if look_us <= now_us:
                due_us = owner.tick(now_us, AHEAD_US, DECISION_ROUNDS)
                round_us = owner.go_round(now_us, EXPIRY_ROUNDS, sweep_rounds(partition))
                soon = [
                    at_us for at_us in (due_us, round_us) if at_us is not None and at_us - now_us < LONGEST_SLEEP_US
                ]
                look_us = self._looks_us[partition] = min(soon, default=pulse_us)
            next_us = min(next_us, look_us)
        return next_us

    async def _each(self) -> AsyncIterator[PartitionOwner]:
        """All owners. After an outage each has much to do, so the loop may go on between them."""
        breath = Breath()
        for owner in list(self._owners()):
            if await breath.take() and owner not in self._owners():
                continue  # it was let go meanwhile
            yield owner
