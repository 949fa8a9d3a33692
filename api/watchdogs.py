"""What this process sees of others, for /metrics: of the shards, the history, the clocks and its own hints.

An API process tells it because it has sessions with every shard and is there whenever anybody is served: a relay or an
owner that is dead tells nothing of itself. It looks when its metrics are read, so that it costs nothing where nobody
watches; each process tells the same, so alerts take the maximum.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from prometheus_client import Gauge

from api.history_client import HistoryAway, HistoryClient, HistoryHealth
from api.metrics import ApiMetrics
from ledger.clock import LedgerClock
from ledger.connection import Connection
from ledger.outbox import outbox_lag
from ledger.shards import Shards
from ledger.watchdogs import (
    Attendance,
    Snapshot,
    Standbys,
    oldest_snapshot,
    watch_partitions,
    watch_standbys,
)
from schemas.errors import LedgerUnavailable

LOOK_TIMEOUT_S = 2.0
# Metrics are usually read every 15 s. Whoever reads them more often, or several who do, get the last look's.
LOOK_EVERY_S = 10.0


class ShardWatch(NamedTuple):
    """What one shard says. snapshot: None when nobody holds one."""

    attendance: Attendance
    outbox_rows: int
    outbox_s: float
    standbys: Standbys
    snapshot: Snapshot | None


async def watch_shard(conn: Connection) -> ShardWatch:
    """Cheap, however many runs and jobs there are."""
    return ShardWatch(
        await watch_partitions(conn),
        *await outbox_lag(conn),
        await watch_standbys(conn),
        await oldest_snapshot(conn),
    )


class Watchdogs:
    """Keeps its gauges true at the moment that they are read.

    are_hints_read: of this process. clocks: its estimates of the shards' clocks.
    """

    def __init__(
        self,
        shards: Shards,
        history: HistoryClient,
        clocks: Mapping[int, LedgerClock],
        are_hints_read: Callable[[], bool],
        metrics: ApiMetrics,
        *,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._shards, self._history, self._clocks, self._metrics = shards, history, clocks, metrics
        self._are_hints_read = are_hints_read
        self._look_every_s = look_every_s
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()

    async def look(self) -> None:
        """Set the gauges, unless that was done a moment ago. Never fails: who is away is told as away."""
        async with self._looking:
            if time.monotonic() - self._looked_at < self._look_every_s:
                return
            shards, _ = await asyncio.gather(
                self._shards.ask_each(watch_shard, within_s=LOOK_TIMEOUT_S), self._look_at_history()
            )
            self._looked_at = time.monotonic()
        self._tell(shards)
        for number, clock in self._clocks.items():
            self._metrics.clock_skew_s.labels(str(number)).set(clock.skew_s())
        self._metrics.hints_read.set(self._are_hints_read())

    def _tell(self, shards: Mapping[int, ShardWatch | LedgerUnavailable]) -> None:
        """Of a shard that is away nothing is known: its gauges must not stand where they stood."""
        for gauge in self._gauges(NOTHING):
            gauge.clear()
        for number, found in shards.items():
            self._metrics.ledger_up.labels(str(number)).set(not isinstance(found, LedgerUnavailable))
            if not isinstance(found, LedgerUnavailable):
                for gauge, value in self._gauges(found).items():
                    gauge.labels(str(number)).set(value)

    def _gauges(self, found: ShardWatch) -> dict[Gauge, float]:
        metrics, standbys = self._metrics, found.standbys
        return {
            metrics.unowned_partitions: found.attendance.unowned,
            metrics.unowned_s: found.attendance.unowned_s,
            metrics.silent_partitions: found.attendance.silent,
            metrics.silent_s: found.attendance.silent_s,
            metrics.outbox_rows: found.outbox_rows,
            metrics.outbox_lag_s: found.outbox_s,
            metrics.standbys: standbys.connected,
            metrics.synchronous_standbys: standbys.synchronous,
            metrics.sync_standby_missing: standbys.sync_missing,
            metrics.standby_replay_lag_s: standbys.replay_lag_s,
            metrics.standby_replay_lag_bytes: standbys.replay_lag_bytes,
            metrics.oldest_snapshot_s: (found.snapshot and found.snapshot.held_s) or 0,
            metrics.oldest_snapshot_transactions: found.snapshot.transactions if found.snapshot else 0,
        }

    async def _look_at_history(self) -> None:
        health: HistoryHealth | None
        try:
            health = await self._history.health(LOOK_TIMEOUT_S)
        except HistoryAway:
            health = None
        self._metrics.history_up.set(health is not None and health.kafka)
        self._metrics.history_lag_records.set(max(health.lag.values(), default=0) if health else float("nan"))


NOTHING = ShardWatch(Attendance(0, 0, 0, 0), 0, 0, Standbys(0, 0, False, 0, 0), None)
