"""The streams role: partition owners, from the first assignment to the last release."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ledger.clock import LedgerClock
from ledger.connection import Pool
from ledger.fence import owners_transaction
from ledger.news import News, follow_news
from ledger.shards import Shards, open_shards
from schemas.codec import Codec
from schemas.errors import KafkaUnavailable, LedgerUnavailable
from streams.decided_through import keep_decided_through
from streams.decision_rounds import DecisionRounds
from streams.event_feed import EventFeed
from streams.faust_app import SESSION_TIMEOUT_S, OwnersApp, create_owners_app
from streams.kafka_security import PLAINTEXT, KafkaSecurity
from streams.metrics import CLOCK_SKEW_SECONDS, EVENTS_STALLED_SECONDS, TIMERS_LOADED
from streams.missed_events import MissedEvents
from streams.owners_group import until_empty
from streams.ownership import Ownership
from streams.partition_owner import PartitionOwner
from streams.pending_caps import keep_caps
from streams.ready_hints import ReadyHints
from streams.rejections import CommandReturns
from streams.stalled_reads import read_what_stalls
from streams.surroundings import Surroundings
from streams.timekeeper import Timekeeper
from streams.topics import Topics

log = logging.getLogger(__name__)

NEWS_PERIOD_S = 5.0

Owners = Callable[[], list[PartitionOwner]]


@dataclass(frozen=True)
class StreamsRole:
    """A process that owns partitions. name: tells it from its peers, in the ledger and in logs.

    session_timeout_s: after this long without a sign of life the group gives its partitions to others.
    """

    name: str
    dsn: str
    bootstrap: str
    topics: Topics
    codec: Codec
    state_folder: Path
    pool_size: int = 8  # sessions with each shard
    session_timeout_s: float = SESSION_TIMEOUT_S
    security: KafkaSecurity = PLAINTEXT

    async def run(self, stop: asyncio.Event, ownership: Ownership | None = None) -> None:
        """Own what the group assigns until `stop` is set, then hand it over. Raises what an owner cannot survive."""
        ownership = ownership or Ownership(self.name, self.session_timeout_s)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def crash(error: Exception) -> None:
            if not failed.done():
                failed.set_exception(error)

        async with AsyncExitStack() as stack:
            shards = await stack.enter_async_context(open_shards(self.dsn, size=self.pool_size, name=self.name))
            kafka_config = self.security.librdkafka()
            hints = ReadyHints(self.bootstrap, self.topics.ready, self.codec, kafka_config)
            stack.callback(hints.close)
            topics = self.topics
            returns = CommandReturns(self.bootstrap, topics.commands, topics.rejected, self.codec, kafka_config)
            stack.callback(returns.close)
            feed = EventFeed(
                self.bootstrap, topics.run_events, self.codec, ownership.fold, ownership.events_gone, crash,
                kafka_config,
            )  # fmt: skip
            EVENTS_STALLED_SECONDS.set_function(lambda: feed.watch.longest_s(time.monotonic()))
            feed.start()
            stack.push_async_callback(feed.close)
            missed_events = MissedEvents(self.bootstrap, topics.run_events, self.codec, kafka_config)
            stack.push_async_callback(missed_events.close)
            shared = partial(
                Surroundings, codec=self.codec, hints=hints, returns=returns, partitions=shards.partitions,
                state_folder=self.state_folder, end_offset=feed.end_offset, crash=crash,
                rate_share=lambda: 1 / shards.in_use(), missed_events=missed_events,
            )  # fmt: skip
            times = await stack.enter_async_context(AsyncExitStack())  # a shard that is added later ends in its place
            around: dict[int, Surroundings] = {}

            async def add_shard(shard: int, pool: Pool) -> None:
                owners = partial(_owners_around, lambda: around.get(shard), ownership)
                around[shard] = await _keep_time(times, shared, pool, owners, crash)
                CLOCK_SKEW_SECONDS.labels(shard).set_function(around[shard].clock.skew_s)

            for shard, pool in shards.pools.items():
                await add_shard(shard, pool)
            shards.on_added(add_shard)
            TIMERS_LOADED.set_function(lambda: sum(owner.timers() for owner in ownership.owners()))
            ownership.feed = feed
            ownership.around_of = lambda partition: around[shards.number_of(partition)]
            ownership.is_moving = partial(_is_moving, shards)
            stack.push_async_callback(ownership.close)
            if await _kafka_is_there(feed, stop):
                await self._be_a_member(ownership, crash, _first(stop, failed))
                # Our place in the group is free, so that others take over; until they have, time is kept here.
                await ownership.hand_over(until_empty(self.bootstrap, self._group, kafka_config))

    @property
    def _group(self) -> str:
        return f"{self.topics.prefix}-owners"

    async def _be_a_member(
        self, ownership: Ownership, crash: Callable[[Exception], None], end: Coroutine[Any, Any, None]
    ) -> None:
        """Be in the group, and read its commands for who owns them, until the end."""
        app = create_owners_app(
            self.bootstrap, self._group, self.topics.commands, ownership, self.state_folder,
            session_timeout_s=self.session_timeout_s, **self.security.faust(),
        )  # fmt: skip
        async with AsyncExitStack() as stack:
            stack.push_async_callback(app.stop)
            await app.start()
            stack.push_async_callback(_cancel, asyncio.create_task(_watch(app, crash)))
            reading = _or_crash(read_what_stalls(ownership, app.ends_of), crash)
            stack.push_async_callback(_cancel, asyncio.create_task(reading))
            stack.callback(ownership.leave)
            await end


async def _keep_time(
    stack: AsyncExitStack, shared: partial[Surroundings], pool: Pool, owners: Owners, crash: Callable[[Exception], None]
) -> Surroundings:
    """Begin what goes by the clock of one shard, until the stack is closed; what surrounds its owners."""
    clock = LedgerClock()
    timekeeper, rounds = Timekeeper(clock, owners), DecisionRounds(partial(owners_transaction, pool))
    stack.push_async_callback(rounds.drain)
    around = shared(pool=pool, clock=clock, rounds=rounds, wake_timekeeper=timekeeper.wake)
    clock.on_set = timekeeper.wake_all

    def hear(news: News) -> None:
        if around.hear(news):
            timekeeper.wake_all()

    with suppress(LedgerUnavailable):  # then once it is back, before any of its partitions is owned
        await around.begin()
    for task in (
        timekeeper.run(), follow_news(pool, clock, hear, NEWS_PERIOD_S), keep_decided_through(pool, owners),
        keep_caps(around.caps, pool, around.rate_share),
    ):  # fmt: skip
        stack.push_async_callback(_cancel, asyncio.create_task(_or_crash(task, crash)))
    return around


def _owners_around(around: Callable[[], Surroundings | None], ownership: Ownership) -> list[PartitionOwner]:
    """Those whose partitions the shard holds: time is told to them by its clock."""
    return [owner for owner in ownership.owners() if owner.is_around(around())]


async def _is_moving(shards: Shards, partition: int) -> bool:
    await shards.look_again()
    return shards.is_moving(partition)


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
