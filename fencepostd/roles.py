"""The roles as processes: each runs until SIGTERM, then hands over what it holds."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, TypeVar

import uvloop

from api.access_log import AccessLog, to_standard_output
from api.api_role import ApiRole
from api.app import ApiSettings
from api.budgets import ShedAt
from api.issuer import IssuerSettings
from fencepostd.settings import Settings
from ledger.shards import find_shards, open_shards
from streams.abandoned_moves import end_abandoned_moves
from streams.command_gate import CommandGate
from streams.embedded_server import serve_health
from streams.faust_app import SESSION_TIMEOUT_S
from streams.history_service import HistoryRole
from streams.ledger_upkeep import JOBS_KEPT, forget_old_jobs, keep_ledger_tidy
from streams.outbox_relay import OutboxRelay
from streams.ownership import Ownership
from streams.streams_role import StreamsRole
from streams.topics import create_tenant_topics

Stop = asyncio.Event
Works = list[Coroutine[Any, Any, None]]
T = TypeVar("T")

ACCESS_LOG = AccessLog("failures", to_standard_output)
API_POOL_SIZE = 12  # sessions with each shard, of which api/budgets.py gives reads and creates a share
# New objects, younger and older collections, before the next collection of each age. What waits is some sixty objects a
# poll; by Python's own thresholds a full collection went through all of them every few seconds, which was half of what
# thousands of waiting polls cost. Of what only a collection frees some 10 MB may pile up.
GC_THRESHOLDS = (50_000, 10, 10)


async def run_streams(settings: Settings, name: str, stop: Stop) -> None:
    """Own partitions."""
    ownership = Ownership(name, SESSION_TIMEOUT_S)
    role = StreamsRole(
        name, settings.dsn, settings.bootstrap, settings.topics, settings.codec(), settings.state,
        security=settings.security,
    )  # fmt: skip

    def health() -> dict[str, Any]:
        return {"partitions": ownership.partitions()}

    serving = serve_health(settings.host, settings.port, health, ownership.is_settled, stop)
    await _together(stop, role.run(stop, ownership), serving)


async def run_relay(settings: Settings, stop: Stop, jobs_kept: timedelta = JOBS_KEPT) -> None:
    """Publish each shard's outbox, and keep the shard tidy beside it. jobs_kept: for how long, once they are over.

    It also ends what a mover of partitions has left half-way.
    """
    relays: dict[int, OutboxRelay] = {}

    def health() -> dict[str, Any]:
        return {"active": [shard for shard, relay in relays.items() if relay.active.is_set()]}

    def is_ready() -> bool:
        return bool(relays) and all(relay.in_place.is_set() for relay in relays.values())

    def of_shard(shard: int, dsn: str) -> Works:
        relays[shard] = OutboxRelay(
            dsn, settings.bootstrap, settings.topics, settings.codec(), shard=str(shard),
            kafka_config=settings.security.librdkafka(),
        )  # fmt: skip
        return [relays[shard].run(stop), keep_ledger_tidy(dsn, stop), forget_old_jobs(dsn, stop, jobs_kept)]

    async def relay_all() -> None:
        """Of the shards that there are, and of those that are added."""
        tasks: list[asyncio.Task[None]] = []
        async with aclosing(find_shards(settings.dsn)) as found:
            while (dsns := await _unless(stop, anext(found))) is not None:
                works = [work for shard, dsn in dsns.items() for work in of_shard(shard, dsn)]
                tasks += [asyncio.create_task(_stopping(stop, work)) for work in works]
        await _all(tasks)

    moves = end_abandoned_moves(settings.dsn, stop)
    await _together(stop, relay_all(), moves, serve_health(settings.host, settings.port, health, is_ready, stop))


async def run_gate(settings: Settings, tenants: Sequence[str], stop: Stop) -> None:
    """Let tenants' own commands through. It has no business with the ledger."""
    kafka_config = settings.security.librdkafka()
    await asyncio.to_thread(
        create_tenant_topics, settings.bootstrap, settings.topics, tenants, kafka_config=kafka_config
    )
    gate = CommandGate(settings.bootstrap, settings.topics, tenants, settings.codec(), kafka_config=kafka_config)
    serving = serve_health(settings.host, settings.port, lambda: {"tenants": list(tenants)}, gate.is_open.is_set, stop)
    await _together(stop, gate.run(stop), serving)


async def run_history(settings: Settings, keep_days: int, stop: Stop) -> None:
    """Project run events and answer SQL. keep_days: how far back the history goes."""
    settings.state.mkdir(parents=True, exist_ok=True)
    path = settings.state / "history.duckdb"
    role = HistoryRole(
        settings.bootstrap, settings.topics, settings.codec(), path, settings.host, settings.port,
        keep_days=keep_days, kafka_config=settings.security.librdkafka(),
    )  # fmt: skip
    await role.run(stop)


async def run_api(
    settings: Settings,
    history_url: str,
    stop: Stop,
    shed_at: ShedAt,
    notice_s: float = 0.0,
    access_log: AccessLog = ACCESS_LOG,
    issuer: IssuerSettings | None = None,
) -> None:
    """Serve HTTP. notice_s: for how long after `stop` too, so that balancers have the time to notice."""
    api = ApiSettings(
        bootstrap=settings.bootstrap,
        commands_topic=settings.topics.commands,
        ready_topic=settings.topics.ready,
        codec=settings.codec(),
        history_url=history_url,
        shed_at=shed_at,
        notice_s=notice_s,
        access_log=access_log,
        issuer=issuer,
        kafka_config=settings.security.librdkafka(),
    )
    async with open_shards(settings.dsn, size=API_POOL_SIZE, name="fencepost-api") as shards:
        await ApiRole(shards, settings.host, settings.port, api).run(stop)


async def _together(stop: Stop, *works: Coroutine[Any, Any, None]) -> None:
    """Run all until `stop`; when one fails the others are stopped and the failure is raised."""
    await _all([asyncio.create_task(_stopping(stop, work)) for work in works])


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Until they have ended. Raises what one of them has raised."""
    for task in tasks:
        await asyncio.wait({task})
    for task in tasks:
        task.result()


async def _unless(stop: Stop, work: Awaitable[T]) -> T | None:
    """What comes of the work, or None when `stop` comes first."""
    working, stopping = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.wait({working})
    return None


async def _stopping(stop: Stop, work: Awaitable[None]) -> None:
    try:
        await work
    finally:
        stop.set()


def run_until_signalled(main: Callable[[Stop], Coroutine[Any, Any, None]]) -> None:
    """Run a role in a loop of its own until SIGTERM or SIGINT, logging to standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for chatty in ("faust", "mode", "aiokafka", "httpx", "psycopg.pool"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # A waiting poll is an open file, and a partition's timing state is several: the usual 1,024 are soon used up.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    gc.freeze()  # what was imported stays
    gc.set_threshold(*GC_THRESHOLDS)

    async def signalled() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await main(stop)

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # of Faust's thread, too, whose loop costs as much as ours
    with asyncio.Runner() as runner:
        runner.run(signalled())
