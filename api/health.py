"""/healthz, /readyz and /metrics: for machines that watch, without a token.

Ready means that runs can be leased and finished, which takes the ledger alone: with Kafka or the history away the API
goes on serving workers, and taking it out of a balancer would turn a small failure into a large one.
"""

from __future__ import annotations

import asyncio
import time

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from api.command_producer import CommandProducer
from api.history_client import HistoryClient
from api.metrics import ApiMetrics
from api.ready_index import ReadyIndex
from ledger.connection import Pool, ledger_now, session
from schemas.errors import LedgerUnavailable
from schemas.http import Readiness, encode

PROBE_TIMEOUT_S = 1.0
PROBE_EVERY_S = 1.0


class Health:
    """Probes at most once a second, however many ask."""

    def __init__(
        self, pool: Pool, producer: CommandProducer, history: HistoryClient, index: ReadyIndex, metrics: ApiMetrics
    ) -> None:
        self._pool = pool
        self._producer = producer
        self._history = history
        self._index = index
        self._metrics = metrics
        self._probing: asyncio.Task[Readiness] | None = None
        self._probed_at = 0.0

    async def healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(self, _: Request) -> Response:
        readiness = await asyncio.shield(self._probe())
        status = 200 if readiness.ledger == "ok" else 503
        return Response(encode(readiness), status, media_type="application/json")

    async def metrics(self, _: Request) -> Response:
        self._metrics.ready_index_runs.set(len(self._index))
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _probe(self) -> asyncio.Task[Readiness]:
        now = time.monotonic()
        if self._probing is None or (self._probing.done() and now - self._probed_at >= PROBE_EVERY_S):
            self._probing, self._probed_at = asyncio.create_task(self._look()), now
        return self._probing

    async def _look(self) -> Readiness:
        ledger, kafka, history = await asyncio.gather(
            self._ledger_answers(),
            asyncio.to_thread(self._producer.reachable, PROBE_TIMEOUT_S),
            self._history.reachable(PROBE_TIMEOUT_S),
        )
        return Readiness(*("ok" if up else "away" for up in (ledger, kafka, history)))

    async def _ledger_answers(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S), session(self._pool) as conn:
                await ledger_now(conn)
        except (TimeoutError, LedgerUnavailable):
            return False
        return True
