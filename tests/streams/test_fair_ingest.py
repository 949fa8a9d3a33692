"""A tenant's flood on the commands topic does not delay what another tenant asks for, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Producer

from connectors.stack import KafkaBroker
from ledger.connection import Pool
from schemas.codec import Codec
from schemas.commands import Command
from streams import command_inbox
from streams.streams_role import StreamsRole
from streams.topics import Topics, create_topics
from tests.ledger_fixtures import PARTITIONS
from tests.streams.commands import batch, cancel, create, job_on, pause, produce, resume
from tests.streams.ledger_dump import fetch
from tests.streams.roles import Streams
from tests.streams.waiting import until

PARTITION = 3
A_RECORD = 100
FLOOD_JOBS = 6_000
HELD_BYTES = 256 << 10  # a tenth of the flood: what has no room is read again and again


def run_role(dsn: str, bootstrap: str, topics: Topics, folder: Path) -> None:
    """A process of its own, to be killed."""
    command_inbox.CAPACITY_BYTES = HELD_BYTES
    asyncio.run(StreamsRole("a", dsn, bootstrap, topics, Codec(), folder).run(asyncio.Event()))


@contextmanager
def doomed_role(streams: Streams) -> Iterator[None]:
    """A role that is killed at the end."""
    args = (streams.dsn, streams.bootstrap, streams.topics, streams.folder / "a")
    process = multiprocessing.get_context("spawn").Process(target=run_role, args=args, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def produce_packed(streams: Streams, commands: list[Command]) -> None:
    producer = Producer({"bootstrap.servers": streams.bootstrap})
    for start in range(0, len(commands), A_RECORD):
        producer.produce(streams.topics.commands, batch(commands[start : start + A_RECORD]), partition=PARTITION)
    assert producer.flush(60) == 0


@pytest.fixture
def streams(ledger_dsn: str, ledger_pool: Pool, kafka_broker: KafkaBroker, tmp_path: Path) -> Streams:
    streams = Streams(ledger_dsn, ledger_pool, kafka_broker.bootstrap, tmp_path)
    create_topics(streams.bootstrap, streams.topics, PARTITIONS)
    return streams


def a_flood(jobs: Sequence[UUID]) -> list[Command]:
    """Each job is created, paused and resumed, in this order or not at all."""
    return [command(job_id, tenant="flood") for command in (create, pause, resume) for job_id in jobs]


async def test_pause_cancel_and_create_come_before_the_flood_in_front_of_them_and_all_is_applied_once(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_inbox, "CAPACITY_BYTES", HELD_BYTES)
    paused, cancelled, created = (job_on(PARTITION) for _ in range(3))
    async with streams.role("before"):
        streams.produce([create(job_id, tenant="calm") for job_id in (paused, cancelled)])
        await until(lambda: streams.consumed(2))
    [run_id] = await fetch(streams.pool, "SELECT run_id FROM runs WHERE job_id = %s", cancelled)
    flooded = [job_on(PARTITION) for _ in range(FLOOD_JOBS)]
    flood = a_flood(flooded)
    produce_packed(streams, flood)
    calm = [
        pause(paused, tenant="calm"), cancel(cancelled, run_id, tenant="calm"), create(created, tenant="calm"),
        resume(paused, tenant="calm"), pause(paused, tenant="calm"),
    ]  # fmt: skip
    produce(streams.bootstrap, streams.topics.commands, calm)

    with doomed_role(streams):
        await until(lambda: _applied(streams, calm, len(calm)))
        assert await _count(streams, flood) < len(flood) / 2
        assert await fetch(streams.pool, "SELECT tenant FROM commands_ahead") == ["calm"]
        applied = await _count(streams, flood)
        await until(lambda: _applied(streams, flood, applied + 1))
    assert await _count(streams, flood) < len(flood)
    async with streams.role("after"):
        records = 2 + len(flood) // A_RECORD + len(calm)
        await until(lambda: streams.consumed(records))
    assert await fetch(streams.pool, "SELECT DISTINCT outcome FROM applied_commands") == ["applied"]
    assert await _count(streams, [*flood, *calm]) == len(flood) + len(calm)
    states = {job_id: found for job_id, *found in await fetch(streams.pool, "SELECT job_id, state, version FROM jobs")}
    assert states[paused] == ["paused", 4]
    assert all(states[job_id] == ["active", 3] for job_id in flooded)
    assert await fetch(streams.pool, "SELECT tenant FROM commands_ahead") == []


async def _count(streams: Streams, commands: list[Command]) -> int:
    query = "SELECT count(*) FROM applied_commands WHERE command_id = ANY(%s)"
    [count] = await fetch(streams.pool, query, [command.command_id for command in commands])
    return int(count)


async def _applied(streams: Streams, commands: list[Command], at_least: int) -> bool:
    return await _count(streams, commands) >= at_least
