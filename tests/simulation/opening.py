"""How an owner of the simulation opens: by the product's `streams/opening.py: Opening`, under virtual time.

Where it waits, and how it reads the topic and the ledger, is told again; what it makes of that is the product's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ledger.fence import Fence
from schemas.errors import KafkaUnavailable
from streams.missed_events import SILENCE_S, Fold
from streams.opening import PUBLISHED_AGAIN_S, Opening
from streams.timers import Position
from tests.simulation.kafka import Broker, event_of
from tests.simulation.scheduler import SECOND_US, sleep

if TYPE_CHECKING:
    from tests.simulation.owner import Owner

LOOK_US = SECOND_US // 20
READ_AT_ONCE = 5


class SimulatedOpening(Opening):
    """Of one owner, once."""

    def __init__(self, owner: Owner, memory: Any, pool: Any, fence: Fence) -> None:
        self._owner = owner
        super().__init__(memory, NoFolder(), fence, Around(pool, owner.broker, owner.without), None)  # type: ignore[arg-type]

    async def _follow_zone_rules(self) -> list[UUID]:
        """All processes have one tzdata."""
        return []

    async def _has_our_rules(self, _: Position) -> bool:
        return True

    async def _are_published(self) -> bool:
        return self._owner.without == "wait for the relay" or await super()._are_published()

    async def _pause(self) -> None:
        await sleep(int(PUBLISHED_AGAIN_S * SECOND_US))

    async def _rebuild(self, offset: int) -> int:
        await self._owner.rebuild()
        return offset


class NoFolder:
    """Where a process notes which states it has: here nobody asks."""

    def __truediv__(self, _: str) -> NoFolder:
        return self

    def write_text(self, _: str) -> None:
        pass

    def unlink(self, *, missing_ok: bool) -> None:
        pass


@dataclass
class Around:
    """What an opening needs of the process around it."""

    pool: Any
    broker: Broker
    without: str | None

    async def end_offset(self, partition: int) -> int:
        """Raises KafkaUnavailable."""
        await sleep(self.broker.lag_us())
        if self.broker.down:
            raise KafkaUnavailable("the broker is down")
        return len(self.broker.events[partition])

    async def missed_events(self, partition: int, offset: int, end: int, limit: int, fold: Fold) -> int | None:
        """As `streams/missed_events.py: MissedEvents`: in order, and not after a silence."""
        del limit
        silent_us = 0
        while offset < end:
            await sleep(self.broker.lag_us())
            if self.broker.down:
                await sleep(LOOK_US)
                silent_us += LOOK_US
                if silent_us > SILENCE_S * SECOND_US:
                    return None
                continue
            told = self.broker.events[partition][offset : min(offset + READ_AT_ONCE, end)]
            silent_us, offset = 0, offset + len(told)
            fold([event_of(each) for each in told[self.without == "every missed event" :]], offset)
        return offset
