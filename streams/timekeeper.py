"""Keeping time: wakes each owner at its next instant, by the ledger's clock, and now and then besides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import count

from ledger.clock import LedgerClock
from streams.breath import Breath
from streams.partition_owner import PartitionOwner
from streams.pulse import pulse
from streams.timers import Rhythm

LONGEST_SLEEP_US = 1_000_000
# Its way through Kafka takes a hint some 2 ms, and some more on a busy machine; the API keeps back what comes early.
AHEAD_US = 10_000
# A run is made an occurrence ahead, and occurrences are a second apart at least, so there is time to gather. All owners
# look for them at the same instants and decide together: a decision alone costs a transaction, some 2 ms of CPU. Most
# come on whole seconds, as their runs do, which are hinted and leased first.
DECISION_ROUNDS = Rhythm(period_us=250_000, phase_us=200_000)
ROUND_S = 0.5
ROUNDS_A_SWEEP = 2


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

    async def go_rounds(self) -> None:
        """Let owners begin what is no timer's: leases that are over, hints that were lost. Until cancelled."""
        for number in count():
            await pulse(ROUND_S)
            is_sweep = number % ROUNDS_A_SWEEP == 0
            async for owner in self._each():
                owner.go_round(self._clock.now_us(), is_sweep=is_sweep)
            if is_sweep:
                self._looks_us.clear()
                self._wake.set()  # or it would wake by itself, a moment later

    async def _tick(self) -> int:
        next_us = self._clock.now_us() + LONGEST_SLEEP_US
        async for owner in self._each():
            partition, now_us = owner.fence.partition, self._clock.now_us()
            look_us = self._looks_us.get(partition, 0)
            if look_us <= now_us:
                due_us = owner.tick(now_us, AHEAD_US, DECISION_ROUNDS)
                latest_us = now_us + LONGEST_SLEEP_US
                look_us = self._looks_us[partition] = latest_us if due_us is None else min(due_us, latest_us)
            next_us = min(next_us, look_us)
        return next_us

    async def _each(self) -> AsyncIterator[PartitionOwner]:
        """All owners. After an outage each has much to do, so the loop may go on between them."""
        breath = Breath()
        for owner in list(self._owners()):
            if await breath.take() and owner not in self._owners():
                continue  # it was let go meanwhile
            yield owner
