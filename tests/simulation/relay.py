"""The relay of a shard, as `streams/outbox_relay.py`: its rows become run events, and go once the broker has them."""

from __future__ import annotations

from typing import Any

from ledger.outbox import DELETE_FROM_OUTBOX, READ_OUTBOX
from schemas.errors import TryAgain
from tests.simulation.api_process import History
from tests.simulation.kafka import Broker
from tests.simulation.postgres import Pool, Shard
from tests.simulation.scheduler import SECOND_US, Process, Signal, sleep

LIMIT = 50
GATHER_US = 20_000  # the product does not wait; here each look costs a simulation as much as a lease


class Relay:
    """One a shard at a time; a new one begins where the outbox is, so that what it published last may come again."""

    def __init__(self, shard: Shard, broker: Broker, history: History, without: str | None) -> None:
        self.process = Process(f"relay {shard.number}")
        self._broker, self._history, self._without = broker, history, without
        self._scheduler = broker.scheduler
        self._pool: Any = Pool(shard, self.process)
        self._written = Signal(self._scheduler)
        self._written.set()
        shard.wrote_outbox = self._written.set
        self._scheduler.spawn(self._relay(), self.process)

    async def _relay(self) -> None:
        while True:
            await self._written.wait()
            await sleep(GATHER_US)
            try:
                while await self._relay_some() == LIMIT:
                    pass
            except TryAgain:
                await sleep(SECOND_US // 4)
                self._written.set()

    async def _relay_some(self) -> int:
        async with self._pool.connection() as conn:
            told = await (await conn.execute(READ_OUTBOX, (LIMIT,))).fetchall()
            if not told:
                return 0
            rows = ([each.row for each in told],)
            if self._without == "publish first":
                await conn.execute(DELETE_FROM_OUTBOX, rows)
            await sleep(self._broker.lag_us())
            self._broker.publish(told)
            self._history.fold(told)
            if self._without != "publish first":
                await conn.execute(DELETE_FROM_OUTBOX, rows)
            return len(told)
