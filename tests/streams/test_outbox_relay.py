"""The outbox relay on real Kafka and Postgres."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from connectors.stack import KafkaBroker
from ledger.connection import Connection, Pool
from ledger.outbox import outbox_lag, read_outbox
from ledger.pauses import pause_queue
from schemas.audits import AUDIT_KEY, decode_audits
from schemas.codec import Codec
from schemas.errors import KafkaUnavailable
from streams.metrics import OUTBOX_EVENTS_PUBLISHED, OUTBOX_ROWS
from streams.outbox_events import EventRecord
from streams.outbox_relay import (
    BATCH_MAX_ROWS,
    EventPublisher,
    OutboxRelay,
    _next_batch_rows,
)
from streams.topics import Topics
from tests.streams.event_samples import (
    PARTITIONS,
    new_topics,
    put_in_outbox,
    read_events,
    reading,
    without_repetitions,
)
from tests.streams.waiting import until

DEADLINE_S = 30.0
RelayStart = Callable[..., AbstractAsyncContextManager[OutboxRelay]]
NEVER_BY_ITSELF_S = 100 * int(DEADLINE_S)  # as frozen_after_s: a relay that sleeps looks again long after the deadline


@pytest.fixture
def topics(kafka_broker: KafkaBroker) -> Topics:
    return new_topics(kafka_broker.bootstrap)


@pytest.fixture
def start_relay(ledger_dsn: str, kafka_broker: KafkaBroker, topics: Topics) -> RelayStart:
    """Runs a relay for the length of a `with` block, which fails if the relay did."""

    @asynccontextmanager
    async def running(frozen_after_s: int = 15) -> AsyncIterator[OutboxRelay]:
        relay = OutboxRelay(ledger_dsn, kafka_broker.bootstrap, topics, Codec(), frozen_after_s=frozen_after_s)
        stop = asyncio.Event()
        task = asyncio.create_task(relay.run(stop))
        try:
            yield relay
        finally:
            stop.set()
            async with asyncio.timeout(DEADLINE_S):
                await task

    return running


@pytest.fixture
def broker_away(kafka_broker: KafkaBroker) -> Iterator[Callable[[], None]]:
    """Stops the broker at a call; the test or its end starts it again."""
    yield kafka_broker.stop
    kafka_broker.start()


def some_runs(count: int) -> list[tuple[UUID, int]]:
    return [(uuid4(), index % PARTITIONS) for index in range(count)]


async def wait_until_empty(conn: Connection) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await read_outbox(conn, 1):  # noqa: ASYNC110 - Postgres tells nobody of an emptied table
            await asyncio.sleep(0.02)


async def published(broker: KafkaBroker, topics: Topics, count: int) -> list[dict[str, Any]]:
    with reading(broker.bootstrap, topics) as consumer:
        return await asyncio.to_thread(read_events, consumer, count)


async def test_events_reach_the_topic_and_their_rows_leave_the_outbox(
    start_relay: RelayStart, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    runs = some_runs(10)
    before = OUTBOX_EVENTS_PUBLISHED.labels("0")._value.get()
    async with ledger_pool.connection() as conn, start_relay():
        await put_in_outbox(conn, runs, 1, result='{"ok":true}')
        await wait_until_empty(conn)
        events = await published(kafka_broker, topics, 10)
    assert {event["runId"] for event in events} == {str(run_id) for run_id, _ in runs}
    assert {(event["type"], event["lane"], event["result"]) for event in events} == {
        ("run_leased", "normal", '{"ok":true}')
    }
    assert OUTBOX_EVENTS_PUBLISHED.labels("0")._value.get() - before == 10


async def test_a_relay_that_sleeps_is_woken_by_whoever_writes(
    start_relay: RelayStart, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    runs = some_runs(1)
    async with ledger_pool.connection() as conn, start_relay(NEVER_BY_ITSELF_S):
        for version in (1, 2):
            await wait_until_asleep(conn)
            await put_in_outbox(conn, runs, version)
            await wait_until_empty(conn)
        await wait_until_asleep(conn)
        events = await published(kafka_broker, topics, 2)
    assert [event["version"] for event in events] == [1, 2]


async def test_a_relay_does_not_fall_asleep_beside_a_writer(
    start_relay: RelayStart, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    """Who writes while the relay is awake tells nobody, and commits later than the relay looks."""
    async with ledger_pool.connection() as writer, ledger_pool.connection() as conn:
        async with start_relay(NEVER_BY_ITSELF_S) as relay:
            async with writer.transaction():
                await put_in_outbox(writer, some_runs(1), 1)
                async with asyncio.timeout(DEADLINE_S):
                    await relay.active.wait()
                await asyncio.sleep(0.5)  # time for a relay that would
                assert not await is_asleep(conn)
            await wait_until_empty(conn)
        assert len(await published(kafka_broker, topics, 1)) == 1


async def is_asleep(conn: Connection) -> bool:
    """Whether a relay of the test's ledger holds the lock under which it sleeps."""
    query = """
        SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database AND datname = current_database()
        WHERE locktype = 'advisory' AND objid::bigint = 2 ^ 32 - 2 AND mode = 'ExclusiveLock' AND granted
    """
    row = await (await conn.execute(query)).fetchone()
    return bool(row and row[0])


async def wait_until_asleep(conn: Connection) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await is_asleep(conn):  # noqa: ASYNC110 - Postgres tells nobody of a lock
            await asyncio.sleep(0.02)


async def test_every_run_keeps_the_order_of_its_events(
    start_relay: RelayStart, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    runs, versions = some_runs(8), range(1, 301)
    async with ledger_pool.connection() as conn, start_relay():
        for version in versions:
            await put_in_outbox(conn, runs, version)
        events = await published(kafka_broker, topics, len(runs) * len(versions))
    for run_id, _ in runs:
        assert [event["version"] for event in events if event["runId"] == str(run_id)] == list(versions)


async def test_each_event_is_in_the_partition_of_its_job(
    start_relay: RelayStart, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    runs = some_runs(12)
    async with ledger_pool.connection() as conn, start_relay():
        await put_in_outbox(conn, runs, 1)
        await wait_until_empty(conn)
    codec = Codec()
    found: dict[UUID, int] = {}
    with reading(kafka_broker.bootstrap, topics) as consumer:
        while len(found) < len(runs):
            message = await asyncio.to_thread(consumer.poll, 10)
            record = codec.decode(message.value())[1]
            assert record["partition"] == message.partition()
            found |= {UUID(event["runId"]): message.partition() for event in record["events"]}
    assert found == dict(runs)


async def test_one_relay_works_and_the_other_stands_by_until_it_stops(
    start_relay: RelayStart, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    runs = some_runs(4)
    async with ledger_pool.connection() as conn, contextlib.AsyncExitStack() as first_runs:
        first = await first_runs.enter_async_context(start_relay())
        async with asyncio.timeout(DEADLINE_S):
            await first.active.wait()
        async with start_relay() as second:
            await put_in_outbox(conn, runs, 1)
            await wait_until_empty(conn)
            async with asyncio.timeout(DEADLINE_S):
                await second.in_place.wait()
            assert not second.active.is_set()
            await first_runs.aclose()
            async with asyncio.timeout(DEADLINE_S):
                await second.active.wait()
            await put_in_outbox(conn, runs, 2)
            await wait_until_empty(conn)
        events = await published(kafka_broker, topics, 8)
    assert len(events) == len(without_repetitions(events)) == 8


async def test_a_relay_that_loses_its_session_goes_on_in_a_new_one(
    start_relay: RelayStart, ledger_dsn: str, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    runs = some_runs(4)
    async with ledger_pool.connection() as conn, start_relay() as relay:
        for version in range(1, 6):
            async with asyncio.timeout(DEADLINE_S):
                await relay.active.wait()
            await put_in_outbox(conn, runs, version)
            await end_relay_sessions(ledger_dsn)
            relay.active.clear()
        await wait_until_empty(conn)
        events = without_repetitions(await published(kafka_broker, topics, 20))
    for run_id, _ in runs:
        assert [event["version"] for event in events if event["runId"] == str(run_id)] == [1, 2, 3, 4, 5]


async def end_relay_sessions(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'fencepost-relay-%'"
        )


FROZEN = """
import asyncio, sys
from schemas.codec import Codec
from streams.outbox_relay import OutboxRelay
from streams.topics import Topics

async def main():
    relay = OutboxRelay(sys.argv[1], sys.argv[2], Topics(sys.argv[3]), Codec(), frozen_after_s=4)
    asyncio.get_running_loop().create_task(relay.active.wait()).add_done_callback(lambda _: print("active", flush=True))
    await relay.run(asyncio.Event())

asyncio.run(main())
"""


@pytest.mark.chaos
async def test_a_frozen_relay_loses_its_shard_and_spoils_nothing_when_it_wakes(
    start_relay: RelayStart, ledger_dsn: str, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    runs = some_runs(4)
    argv = [sys.executable, "-c", FROZEN, ledger_dsn, kafka_broker.bootstrap, topics.prefix]
    frozen = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    try:
        assert frozen.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            await frozen.stdout.readline()
        async with ledger_pool.connection() as conn, start_relay() as standby:
            await put_in_outbox(conn, runs, 1)
            await wait_until_empty(conn)
            frozen.send_signal(signal.SIGSTOP)
            await put_in_outbox(conn, runs, 2)
            async with asyncio.timeout(DEADLINE_S):
                await standby.active.wait()
            await wait_until_empty(conn)
            frozen.send_signal(signal.SIGCONT)
            await put_in_outbox(conn, runs, 3)
            await wait_until_empty(conn)
            events = without_repetitions(await published(kafka_broker, topics, 12))
            assert standby.active.is_set()
    finally:
        frozen.kill()
        await frozen.wait()
    for run_id, _ in runs:
        assert [event["version"] for event in events if event["runId"] == str(run_id)] == [1, 2, 3]


async def test_rows_published_but_not_deleted_come_again_under_the_same_ids(
    start_relay: RelayStart, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    async with ledger_pool.connection() as conn:
        await put_in_outbox(conn, some_runs(6), 1)
        killed = EventPublisher(kafka_broker.bootstrap, topics.run_events, Codec())
        killed.send(await read_outbox(conn, 10), [], "0")
        assert await asyncio.to_thread(killed.wait, DEADLINE_S) == 0
        async with start_relay():
            await wait_until_empty(conn)
            await put_in_outbox(conn, some_runs(PARTITIONS), 1)  # the last event of each partition
            await wait_until_empty(conn)
        events = await published(kafka_broker, topics, 6 + PARTITIONS)
    assert len(without_repetitions(events)) == 6 + PARTITIONS
    assert len(events) == 6 + 6 + PARTITIONS


async def test_audits_reach_the_topic_in_records_of_their_own_also_when_the_relay_sleeps(
    start_relay: RelayStart, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    async with ledger_pool.connection() as conn, start_relay(frozen_after_s=NEVER_BY_ITSELF_S) as relay:
        async with asyncio.timeout(DEADLINE_S):
            await relay.active.wait()
        for queue in ("mail", "sms"):
            await wait_until_asleep(conn)
            await pause_queue(conn, "acme", queue, "token-1")
            async with asyncio.timeout(DEADLINE_S):
                while (await outbox_lag(conn))[0]:  # noqa: ASYNC110 - Postgres tells nobody of an emptied table
                    await asyncio.sleep(0.02)
    with reading(kafka_broker.bootstrap, topics) as consumer:
        records = await asyncio.to_thread(consumer.consume, 2, DEADLINE_S)
    assert [record.key() for record in records] == [AUDIT_KEY] * 2
    told = [event for record in records for event in decode_audits(Codec(), record.value())]
    assert [each[2:] for each in told] == [
        ("acme", "token-1", "queue_paused", queue, None) for queue in ("mail", "sms")
    ]
    assert len({each.event_id for each in told}) == 2


@pytest.mark.apache_kafka(reason="tansu forgets everything when it stops")
async def test_while_kafka_is_away_rows_wait_and_relays_may_stop_and_start_and_they_follow_when_it_is_back(
    start_relay: RelayStart,
    ledger_pool: Pool,
    kafka_broker: KafkaBroker,
    topics: Topics,
    broker_away: Callable[[], None],
) -> None:
    runs = some_runs(4)
    async with ledger_pool.connection() as conn:
        async with start_relay() as relay:
            await put_in_outbox(conn, runs, 1)
            await wait_until_empty(conn)
            await asyncio.to_thread(broker_away)
            for version in range(2, 50):
                await put_in_outbox(conn, runs, version)
            await until(lambda: OUTBOX_ROWS.labels("0")._value.get() == 48)  # it tells while it waits for Kafka
            assert relay.active.is_set()
        assert len(await read_outbox(conn, 100)) == 48
        async with start_relay() as relay:
            async with asyncio.timeout(DEADLINE_S):
                await relay.active.wait()
            await asyncio.to_thread(kafka_broker.start)
            await wait_until_empty(conn)
            events = await published(kafka_broker, topics, 49 * 4)
    for run_id, _ in runs:
        assert [event["version"] for event in events if event["runId"] == str(run_id)] == list(range(1, 50))


@pytest.mark.apache_kafka(reason="tansu forgets everything when it stops")
async def test_a_broker_killed_in_full_flow_loses_and_reorders_nothing(
    start_relay: RelayStart, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    runs = some_runs(8)
    async with ledger_pool.connection() as conn, start_relay():
        for version in range(1, 301):
            await put_in_outbox(conn, runs, version)
            if version == 150:
                await asyncio.to_thread(kafka_broker.kill)
                await asyncio.to_thread(kafka_broker.start)
        await wait_until_empty(conn)
        events = without_repetitions(await published(kafka_broker, topics, 300 * 8))
    for run_id, _ in runs:
        assert [event["version"] for event in events if event["runId"] == str(run_id)] == list(range(1, 301))


async def test_a_relay_waits_for_a_ledger_that_is_away(kafka_broker: KafkaBroker, topics: Topics) -> None:
    relay = OutboxRelay("host=127.0.0.1 port=1 dbname=nowhere", kafka_broker.bootstrap, topics, Codec())
    stop = asyncio.Event()
    task = asyncio.create_task(relay.run(stop))
    done, _ = await asyncio.wait({task}, timeout=1.5)
    assert not done
    assert not relay.in_place.is_set()
    stop.set()
    async with asyncio.timeout(DEADLINE_S):
        await task


@pytest.mark.apache_kafka(reason="tansu has no limit to the size of records")
async def test_an_event_over_a_mebibyte_passes_and_holds_nobody_up(
    start_relay: RelayStart, ledger_pool: Pool, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    large = '"' + "".join(uuid4().hex for _ in range(40_000)) + '"'  # does not compress
    async with ledger_pool.connection() as conn, start_relay():
        await put_in_outbox(conn, some_runs(1), 1, result=large)
        await put_in_outbox(conn, some_runs(1), 1)
        await wait_until_empty(conn)
        events = await published(kafka_broker, topics, 2)
    assert max(len(event["result"]) for event in events) == len(large)


def test_a_refused_record_is_kafka_unavailable(kafka_broker: KafkaBroker) -> None:
    publisher = EventPublisher(kafka_broker.bootstrap, "test-no-topic", Codec())
    publisher._delivered(_RefusedByBroker(), None)
    with pytest.raises(KafkaUnavailable):
        publisher.wait(0)
    publisher.close()


class _RefusedByBroker:
    """Stands for confluent's KafkaError, which has no public constructor."""


@pytest.mark.parametrize(
    ("rows", "events", "size_bytes", "expected"),
    [
        (16, 16, 4_000, BATCH_MAX_ROWS),
        (16, 16_000, 4_000_000, 10),
        (16, 16, 64 * 1024 * 1024, 4),
        (1, 1_000, 64 * 1024 * 1024, 1),
    ],
)
def test_batches_follow_the_size_of_the_rows(rows: int, events: int, size_bytes: int, expected: int) -> None:
    records = [EventRecord(0, [b""] * events, size_bytes)]
    assert _next_batch_rows(rows, records) == expected
