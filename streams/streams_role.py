"""The streams role: partition owners, from the first assignment to the last release."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.connection import ledger_pool
from ledger.partitions import await_partition_count
from schemas.codec import Codec
from schemas.errors import KafkaUnavailable
from streams.decided_through import keep_decided_through
from streams.event_feed import EventFeed
from streams.faust_app import SESSION_TIMEOUT_S, OwnersApp, create_owners_app
from streams.ledger_clock import LedgerClock
from streams.ownership import Ownership
from streams.queue_rates import QueueRates, keep_rates
from streams.ready_hints import ReadyHints
from streams.rejections import CommandReturns
from streams.stalled_reads import read_what_stalls
from streams.surroundings import Surroundings
from streams.timekeeper import Timekeeper, keep_clock
from streams.topics import Topics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamsRole:
    """A process that owns partitions. name: tells it from its peers, in the ledger and in logs."""

    name: str
    dsn: str
    bootstrap: str
    topics: Topics
    codec: Codec
    state_folder: Path
    pool_size: int = 8

    async def run(self, stop: asyncio.Event, ownership: Ownership | None = None) -> None:
        """Own what the group assigns until `stop` is set, then hand it over. Raises what an owner cannot survive."""
        ownership = ownership or Ownership(self.name, SESSION_TIMEOUT_S)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def crash(error: Exception) -> None:
            if not failed.done():
                failed.set_exception(error)

        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(ledger_pool(self.dsn, size=self.pool_size, name=self.name))
            partitions, clock, rates = await await_partition_count(pool), LedgerClock(), QueueRates()
            await clock.sample(pool)
            await rates.read(pool)
            hints = ReadyHints(self.bootstrap, self.topics.ready, self.codec)
            stack.callback(hints.close)
            returns = CommandReturns(self.bootstrap, self.topics.commands, self.topics.rejected, self.codec)
            stack.callback(returns.close)
            feed = EventFeed(
                self.bootstrap, self.topics.run_events, self.codec, ownership.fold, ownership.events_gone, crash
            )
            feed.start()
            stack.push_async_callback(feed.close)
            timekeeper = Timekeeper(clock, ownership.owners)
            ownership.feed = feed
            ownership.around = Surroundings(
                pool, self.codec, hints, returns, clock, partitions, self.state_folder, timekeeper.wake,
                feed.end_offset, crash, rates=rates,
            )  # fmt: skip
            for task in (
                timekeeper.run(), timekeeper.go_rounds(), keep_clock(clock, pool), keep_rates(rates, pool),
                keep_decided_through(pool, ownership.owners),
            ):  # fmt: skip
                stack.push_async_callback(_cancel, asyncio.create_task(_or_crash(task, crash)))
            # Handed over in this order: no new commands, then our partitions, then our place in the group, so that
            # the next owner finds them released.
            app = create_owners_app(
                self.bootstrap, f"{self.topics.prefix}-owners", self.topics.commands, ownership, self.state_folder
            )
            if not await _kafka_is_there(feed, stop):
                return
            stack.push_async_callback(app.stop)
            await app.start()
            stack.push_async_callback(_cancel, asyncio.create_task(_watch(app, crash)))
            reading = _or_crash(read_what_stalls(ownership, app.end_of), crash)
            stack.push_async_callback(_cancel, asyncio.create_task(reading))
            stack.push_async_callback(ownership.close)
            await _first(stop, failed)


async def _kafka_is_there(feed: EventFeed, stop: asyncio.Event) -> bool:
    """Wait for the broker, which Faust would not; False when `stop` comes first."""
    while not stop.is_set():
        try:
            await feed.end_offset(0)
            return True
        except KafkaUnavailable as error:
            log.warning("waiting for Kafka: %s", error)
            await asyncio.sleep(0.5)
    return False


async def _first(stop: asyncio.Event, failed: asyncio.Future[None]) -> None:
    """Wait for the stop, or raise the failure."""
    stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    await asyncio.wait([stopping, failed], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if failed.done():
        failed.result()


async def _watch(app: OwnersApp, crash: Callable[[Exception], None]) -> None:
    """Faust marks a crashed app and goes on waiting; we do not."""
    await app.wait_until_stopped()
    if isinstance(reason := app.crash_reason, Exception):
        crash(reason)


async def _or_crash(work: Coroutine[Any, Any, None], crash: Callable[[Exception], None]) -> None:
    try:
        await work
    except Exception as error:
        log.exception("%s failed", work)
        crash(error)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
