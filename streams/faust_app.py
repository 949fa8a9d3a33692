"""Faust, for what it is good at here: membership, assignment, and fetching commands.

What is ours, and why (faust-streaming 0.15.3, pinned; tests/streams/test_faust_app.py fails when it moves):

* Offsets come from the ledger, not from Kafka. Seeking in `on_partitions_assigned` is undone by Faust's own
  `perform_seek`, so the consumer's `seek_to_committed` is what we override; `acks=False` stops commits to Kafka.
* A partition is read only once it is owned: until the ledger has given it to us it stays paused.
* Records go to their owners as they were fetched: two tasks, a queue and a turn of a stream for each would cost more
  than all else that is done with it. The inboxes know what was seen, and what is missing.
* The group is joined at once: there are no tables to wait for.
* Partitions are shared out by who has their state (streams/sticky_assignor.py), through Faust's own setting.
* What Faust does by the clock and nobody here needs is left out: while nothing happens its two loops wake for the
  group's heartbeat, for fetches, and for little else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import faust
from aiokafka.errors import IllegalStateError
from faust.app.base import BootStrategy
from faust.tables import TableManager
from faust.tables.recovery import Recovery
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP
from mode import Service

from streams.breath import Breath
from streams.ownership import Ownership
from streams.rejections import RawCommand
from streams.sticky_assignor import StickyAssignor

log = logging.getLogger(__name__)

TAKE_OVER_WAIT_S = 1.0  # in a rebalance, in which nothing is read; who needs longer joins in by itself
SESSION_TIMEOUT_S = 6.0
HEARTBEAT_INTERVAL_S = 1.0
FETCHER_LOOK_S = 10.0
SETTLING_LOOK_S, SETTLING_S = 0.2, 5.0  # see _ConsumerThread
FETCH_WAIT_S = 10.0
COMMIT_INTERVAL_S = 3600.0  # nothing is ever committed
# Who cannot go on, since the ledger is away, reads nothing, and by Kafka's rule would leave the group after a while.
# The work is not done in the loop that reads, so that rule would find nobody who hangs.
MAX_POLL_INTERVAL_S = 20 * 86400.0


class _ConsumerThread(AIOKafkaConsumerThread):  # type: ignore[misc]
    """Waits for records until there are some, or until other partitions may be read: `look_anew` tells.

    aiokafka's fetcher looks five times a second for what it is told of anyway. Faust asks for records anew each second,
    and both loops have a timer lest they sleep; but whoever has something for them wakes them.

    But in a rebalance: a fetch that ends in the very moment in which it would be cancelled is taken for one under way
    until the fetcher looks once more, of which nobody tells it. So it looks as often as ever until that is settled.
    """

    _settled: asyncio.TimerHandle | None = None

    def _create_worker_consumer(self, transport: Transport) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._consumer_timeout = FETCHER_LOOK_S
        return consumer

    async def getmany(self, active_partitions: set[TP] | None, timeout: float) -> Any:  # noqa: ARG002 - a second
        """Not by the thread's queue of calls: its two workers are for those that must not wait, such as seeks."""
        consumer = self._ensure_consumer()
        fetching = self._fetch_or_wait(consumer, active_partitions, consumer._max_poll_records)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(fetching, self.thread_loop))

    async def _fetch_or_wait(self, consumer: Any, active_partitions: set[TP] | None, max_records: int | None) -> Any:
        """What has been fetched. After a wait nothing: other partitions may be read by then, and Faust asks again."""
        records = await self._fetch_records(consumer, active_partitions, timeout=0, max_records=max_records)
        if not records:
            some = consumer._fetcher._create_fetch_waiter()
            try:
                await asyncio.wait([some], timeout=FETCH_WAIT_S)
            finally:
                some.cancel()
        return records

    def unsettle(self) -> None:
        """A rebalance begins. Called in the thread."""
        if self._settled is not None:
            self._settled.cancel()
        self._look_every(SETTLING_LOOK_S)

    def settle(self) -> None:
        """It is over, so there is something to look at. Called in the loop that Faust runs in."""
        self._in_thread(self._settle)

    def look_anew(self) -> None:
        """End the wait for records, which a stop ends by itself. Called in the loop that Faust runs in."""
        self._in_thread(self._end_waits)

    def _in_thread(self, work: Callable[[], None]) -> None:
        if not self.should_stop:
            self.thread_loop.call_soon_threadsafe(work)

    def _settle(self) -> None:
        self._end_waits()
        self._settled = self.thread_loop.call_later(SETTLING_S, self._look_every, FETCHER_LOOK_S)

    def _look_every(self, period_s: float) -> None:
        if (fetcher := self._fetcher()) is not None:
            fetcher._fetcher_timeout = period_s

    def _end_waits(self) -> None:
        if (fetcher := self._fetcher()) is not None:
            for waiter in fetcher._fetch_waiters:
                fetcher._notify(waiter)

    def _fetcher(self) -> Any:
        return self._consumer and self._consumer._fetcher

    async def _keepalive2(self) -> None:
        """Nothing: it would wake both loops each second."""

    @Service.task  # type: ignore[untyped-decorator]
    async def _thread_keepalive(self) -> None:
        """Nothing: as above."""


class LedgerConsumer(Consumer):  # type: ignore[misc]
    """A consumer whose committed offsets are the ledger's, and whose records go to their owners."""

    _thread: _ConsumerThread

    def _new_consumer_thread(self) -> _ConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    def resume_flow(self) -> None:
        """A rebalance is over."""
        super().resume_flow()
        self._thread.settle()

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Records of these may be passed on from now on, such as have been fetched already, too."""
        super().resume_partitions(tps)
        self._thread.look_anew()

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        """What Faust asks for what was fetched: nothing comes of it but what the owners' inboxes take in."""
        receive, breath = self.app.ownership.receive, Breath()
        async for tp, message in super().getmany(timeout):
            receive(RawCommand(tp.partition, message.offset, message.key, message.value, message.headers or ()))
            await breath.take()
        return
        yield  # never: what Faust gets is an empty generator

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Take over what is assigned and seek to where the ledger is; pause what is not ours yet."""
        assigned = {tp for tp in self.assignment() if tp.topic == self.app.commands_topic}
        ownership: Ownership = self.app.ownership
        ownership.assign(tp.partition for tp in assigned)
        async with self._one_seek:
            offsets = await ownership.next_offsets(TAKE_OVER_WAIT_S)
            ready = {tp: offsets[tp.partition] for tp in assigned if tp.partition in offsets}
            if late := assigned - set(ready):
                log.warning("partitions %s are not taken over yet", sorted(tp.partition for tp in late))
                self.pause_partitions(late)
            if ready:
                await self._thread.seek_wait(ready)
            ownership.sought(tp.partition for tp in ready)
        return ready

    async def read_next(self, tp: TP) -> None:
        """Read a partition from where its inbox is by then, if it is assigned to us at all."""
        ownership: Ownership = self.app.ownership
        try:
            async with self._one_seek:
                if tp in self.assignment() and (offset := ownership.next_offset(tp.partition)) is not None:
                    await self._thread.seek_wait({tp: offset})
                    ownership.sought([tp.partition])
                    self.resume_partitions({tp})
        except IllegalStateError:
            log.info("partition %d was revoked meanwhile", tp.partition)  # its next owner will seek

    @cached_property
    def _one_seek(self) -> asyncio.Lock:
        """One seek at a time, to where the inbox is then: an inbox that goes back and forth believes the last one."""
        return asyncio.Lock()


class _NoRecovery(Recovery):  # type: ignore[misc]
    """Of no tables, so there is no progress to tell of every few seconds."""

    @Service.task  # type: ignore[untyped-decorator]
    async def _publish_stats(self) -> None:
        """Nothing: a sixth of what an idle owner's loop did."""


class NoTables(TableManager):  # type: ignore[misc]
    """Faust's own lets a second pass before it joins the group, for tables to be declared. We have none."""

    _recovery: Recovery | None

    @property
    def recovery(self) -> Recovery:
        if self._recovery is None:
            self._recovery = _NoRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery

    async def on_start(self) -> None:
        if not self.should_stop:
            await self._update_channels()
            await self.recovery.start()


class LedgerTransport(Transport):  # type: ignore[misc]
    """Makes LedgerConsumers."""

    Consumer = LedgerConsumer


class _ReadingOnly(BootStrategy):  # type: ignore[misc]
    """Neither a producer, which would keep a connection, nor statistics, which are sampled each second."""

    enable_kafka_producer = False
    enable_sensors = False


class OwnersApp(faust.App):  # type: ignore[misc]
    """The Faust app of a streams process: it reads the commands topic for its owners."""

    BootStrategy = _ReadingOnly
    ownership: Ownership
    commands_topic: str
    state_folder: Path

    def _new_transport(self) -> LedgerTransport:
        return LedgerTransport(self.conf.broker_consumer, self)

    def ends_of(self, partitions: Iterable[int]) -> dict[int, int | None]:
        """The commands topic's end in each as of the last fetch; None when none of it was fetched yet."""
        tps, assigned = {each: TP(self.commands_topic, each) for each in partitions}, self.consumer.assignment()
        return {each: self.consumer.highwater(tp) if tp in assigned else None for each, tp in tps.items()}

    def on_rebalance_start(self) -> None:
        """Called by the consumer's thread, before any queue is cleared."""
        self.consumer._thread.unsettle()
        self.ownership.doubt()
        super().on_rebalance_start()


def create_owners_app(
    bootstrap: str,
    group: str,
    commands_topic: str,
    ownership: Ownership,
    state_folder: Path,
    session_timeout_s: float = SESSION_TIMEOUT_S,
    **settings: Any,
) -> OwnersApp:
    """An app that is started with `await app.start()` and stopped with `await app.stop()`."""
    state_folder.mkdir(parents=True, exist_ok=True)
    app = OwnersApp(
        group,
        broker=[f"kafka://{address}" for address in bootstrap.split(",")],
        datadir=str(state_folder / "faust"),
        autodiscover=False,
        topic_allow_declare=False,  # topics are made by `fencepostd init`, with their partitions and retention
        topic_disable_leader=True,
        web_enabled=False,
        TableManager=NoTables,
        PartitionAssignor=StickyAssignor,
        table_standby_replicas=1,  # with none, and without tables, Faust would not ask the assignor
        broker_session_timeout=session_timeout_s,
        broker_heartbeat_interval=HEARTBEAT_INTERVAL_S,
        broker_rebalance_timeout=10.0,
        broker_max_poll_interval=MAX_POLL_INTERVAL_S,
        broker_commit_interval=COMMIT_INTERVAL_S,
        consumer_auto_offset_reset="earliest",
        stream_wait_empty=False,
        **settings,
    )
    app.ownership, app.commands_topic, app.state_folder = ownership, commands_topic, state_folder
    topic = app.topic(
        commands_topic,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        acks=False,
    )

    app.topics.add(topic)

    @app.on_partitions_assigned.connect  # type: ignore[untyped-decorator]
    async def assigned(_app: OwnersApp, partitions: set[TP], **_: Any) -> None:
        ownership.assign(tp.partition for tp in partitions if tp.topic == commands_topic)

    def hold(partition: int) -> None:
        app.consumer.pause_partitions({TP(commands_topic, partition)})

    def read_next(partition: int) -> None:
        app.add_future(app.consumer.read_next(TP(commands_topic, partition)))

    ownership.hold, ownership.read_next = hold, read_next
    return app
