"""The history projector on real Kafka."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from connectors.stack import KafkaBroker
from schemas.audits import AUDIT_KEY, AuditEvent, encode_audits
from schemas.codec import Codec
from streams.history_projector import HistoryProjector
from streams.history_store import HistoryStore
from streams.metrics import HISTORY_RECORDS_SKIPPED
from streams.topics import Topics
from tests.ledger_fixtures import IDLE_S
from tests.streams.event_samples import life_of, new_topics, produce_events, produce_values, run_event, run_row
from tests.streams.stored_history import read

DEADLINE_S = 30.0
Projecting = Callable[..., AbstractContextManager[HistoryProjector]]


@pytest.fixture
def topics(kafka_broker: KafkaBroker) -> Topics:
    return new_topics(kafka_broker.bootstrap)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    store = HistoryStore(tmp_path / "history.duckdb")
    yield store
    store.close()


@pytest.fixture
def projecting(kafka_broker: KafkaBroker, topics: Topics, store: HistoryStore) -> Projecting:
    """Runs a projector in a thread for the length of a `with` block, which fails if the projector did."""

    @contextmanager
    def running(keep_days: int | None = None) -> Iterator[HistoryProjector]:
        topic, bootstrap = topics.run_events, kafka_broker.bootstrap
        projector = HistoryProjector(
            store, bootstrap, topic, Codec(), gather_s=0.05, idle_s=IDLE_S, keep_days=keep_days
        )
        stop, errors = threading.Event(), list[Exception]()

        def run() -> None:
            try:
                projector.run(stop)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield projector
        finally:
            stop.set()
            thread.join(DEADLINE_S)
        assert not errors
        assert not thread.is_alive()

    return running


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def wait_for_events(store: HistoryStore, count: int) -> None:
    wait_until(lambda: read(store, "SELECT count(*) FROM store.run_events") == [(count,)])


def test_events_of_all_partitions_become_history(
    projecting: Projecting, store: HistoryStore, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    for partition in range(4):
        produce_events(kafka_broker.bootstrap, topics, life_of(UUID(int=partition + 1)), partition)
    with projecting():
        wait_for_events(store, 12)
        produce_events(kafka_broker.bootstrap, topics, life_of(UUID(int=9)), 2)
        wait_for_events(store, 15)
    assert read(store, "SELECT state, count(*) FROM store.runs GROUP BY ALL") == [("completed", 5)]
    assert read(store, 'SELECT DISTINCT "partition", topic_offset FROM store.run_events ORDER BY ALL') == [
        (0, 0),
        (1, 0),
        (2, 0),
        (2, 1),
        (3, 0),
    ]
    assert store.positions() == {0: 1, 1: 1, 2: 2, 3: 1}


def test_days_are_forgotten_and_sorted_as_time_goes_by(
    projecting: Projecting, store: HistoryStore, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    now = datetime.now(UTC)
    for number, days_ago in enumerate((40, 20, 2, 0), start=1):
        store.append([run_row(UUID(int=number), 1, "run_completed", at=now - timedelta(days=days_ago))], {0: 0})
    with projecting(keep_days=30):
        wait_until(lambda: read(store, "SELECT count(*) FROM store.run_events") == [(3,)])
        late = [run_event(UUID(int=n), 1, "run_dead", at=now - timedelta(days=days)) for n, days in ((8, 40), (9, 0))]
        produce_events(kafka_broker.bootstrap, topics, late)
        wait_until(lambda: read(store, "SELECT count(*) FROM store.run_events") == [(4,)])
    assert read(store, "SELECT sorted FROM store.event_days ORDER BY day")[0] == (True,)
    assert read(store, "SELECT count(*) FROM store.runs") == [(4,)]


def test_a_restarted_projector_reads_on_where_the_store_stands(
    projecting: Projecting, store: HistoryStore, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    for n in range(1, 4):
        produce_events(kafka_broker.bootstrap, topics, life_of(UUID(int=n)))
        with projecting():
            wait_for_events(store, 3 * n)
    assert store.positions() == {0: 3}


def test_events_published_twice_are_kept_once(
    projecting: Projecting, store: HistoryStore, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    for events in (life_of(UUID(int=1)), life_of(UUID(int=1)), life_of(UUID(int=2))):
        produce_events(kafka_broker.bootstrap, topics, events)
    with projecting():
        wait_until(lambda: store.positions() == {0: 3})
    assert read(store, "SELECT count(*), count(DISTINCT event_id) FROM store.run_events") == [(6, 6)]


def test_audits_are_kept_once_with_where_they_came_from(
    projecting: Projecting, store: HistoryStore, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    audits = [AuditEvent(f"audit-0-7-{n}", 5_000_000 + n, "acme", "t1", "job_paused", f"job {n}", None) for n in (0, 1)]
    value = encode_audits(Codec(), audits)
    produce_events(kafka_broker.bootstrap, topics, life_of(UUID(int=1)), 2)
    produce_values(kafka_broker.bootstrap, topics.run_events, [value, value], 2, key=AUDIT_KEY)
    before = HISTORY_RECORDS_SKIPPED._value.get()
    with projecting():
        wait_until(lambda: store.positions() == {2: 3})
    told = read(
        store, "SELECT * EXCLUDE (happened_at, topic_offset), epoch_us(happened_at) FROM store.audit ORDER BY 1"
    )
    assert told == [(f"audit-0-7-{n}", "acme", "t1", "job_paused", f"job {n}", None, 2, 5_000_000 + n) for n in (0, 1)]
    assert read(store, "SELECT count(*) FROM store.run_events") == [(3,)]
    assert HISTORY_RECORDS_SKIPPED._value.get() == before


def test_what_is_no_run_event_is_left_out_and_the_rest_goes_on(
    projecting: Projecting, store: HistoryStore, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    codec = Codec()
    hints = {"tenant": "acme", "queue": "q", "lane": "low", "partition": 0, "epoch": 1, "runIds": b""}
    nobody = [run_event(UUID(int=8), 1, "run_leased") | {"runId": "nobody"}]
    produce_values(
        kafka_broker.bootstrap,
        topics.run_events,
        [
            codec.encode("RunEvents", {"partition": 0, "events": life_of(UUID(int=1))}),
            b"",
            b"\x00\x00\x00\x00\x0c\xff",
            b"\x00\x00\x00\x00\x0c\x00\x02",
            codec.encode("RunEvents", {"partition": 0, "events": life_of(UUID(int=9))}) + b"\x00",
            codec.encode("ReadyHints", hints),
            codec.encode("RunEvents", {"partition": 0, "events": nobody}),
            codec.encode("RunEvents", {"partition": 0, "events": life_of(UUID(int=2))}),
        ],
    )
    before = HISTORY_RECORDS_SKIPPED._value.get()
    with projecting():
        wait_until(lambda: store.positions() == {0: 8})
    assert read(store, "SELECT count(*) FROM store.run_events") == [(6,)]
    assert HISTORY_RECORDS_SKIPPED._value.get() - before == 6


def test_records_of_another_build_become_the_same_history(
    projecting: Projecting, store: HistoryStore, kafka_broker: KafkaBroker, topics: Topics, monkeypatch: Any
) -> None:
    events = [life_of(UUID(int=n)) for n in (1, 2)]
    produce_events(kafka_broker.bootstrap, topics, events[0])
    with projecting():
        wait_for_events(store, 3)
    monkeypatch.setattr(Codec, "body_of", lambda *_: None)  # as for a record that another build wrote
    produce_events(kafka_broker.bootstrap, topics, events[1])
    with projecting():
        wait_for_events(store, 6)
    columns = "* EXCLUDE (event_id, run_id, topic_offset)"
    first, second = (
        read(store, f"SELECT {columns} FROM store.run_events WHERE topic_offset = {n} ORDER BY version") for n in (0, 1)
    )
    assert first == second


def test_the_lag_is_known_per_partition(
    projecting: Projecting, store: HistoryStore, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    produce_events(kafka_broker.bootstrap, topics, life_of(UUID(int=1)), 3)
    with projecting() as projector:
        assert projector.lag == {}
        wait_for_events(store, 3)
        wait_until(lambda: projector.lag == {0: 0, 1: 0, 2: 0, 3: 0})


def test_a_projector_waits_for_a_topic_that_is_not_there_yet(kafka_broker: KafkaBroker, store: HistoryStore) -> None:
    projector = HistoryProjector(store, kafka_broker.bootstrap, "test-not-there", Codec())
    stop = threading.Event()
    thread = threading.Thread(target=projector.run, args=(stop,))
    thread.start()
    thread.join(1.5)
    assert thread.is_alive()
    stop.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


@pytest.mark.apache_kafka(reason="tansu forgets everything when it stops")
def test_a_projector_goes_on_when_kafka_is_back(
    projecting: Projecting, store: HistoryStore, kafka_broker: KafkaBroker, topics: Topics
) -> None:
    produce_events(kafka_broker.bootstrap, topics, life_of(UUID(int=1)))
    with projecting():
        wait_for_events(store, 3)
        kafka_broker.kill()
        kafka_broker.start()
        produce_events(kafka_broker.bootstrap, topics, life_of(UUID(int=2)))
        wait_for_events(store, 6)


ROLE = """
import asyncio, sys
from pathlib import Path
from schemas.codec import Codec
from streams.history_service import HistoryRole
from streams.metrics import HISTORY_RECORDS_SKIPPED
from streams.topics import Topics

role = HistoryRole(sys.argv[1], Topics(sys.argv[2]), Codec(), Path(sys.argv[3]), "127.0.0.1", 0)
asyncio.run(role.run(asyncio.Event()))
"""


@pytest.mark.chaos
async def test_a_role_killed_again_and_again_keeps_every_event_once(
    kafka_broker: KafkaBroker, topics: Topics, tmp_path: Path
) -> None:
    path = tmp_path / "history.duckdb"
    argv = [sys.executable, "-c", ROLE, kafka_broker.bootstrap, topics.prefix, str(path)]
    producing = asyncio.create_task(asyncio.to_thread(_produce_lives, kafka_broker.bootstrap, topics, 2_000))
    for life_s in (1.5, 2.0, 2.5):
        role = subprocess.Popen(argv)  # noqa: ASYNC220 - killed within seconds
        await asyncio.sleep(life_s)
        role.kill()
        role.wait()
    await producing
    store = HistoryStore(path)
    projector = HistoryProjector(store, kafka_broker.bootstrap, topics.run_events, Codec())
    stop = threading.Event()
    last = asyncio.create_task(asyncio.to_thread(projector.run, stop))
    try:
        await asyncio.to_thread(wait_for_events, store, 6_000)
    finally:
        stop.set()
        await last
    assert read(store, "SELECT count(DISTINCT event_id) FROM store.run_events") == [(6_000,)]
    assert read(store, "SELECT state, count(*) FROM store.runs GROUP BY ALL") == [("completed", 2_000)]
    store.close()


def _produce_lives(bootstrap: str, topics: Topics, count: int) -> None:
    for first in range(1, count + 1, 20):
        events = [event for n in range(first, first + 20) for event in life_of(UUID(int=n))]
        produce_events(bootstrap, topics, events, partition=first // 20 % 4)
        time.sleep(0.05)


def test_a_projector_that_comes_round_no_more_is_told_by_its_silence(projecting: Projecting) -> None:
    def silent_s() -> float:
        told = REGISTRY.get_sample_value("fencepost_history_silent_seconds")
        assert told is not None
        return told

    with projecting() as projector:
        wait_until(lambda: projector.lag == {0: 0, 1: 0, 2: 0, 3: 0})
        before = silent_s()
    after = silent_s()
    wait_until(lambda: silent_s() > max(before, after))
