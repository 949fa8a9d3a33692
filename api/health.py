"""/healthz, /readyz and /metrics: for machines that watch, without a token.

Ready means that runs can be leased and finished, which takes the ledger alone, and of its shards home, which knows the
tokens: with Kafka, the history or another shard away the API goes on serving workers, and taking it out of a balancer
would turn a small failure into a large one.

A process that has just begun is not ready before it hears hints, or those who come from one that is replaced would
find their runs late; nor one that is about to stop, so that nobody is sent to it any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from api.command_producer import CommandProducer
from api.endpoints import Text, Unavailable
from api.history_client import HistoryClient
from api.metrics import ApiMetrics
from api.ready_index import ReadyIndex
from api.watchdogs import Watchdogs
from ledger.connection import Pool, ledger_now, session
from ledger.shard_map import HOME
from ledger.shards import Shards
from schemas.errors import LedgerUnavailable
from schemas.http import Readiness

PROBE_TIMEOUT_S = 1.0
PROBE_EVERY_S = 1.0
AWAY, READY = "away", "ready"


class Health:
    """Probes at most once a second, however many ask."""

    def __init__(
        self,
        shards: Shards,
        producer: CommandProducer,
        history: HistoryClient,
        index: ReadyIndex,
        metrics: ApiMetrics,
        watchdogs: Watchdogs,
        *,
        hears_hints: Callable[[], bool],
        hints_within_s: float,
        is_leaving: Callable[[], bool],
    ) -> None:
        """hints_within_s: for how long it is not ready without hints; then workers are served all the same."""
        self._shards = shards
        self._producer = producer
        self._history = history
        self._index = index
        self._metrics = metrics
        self._watchdogs = watchdogs
        self._hears_hints, self._is_leaving = hears_hints, is_leaving
        self._hints_until = time.monotonic() + hints_within_s
        self._probing: asyncio.Task[Readiness] | None = None
        self._probed_at = 0.0

    async def healthz(self) -> Text:
        """Say that the process lives."""
        return Text(b"ok\n")

    async def readyz(self) -> Readiness | Unavailable[Readiness]:
        """Say whether the process can serve workers, and which of its parts are away."""
        readiness = msgspec.structs.replace(await asyncio.shield(self._probe()), state=self._state())
        is_ready = readiness.ledger != AWAY and readiness.state == READY
        return readiness if is_ready else Unavailable(readiness)

    async def metrics(self) -> Text:
        """Tell what is measured, in Prometheus's text format."""
        await self._watchdogs.look()
        self._metrics.ready_index_runs.set(len(self._index))
        return Text(self._metrics.text(), headers=[(b"content-type", CONTENT_TYPE_PLAIN_0_0_4.encode())])

    def _state(self) -> str:
        if self._is_leaving():
            return "leaving"
        return READY if self._hears_hints() or time.monotonic() > self._hints_until else "starting"

    def _probe(self) -> asyncio.Task[Readiness]:
        now = time.monotonic()
        if self._probing is None or (self._probing.done() and now - self._probed_at >= PROBE_EVERY_S):
            self._probing, self._probed_at = asyncio.create_task(self._look()), now
        return self._probing

    async def _look(self) -> Readiness:
        ledger, kafka, history = await asyncio.gather(
            self._look_at_shards(),
            asyncio.to_thread(self._producer.reachable, PROBE_TIMEOUT_S),
            self._history.reachable(PROBE_TIMEOUT_S),
        )
        return Readiness(self._state(), ledger, *("ok" if up else AWAY for up in (kafka, history)))

    async def _look_at_shards(self) -> str:
        pools = self._shards.pools
        answers = await asyncio.gather(*map(_answers, pools.values()))
        away = [number for number, up in zip(pools, answers, strict=True) if not up]
        if HOME in away:
            return AWAY
        return f"{AWAY}: shard {', '.join(map(str, away))}" if away else "ok"


async def _answers(pool: Pool) -> bool:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S), session(pool) as conn:
            await ledger_now(conn)
    except (TimeoutError, LedgerUnavailable):
        return False
    return True
