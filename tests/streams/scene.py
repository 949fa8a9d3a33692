"""One job under a simulated owner, for the public cases about time and policies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tests.streams.commands import create, job_on
from tests.streams.simulated_owner import PARTITION, Simulation

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


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
