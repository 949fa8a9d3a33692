"""Faust, for what it is good at here: membership, assignment, and the agent that receives commands.

What is ours, and why (faust-streaming 0.15.3, pinned; tests/streams/test_faust_app.py fails when it moves):

* Offsets come from the ledger, not from Kafka. Seeking in `on_partitions_assigned` is undone by Faust's own
  `perform_seek`, so the consumer's `seek_to_committed` is what we override; `acks=False` stops commits to Kafka.
* A partition is read only once it is owned: until the ledger has given it to us it stays paused.
* Messages of an older generation, still under way when a rebalance came, are dropped: they would jump the seek.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Mapping
from pathlib import Path
from typing import Any

import faust
from faust.transport.drivers.aiokafka import Consumer, Transport
from faust.types import TP

from streams.ownership import Ownership
from streams.rejections import RawCommand

log = logging.getLogger(__name__)

TAKE_OVER_WAIT_S = 5.0
SESSION_TIMEOUT_S = 6.0
HEARTBEAT_INTERVAL_S = 1.0


class LedgerConsumer(Consumer):  # type: ignore[misc]
    """A consumer whose committed offsets are the ledger's."""

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Take over what is assigned and seek to where the ledger is; pause what is not ours yet."""
        assigned = {tp for tp in self.assignment() if tp.topic == self.app.commands_topic}
        ownership: Ownership = self.app.ownership
        ownership.assign(tp.partition for tp in assigned)
        offsets = await ownership.next_offsets(TAKE_OVER_WAIT_S)
        ready = {tp: offsets[tp.partition] for tp in assigned if tp.partition in offsets}
        if late := assigned - set(ready):
            log.warning("partitions %s are not taken over yet", sorted(tp.partition for tp in late))
            self.pause_partitions(late)
        if ready:
            await self._thread.seek_wait(ready)
        return ready

    async def resume_from(self, tp: TP, offset: int) -> None:
        """Read a partition that has become ours after the others."""
        if tp in self.assignment():
            await self.seek(tp, offset)
            self.resume_partitions({tp})


class LedgerTransport(Transport):  # type: ignore[misc]
    """Makes LedgerConsumers."""

    Consumer = LedgerConsumer


class OwnersApp(faust.App):  # type: ignore[misc]
    """The Faust app of a streams process: one agent over the commands topic, feeding its owners."""

    ownership: Ownership
    commands_topic: str

    def _new_transport(self) -> LedgerTransport:
        return LedgerTransport(self.conf.broker_consumer, self)


def create_owners_app(
    bootstrap: str, group: str, commands_topic: str, ownership: Ownership, state_folder: Path, **settings: Any
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
        broker_session_timeout=SESSION_TIMEOUT_S,
        broker_heartbeat_interval=HEARTBEAT_INTERVAL_S,
        broker_rebalance_timeout=10.0,
        consumer_auto_offset_reset="earliest",
        stream_wait_empty=False,
        **settings,
    )
    app.ownership, app.commands_topic = ownership, commands_topic
    topic = app.topic(
        commands_topic,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        acks=False,
    )

    @app.agent(topic, name="commands")  # type: ignore[untyped-decorator]
    async def receive(commands: Any) -> None:
        await _receive(app, commands.events())

    @app.on_partitions_assigned.connect  # type: ignore[untyped-decorator]
    async def assigned(_app: OwnersApp, partitions: set[TP], **_: Any) -> None:
        ownership.assign(tp.partition for tp in partitions if tp.topic == commands_topic)

    def owned(partition: int, next_offset: int) -> None:
        if not app.rebalancing:  # else seek_to_committed will come
            app.add_future(app.consumer.resume_from(TP(commands_topic, partition), next_offset))

    ownership.on_owned = owned
    return app


async def _receive(app: OwnersApp, events: AsyncIterable[Any]) -> None:
    async for event in events:
        message = event.message
        if message.generation_id == app.consumer_generation_id:
            await app.ownership.receive(RawCommand(message.partition, message.offset, message.key, message.value))
