"""The consumer of the ready topic, on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from confluent_kafka import Producer

from api.app import ApiSettings
from api.metrics import ApiMetrics
from api.ready_hints import ReadyHints
from api.ready_index import ReadyIndex, ReadyRun, Waiter
from connectors.stack import KafkaBroker
from schemas.codec import Codec
from schemas.ids import new_id

QUEUE = ("acme", "mail")


class Hinted:
    """A ready index that a consumer fills."""

    def __init__(self, settings: ApiSettings) -> None:
        self.index, self.metrics = ReadyIndex(), ApiMetrics()
        self.topic = settings.ready_topic
        self.producer = Producer({"bootstrap.servers": settings.bootstrap, "linger.ms": 0})
        self.hints = ReadyHints(settings.bootstrap, self.topic, Codec(), self.index, self.metrics)

    def send(self, value: bytes | None) -> None:
        self.producer.produce(self.topic, value)
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
    # What is sent from now on is read only once the fetch has begun: wait for the first record to come through.
    probe = encode(tenant="probe", run_ids=[new_id().bytes])
    async with asyncio.timeout(10):
        while hinted.metrics.hints._value.get() == 0:
            await asyncio.to_thread(hinted.send, probe)
            await asyncio.sleep(0.05)
    yield hinted
    await hinted.hints.stop()


def encode(*, tenant: str = "acme", lane: str = "high", epoch: int = 7, run_ids: list[bytes]) -> bytes:
    record = {"tenant": tenant, "queue": "mail", "lane": lane, "partition": 3, "epoch": epoch}
    return Codec().encode("ReadyHints", record | {"runIds": b"".join(run_ids)})


async def test_the_runs_of_a_hint_come_with_its_epoch_lane_and_order(hinted: Hinted) -> None:
    run_ids = [new_id() for _ in range(500)]
    hinted.send(encode(run_ids=[run_id.bytes for run_id in run_ids]))
    assert await hinted.next() == [ReadyRun(run_id, 7, 0) for run_id in run_ids]


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


async def test_hints_are_read_once_the_broker_answers(hinted: Hinted) -> None:
    async with asyncio.timeout(10):
        while not hinted.hints.are_read():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_without_a_broker_it_stops_when_asked(kafka_broker: KafkaBroker) -> None:
    assert kafka_broker
    hints = ReadyHints("127.0.0.1:1", "ready", Codec(), ReadyIndex(), ApiMetrics())
    hints.start()
    async with asyncio.timeout(6):
        await hints.stop()
    assert not hints.positioned.is_set()
    assert not hints.are_read()
