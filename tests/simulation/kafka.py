"""A model of the broker: commands and run events are kept and may come late or twice; hints may be lost, too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import Struct

from schemas.codec import Record
from schemas.commands import LANES, Command, command_record
from schemas.errors import KafkaUnavailable
from schemas.events import Event
from streams.rejections import RawCommand, Rejection
from tests.simulation.rows import Told
from tests.simulation.scheduler import Scheduler


class Hint(Struct):
    """A record of the ready topic. due_us: None for at once."""

    partition: int
    epoch: int
    tenant: str
    queue: str
    lane: str
    run_ids: list[bytes]
    due_us: int | None


class Wire:
    """Stands for the codec: a record's bytes are the number under which it is kept here."""

    def __init__(self) -> None:
        self._records: list[tuple[str, Record]] = []

    def encode(self, command: Command) -> bytes:
        self._records.append((type(command).__name__, command_record(command)))
        return (len(self._records) - 1).to_bytes(8, "big")

    def decode(self, wire: bytes) -> tuple[str, Record]:
        name, record = self._records[int.from_bytes(wire, "big")]
        return name, dict(record)


class Broker:
    """hint_loss: how many hints of a hundred are lost just now. lag: what a record's way takes, times this."""

    def __init__(self, scheduler: Scheduler, partitions: int) -> None:
        self.scheduler = scheduler
        self.wire = Wire()
        self.commands: list[list[RawCommand]] = [[] for _ in range(partitions)]
        self.events: list[list[Told]] = [[] for _ in range(partitions)]
        self.rejected: list[Rejection] = []
        self.hears_hints: list[Callable[[Hint], None]] = []
        self.hears_commands: list[Callable[[int], None]] = []
        self.hears_events: list[Callable[[int], None]] = []
        self.down = False
        self.hint_loss = 0.0
        self.slow = 1

    def lag_us(self) -> int:
        return int(self.scheduler.random.random() * 6_000 + 500) * self.slow

    def produce(self, partition: int, command: Command) -> None:
        log = self.commands[partition]
        log.append(RawCommand(partition, len(log), None, self.wire.encode(command)))
        for hear in list(self.hears_commands):
            hear(partition)

    def publish(self, events: list[Told]) -> None:
        """Raises KafkaUnavailable."""
        if self.down:
            raise KafkaUnavailable("the broker is down")
        for told in events:
            self.events[told.partition].append(told)
        for partition in dict.fromkeys(told.partition for told in events):
            for hear in list(self.hears_events):
                hear(partition)

    def hint(self, hint: Hint) -> None:
        """To each API by itself: one may hear what another does not."""
        for hear in list(self.hears_hints):
            random = self.scheduler.random.random()
            if self.down or random < self.hint_loss:
                continue
            copies = 2 if random > 0.97 else 1
            for _ in range(copies):
                self.scheduler.call_at(self.scheduler.now_us + self.lag_us(), lambda hear=hear: hear(hint))  # type: ignore[misc]


class Returns:
    """What `streams/rejections.py: CommandReturns` does."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def reject(self, rejections: list[Rejection]) -> None:
        if rejections and self._broker.down:
            raise KafkaUnavailable("the broker is down")
        self._broker.rejected += rejections

    async def forward(self, strays: list[Any]) -> None:
        raise AssertionError(f"no command goes astray here: {strays}")


def event_of(told: Told) -> Event:
    """What an owner takes of an event, as `streams/event_feed.py: OwnerEvents` reads it."""
    return Event(
        told.event, told.job_id.bytes, bytes_of(told.run_id), told.version, told.tenant, told.queue, LANES[told.lane],
        instant_us(told.scheduled_for), instant_us(told.due_at), instant_us(told.lease_expires_at), told.definition,
        told.gated,
    )  # fmt: skip


def instant_us(at: datetime | None) -> int | None:
    return None if at is None else (at - _EPOCH) // _TICK


def bytes_of(run_id: UUID | None) -> bytes | None:
    return None if run_id is None else run_id.bytes


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_TICK = datetime.resolution
