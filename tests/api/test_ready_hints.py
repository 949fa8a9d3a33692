"""The consumer of the ready topic, on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest_asyncio
from confluent_kafka import Producer

from api.app import ApiSettings
from api.metrics import ApiMetrics
from api.ready_hints import ReadyHints
from api.ready_index import ReadyIndex, ReadyRun, Waiter
from connectors.stack import KafkaBroker
from ledger.clock import monotonic_us
from schemas.codec import Codec
from schemas.ids import new_id
from tests.ledger_fixtures import IDLE_S

QUEUE = ("acme", "mail")
UNKNOWN = 9  # a partition of a shard whose clock nobody knows; all others' is ours


class Hinted:
    """A ready index that a consumer fills."""

    def __init__(self, settings: ApiSettings) -> None:
        self.index, self.metrics = ReadyIndex(), ApiMetrics()
        self.topic = settings.ready_topic
        self.producer = Producer({"bootstrap.servers": settings.bootstrap, "linger.ms": 0})
        self.hints = ReadyHints(
            settings.bootstrap, self.topic, Codec(), self.index, self.metrics, self._locally_us, idle_s=settings.idle_s
        )

    def _locally_us(self, partition: int, due_us: int) -> int | None:
        return None if partition == UNKNOWN else due_us

    def send(self, value: bytes | None, partition: int = -1) -> None:
        self.producer.produce(self.topic, value, partition=partition)
        assert self.producer.flush(10) == 0

    async def next(self, wanted: int = 1_000) -> list[ReadyRun]:
        """The next runs of the queue."""
        woken = asyncio.Event()
        waiter = Waiter([QUEUE], wanted, woken.set)
        self.index.wait(waiter)
        async with asyncio.timeout(10):
            await woken.wait()
        return waiter.take()


@pytest_asyncio.fixture
async def hinted(settings: ApiSettings) -> AsyncIterator[Hinted]:
    hinted = Hinted(settings)
    hinted.hints.start()
    assert await asyncio.to_thread(hinted.hints.positioned.wait, 10)
    # What is sent from now on is read only once the fetch has begun: wait for a record of each partition.
    for partition in hinted.producer.list_topics(hinted.topic).topics[hinted.topic].partitions:
        probe = encode(tenant=f"probe {partition}", run_ids=[new_id().bytes])
        async with asyncio.timeout(10):
            while not hinted.index.pop((f"probe {partition}", "mail"), 1):
                await asyncio.to_thread(hinted.send, probe, partition)
                await asyncio.sleep(0.05)
    yield hinted
    await hinted.hints.stop()


def encode(
    *,
    tenant: str = "acme",
    lane: str = "high",
    partition: int = 3,
    epoch: int = 7,
    due_us: int | None = None,
    run_ids: list[bytes],
) -> bytes:
    record = {"tenant": tenant, "queue": "mail", "lane": lane, "partition": partition, "epoch": epoch}
    return Codec().encode("ReadyHints", record | {"runIds": b"".join(run_ids), "dueAt": due_us})


async def test_the_runs_of_a_hint_come_with_its_epoch_lane_and_order(hinted: Hinted) -> None:
    run_ids = [new_id() for _ in range(500)]
    hinted.send(encode(run_ids=[run_id.bytes for run_id in run_ids]))
    assert await hinted.next() == [ReadyRun(run_id, 7, 0) for run_id in run_ids]


async def test_runs_that_will_be_due_are_given_when_they_are(hinted: Hinted) -> None:
    due_us = [monotonic_us() + 1_000 * ms for ms in (240, 120, 180, 120)]
    run_ids = [new_id() for _ in due_us]
    for run_id, at_us in zip(run_ids, due_us, strict=True):
        hinted.send(encode(run_ids=[run_id.bytes], due_us=at_us))
    hinted.send(encode(run_ids=[(overdue := new_id()).bytes]))
    given: list[UUID] = []
    while len(given) < 1 + len(run_ids):
        runs = await hinted.next()
        now_us = monotonic_us()
        assert all(due_us[run_ids.index(run.run_id)] <= now_us for run in runs if run.run_id != overdue)
        given += [run.run_id for run in runs]
    assert sorted(given) == sorted([overdue, *run_ids])


async def test_what_is_due_by_a_clock_that_is_not_known_is_given_at_once(hinted: Hinted) -> None:
    run_id = new_id()
    hinted.send(encode(run_ids=[run_id.bytes], partition=UNKNOWN, due_us=monotonic_us() + 900_000))
    sent_us = monotonic_us()
    assert await hinted.next() == [ReadyRun(run_id, 7, 0)]
    assert monotonic_us() < sent_us + 900_000


async def test_it_stops_at_once_whatever_it_keeps_back(hinted: Hinted) -> None:
    hinted.send(encode(run_ids=[new_id().bytes], due_us=monotonic_us() + 900_000))
    async with asyncio.timeout(6):
        await hinted.hints.stop()
    assert hinted.index.pop(QUEUE, 1) == []


async def test_what_is_no_hint_is_counted_and_the_next_hint_works(hinted: Hinted) -> None:
    run_id = new_id()
    good = encode(run_ids=[run_id.bytes])
    for bad in (
        None,
        b"",
        b"garbage",
        good[:-3],
        good[:1] + b"\x00\x00\xff\xff" + good[5:],
        encode(run_ids=[b"short"]),
    ):
        hinted.send(bad)
    hinted.send(good)
    assert await hinted.next() == [ReadyRun(run_id, 7, 0)]
    async with asyncio.timeout(10):
        while hinted.metrics.undecodable_hints._value.get() < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_lag_of_hints_is_measured(hinted: Hinted) -> None:
    assert 'fencepost_api_hint_lag_ms_bucket{le="20000"} 0.0' not in hinted.metrics.text().decode()


async def test_it_is_measured_by_how_much_a_hint_that_was_told_ahead_came_too_late(hinted: Hinted) -> None:
    for due_us in (None, monotonic_us() + 200_000, monotonic_us() - 3_000_000):
        hinted.send(encode(run_ids=[new_id().bytes], due_us=due_us))
        await hinted.next()
    late_ms = hinted.metrics.hint_late_ms
    assert (sum(late_ms.counts), late_ms.total >= 3_000) == (2, True)


async def test_hints_are_read_once_the_broker_answers_who_is_asked_as_soon_as_somebody_wants_to_know(
    hinted: Hinted,
) -> None:
    assert hinted.hints._probe_at == 0.0
    async with asyncio.timeout(10):
        while not hinted.hints.are_read():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_without_a_broker_it_stops_when_asked(kafka_broker: KafkaBroker) -> None:
    assert kafka_broker
    hints = ReadyHints(
        "127.0.0.1:1", "ready", Codec(), ReadyIndex(), ApiMetrics(), lambda _, due_us: due_us, idle_s=IDLE_S
    )
    hints.start()
    async with asyncio.timeout(6):
        await hints.stop()
    assert not hints.positioned.is_set()
    assert not hints.are_read()
