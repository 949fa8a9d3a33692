"""Commands that the topic has and that do not come: they are asked for again.

An inbox sees that a record is missing when a later one comes. For the last record of a partition there is none: when
Faust drops it in a rebalance, or a seek gets lost, nobody would read it until the next command.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ledger.pulse import pulse
from streams.metrics import COMMANDS_READ_AGAIN, COMMANDS_STALLED_SECONDS
from streams.ownership import Ownership

log = logging.getLogger(__name__)

PERIOD_S = 2.0
PATIENCE_S = 4.0  # a fetch waits for half a second, so this is a standstill
LONGEST_PATIENCE_S = 60.0


async def read_what_stalls(ownership: Ownership, ends_of: Callable[[Iterable[int]], Mapping[int, int | None]]) -> None:
    """Look now and then, for ever. ends_of: the topic's end in partitions as the consumer knows it, None if not yet."""
    watch = StallWatch()
    COMMANDS_STALLED_SECONDS.set_function(lambda: watch.longest_s(time.monotonic()))
    while True:
        await pulse(PERIOD_S)
        inboxes = {owner.fence.partition: owner.inbox for owner in ownership.owners()}
        reading = {partition: inbox.next_offset for partition, inbox in inboxes.items() if not inbox.full}
        for partition in watch.stalled(reading, ends_of(reading), time.monotonic()):
            log.warning("partition %d: commands from %d on do not come, reading again", partition, reading[partition])
            COMMANDS_READ_AGAIN.inc()
            ownership.read_again(partition)


@dataclass
class _Stall:
    offset: int
    since_s: float
    patience_s: float
    until_s: float


class StallWatch:
    """Tells which partitions stand still though their topic goes on. Looks at no clock of its own."""

    def __init__(self) -> None:
        self._stalls: dict[int, _Stall] = {}

    def stalled(self, reading: Mapping[int, int], ends: Mapping[int, int | None], now_s: float) -> list[int]:
        """The partitions to read again: behind their end, or of unknown end, at one offset for longer than is patient.

        reading: the next offset of each partition that is read. Patience doubles with every time that it did not help:
        what is missing may be no record at all but a transaction's marker.
        """
        behind = {p: offset for p, offset in reading.items() if (end := ends[p]) is None or offset < end}
        self._stalls = {p: stall for p, stall in self._stalls.items() if behind.get(p) == stall.offset}
        due = []
        for partition, offset in behind.items():
            stall = self._stalls.setdefault(partition, _Stall(offset, now_s, PATIENCE_S, now_s + PATIENCE_S))
            if stall.until_s <= now_s:
                due.append(partition)
                stall.patience_s = min(2 * stall.patience_s, LONGEST_PATIENCE_S)
                stall.until_s = now_s + stall.patience_s
        return due

    def longest_s(self, now_s: float) -> float:
        """How long the partition has stood still that has done so for the longest; 0 when all of them go on."""
        return max((now_s - stall.since_s for stall in self._stalls.values()), default=0.0)
