"""The outbox relay: moves events from a shard's outbox to the run-events topic, each run's in the order they happened,
and audits beside them.

A row leaves the outbox only after Kafka has acknowledged all its events. Killed in between, the next relay publishes
them again under the same event ids and versions, by which readers tell. While Kafka is away the rows wait; while
Postgres is away there is nothing to move.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ledger.audits import AuditRow, delete_audits, read_audits
from ledger.connection import SESSION_OPTIONS, Connection, ledger_errors
from ledger.outbox import (
    OUTBOX_CHANNEL,
    OutboxRow,
    delete_from_outbox,
    get_up,
    outbox_lag,
    read_outbox,
    try_fall_asleep,
    try_lock_relay,
)
from ledger.servers import Servers
from schemas.audits import AUDIT_KEY, encode_audits
from schemas.codec import Codec
from schemas.errors import KafkaUnavailable, TryAgain
from streams.metrics import OUTBOX_EVENTS_PUBLISHED, OUTBOX_LAG_SECONDS, OUTBOX_ROWS
from streams.outbox_events import EventRecord, audit_events, pack_events
from streams.topics import RUN_EVENTS_MAX_BYTES, Topics

log = logging.getLogger(__name__)

BATCH_EVENTS = 10_000
BATCH_BYTES = 16 * 1024 * 1024
BATCH_MAX_ROWS = 500
FIRST_BATCH_ROWS = 16
BATCH_AUDITS = 100  # rows; each has what one transaction changed

# A batch costs about a millisecond however small it is, so what comes next waits for company.
_COMPANY_S = 0.05
_STANDBY_S = 0.5
_RETRY_S = 0.5
_ACK_LOOK_S = 0.5
_OBSERVE_S = 2.0


class OutboxRelay:
    """Relays one shard. Any number may run: one holds the shard's relay lock, the others stand by.

    frozen_after_s: whole seconds of silence after which Postgres ends the session, and with it the lock, of a relay
    whose process is frozen. A healthy one is silent for no more than a fifth of it.
    """

    def __init__(
        self,
        dsn: str,
        bootstrap: str,
        topics: Topics,
        codec: Codec,
        *,
        shard: str = "0",
        frozen_after_s: int = 15,
        kafka_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._servers = Servers(dsn)
        self._bootstrap = bootstrap
        self._topics = topics
        self._codec = codec
        self._shard = shard
        self._kafka_config = kafka_config
        self._session_options = f"{SESSION_OPTIONS} -c idle_session_timeout={frozen_after_s}s"
        self._batch_rows = FIRST_BATCH_ROWS
        self._longest_sleep_s = frozen_after_s / 5
        self._observed = self._confirmed = float("-inf")
        self.active = asyncio.Event()  # set while this relay holds the lock
        self.in_place = asyncio.Event()  # set while it does, or stands by for it

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop`, over every failure of Kafka and Postgres that time can mend."""
        while not stop.is_set():
            try:
                await self._run_session(stop)
            except TryAgain as error:
                log.warning("relay of shard %s starts over: %s", self._shard, error)
                await _pause(stop, _RETRY_S)
            finally:
                self.active.clear()
                self.in_place.clear()

    async def _run_session(self, stop: asyncio.Event) -> None:
        """One session with Postgres, which is also how long the lock can be held."""
        with ledger_errors():
            async with await self._servers.connect(
                options=self._session_options,
                application_name=f"fencepost-relay-{self._shard}",
            ) as conn:
                while not await try_lock_relay(conn):
                    self.in_place.set()
                    if await _pause(stop, _STANDBY_S):
                        return
                self.active.set()
                self.in_place.set()
                log.info("relaying shard %s", self._shard)
                await self._relay(conn, stop)

    async def _relay(self, conn: Connection, stop: asyncio.Event) -> None:
        publisher = EventPublisher(self._bootstrap, self._topics.run_events, self._codec, self._kafka_config)
        alarm = await _Alarm.set(conn)
        try:
            while not stop.is_set():
                await self._observe(conn)
                wanted = self._batch_rows
                rows = await read_outbox(conn, wanted, micros=True)
                audits = await read_audits(conn, BATCH_AUDITS)
                if rows or audits:
                    await self._move(conn, publisher, rows, audits, stop)
                if len(rows) < wanted:
                    await _pause(stop, _COMPANY_S)
                if not rows and not audits:
                    await self._sleep(conn, alarm, stop)
        finally:
            await asyncio.to_thread(publisher.close)

    async def _sleep(self, conn: Connection, alarm: _Alarm, stop: asyncio.Event) -> None:
        """Until there is something in the outbox, or `stop`; not while somebody is writing to it."""
        alarm.rearm()
        if not await try_fall_asleep(conn):
            return
        while not await self._observe(conn, now=True) and not stop.is_set():
            await alarm.wait(stop, self._longest_sleep_s)
        await get_up(conn)

    async def _move(
        self,
        conn: Connection,
        publisher: EventPublisher,
        rows: Sequence[OutboxRow],
        audits: Sequence[AuditRow],
        stop: asyncio.Event,
    ) -> None:
        """Publish rows and delete them once they are acknowledged; without the deletion if `stop` comes first."""
        records = await asyncio.to_thread(publisher.send, rows, audits, self._shard)
        while await asyncio.to_thread(publisher.wait, _ACK_LOOK_S):
            if stop.is_set():
                return
            await self._observe(conn)
        if audits:
            await delete_audits(conn, [row.id for row in audits])
        if rows:
            await delete_from_outbox(conn, [row.id for row in rows])
            OUTBOX_EVENTS_PUBLISHED.labels(self._shard).inc(sum(len(record.events) for record in records))
            self._batch_rows = _next_batch_rows(len(rows), records)

    async def _observe(self, conn: Connection, *, now: bool = False) -> int:
        """Measure the outbox now, or now and then; how many rows it had, 0 when it was not measured.

        It also proves that the session, and so the lock, is still there, and now and then that the server has its
        standby still: one whose place another has taken shows an empty outbox for ever.
        """
        if not now and time.monotonic() - self._observed < _OBSERVE_S:
            return 0
        confirm = time.monotonic() - self._confirmed >= _OBSERVE_S
        rows, lag_s = await outbox_lag(conn, confirm=confirm)
        if confirm:
            self._confirmed = time.monotonic()
        OUTBOX_ROWS.labels(self._shard).set(rows)
        OUTBOX_LAG_SECONDS.labels(self._shard).set(lag_s)
        self._observed = time.monotonic()
        return rows


class _Alarm:
    """Rings when Postgres has something to tell a session that asks for nothing: a notification, or its end."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._rung = asyncio.Event()

    @classmethod
    async def set(cls, conn: Connection) -> _Alarm:
        alarm = cls(conn)
        conn.add_notify_handler(lambda _: alarm._rung.set())  # of one that comes along with the answer to a statement
        await conn.execute(f"LISTEN {OUTBOX_CHANNEL}")
        return alarm

    def rearm(self) -> None:
        self._rung.clear()

    async def wait(self, stop: asyncio.Event, longest_s: float) -> None:
        """Until it rings, unless it has rung since it was armed; or until `stop`."""
        loop, waits = asyncio.get_running_loop(), [asyncio.create_task(each.wait()) for each in (self._rung, stop)]
        loop.add_reader(self._conn.fileno(), self._rung.set)
        try:
            await asyncio.wait(waits, timeout=longest_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(self._conn.fileno())
            for each in waits:
                each.cancel()
        self.rearm()


def _next_batch_rows(rows: int, records: Sequence[EventRecord]) -> int:
    """How many rows like these make a batch of the wished size: a row holds from one event to a thousand."""
    events = sum(len(record.events) for record in records)
    size_bytes = sum(record.size_bytes for record in records)
    wanted = min(rows * BATCH_EVENTS // max(events, 1), rows * BATCH_BYTES // max(size_bytes, 1))
    return min(max(wanted, 1), BATCH_MAX_ROWS)


class EventPublisher:
    """A Kafka producer for one relay session. Its calls block: make them from a thread, one at a time."""

    def __init__(self, bootstrap: str, topic: str, codec: Codec, kafka_config: Mapping[str, Any] | None = None) -> None:
        self._topic = topic
        self._codec = codec
        self._failure: KafkaError | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                # Records never time out: one that gave up between two that did not would break the order.
                "message.timeout.ms": 0,
                "message.max.bytes": RUN_EVENTS_MAX_BYTES,
                "linger.ms": 0,
                "compression.type": "lz4",
                # The batch is the bound. A full queue would make `send` wait for a broker that may be away.
                "queue.buffering.max.messages": 0,
                "queue.buffering.max.kbytes": 2**31 - 1,
                "reconnect.backoff.ms": 500,
                "reconnect.backoff.max.ms": 2000,
                "socket.keepalive.enable": True,
                **(kafka_config or {}),
            },
            logger=log,
        )

    def send(self, rows: Sequence[OutboxRow], audits: Sequence[AuditRow], shard: str) -> list[EventRecord]:
        """Hand the rows' events to the producer, as records that it keeps in order in each partition, and the audits.

        Returns the records of run events. Raises KafkaUnavailable when it takes no more, for instance after a fatal
        error.
        """
        records = pack_events(rows, shard)
        for record in records:
            self._produce(record.partition, self._codec.header("RunEvents") + record.body())
        for row in audits:
            self._produce(row.partition, encode_audits(self._codec, audit_events(row, shard)), key=AUDIT_KEY)
        return records

    def _produce(self, partition: int, value: bytes, *, key: bytes | None = None) -> None:
        try:
            self._producer.produce(self._topic, value, key, partition, on_delivery=self._delivered)
        except KafkaException as error:
            raise KafkaUnavailable(f"{self._topic} takes no events: {error}") from error

    def wait(self, timeout_s: float) -> int:
        """Wait for acknowledgements; how many are still missing. Raises KafkaUnavailable when a record was refused."""
        missing = self._producer.flush(timeout_s)
        if self._failure is not None:
            raise KafkaUnavailable(f"{self._topic} refused events: {self._failure}")
        return int(missing)

    def close(self) -> None:
        """Drop what is not acknowledged: it is still in the outbox."""
        self._producer.purge()
        self._producer.flush(1.0)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failure = error


async def _pause(stop: asyncio.Event, wait_s: float) -> bool:
    """Sleep, or until `stop`; whether it has come."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await stop.wait()
    return stop.is_set()
