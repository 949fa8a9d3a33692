"""Whole streams roles on real Kafka and Postgres: sharing, handing over, joining, starting over."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from faust.assignor import PartitionAssignor
from prometheus_client import REGISTRY

from connectors.stack import KafkaBroker
from ledger.connection import Connection, Pool
from ledger.outbox import Unpublished, oldest_unpublished
from schemas.codec import Codec
from streams import faust_app, opening, topic_ends
from streams.faust_app import FETCHER_LOOK_S, SETTLING_LOOK_S
from streams.opening import Opening
from streams.ownership import Ownership
from streams.partition_owner import PartitionOwner
from streams.rejections import RawCommand
from streams.streams_role import StreamsRole
from streams.topics import READY_PARTITIONS, create_topics
from tests.ledger_fixtures import PARTITIONS
from tests.streams.commands import create, job_on, wire
from tests.streams.ledger_dump import dump, fetch
from tests.streams.roles import ALL, MEMBERSHIP_KNOWN_S, Streams, toggling
from tests.streams.waiting import DEADLINE_S, until

# What owning and reading change in the ledger without any command taking effect.
OF_OWNERS = ("epoch", "owner", "owner_since", "decided_through")


@pytest.fixture
def streams(ledger_dsn: str, ledger_pool: Pool, kafka_broker: KafkaBroker, tmp_path: Path) -> Streams:
    streams = Streams(ledger_dsn, ledger_pool, kafka_broker.bootstrap, tmp_path)
    create_topics(streams.bootstrap, streams.topics, PARTITIONS)
    return streams


@pytest.mark.apache_kafka(reason="on tansu a join waits for half the session timeout")
async def test_two_roles_share_the_partitions_and_one_that_stops_hands_over_at_once(streams: Streams) -> None:
    async with streams.role("a") as a, toggling(streams) as toggles:
        async with streams.role("b", session_timeout_s=2 * DEADLINE_S) as b:
            await until(lambda: len(a.partitions()) == len(b.partitions()) == PARTITIONS // 2)
            assert sorted(a.partitions() + b.partitions()) == ALL
            assert {status.owner for status in await streams.partitions()} == {a.nonce, b.nonce}
            rounds = toggles.rounds
            await until(lambda: toggles.rounds > rounds + 2)
        await until(lambda: a.partitions() == ALL)  # which gives up long before the group would give b up
        rounds = toggles.rounds
        await until(lambda: toggles.rounds > rounds + 2)


async def test_a_fetcher_looks_as_often_as_ever_from_a_rebalance_s_beginning_until_it_is_settled(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that ends just as a rebalance cancels it is taken for one under way until the fetcher looks again."""
    monkeypatch.setattr(faust_app, "SETTLING_S", 0.01)
    periods_s, look_every = list[float](), faust_app._ConsumerThread._look_every

    def noting(thread: faust_app._ConsumerThread, period_s: float) -> None:
        look_every(thread, period_s)
        periods_s.append(thread._fetcher()._fetcher_timeout)

    monkeypatch.setattr(faust_app._ConsumerThread, "_look_every", noting)
    async with streams.role("a"):
        await until(lambda: periods_s[:2] == [SETTLING_LOOK_S, FETCHER_LOOK_S])


async def test_a_third_role_gets_its_share_and_the_others_keep_theirs_undisturbed(streams: Streams) -> None:
    async with streams.role("a") as a, streams.role("b") as b, toggling(streams):
        await until(lambda: len(a.partitions()) == len(b.partitions()) == PARTITIONS // 2)
        before = await streams.partitions()
        async with streams.role("c") as c:
            await until(lambda: len(c.partitions()) >= PARTITIONS // 4)
            await until(lambda: sorted(a.partitions() + b.partitions() + c.partitions()) == ALL)
            after = await streams.partitions()
            kept = [new for old, new in zip(before, after, strict=True) if old.owner == new.owner]
            assert len(kept) >= PARTITIONS // 2
            assert all(new.epoch == before[new.partition].epoch for new in kept)
            moved = [new for new in after if new.owner == c.nonce]
            assert all(new.epoch == before[new.partition].epoch + 1 for new in moved)
        await until(lambda: sorted(a.partitions() + b.partitions()) == ALL)


@dataclass
class Rebuilds:
    """Which states were read from the ledger: (process, partition)."""

    seen: list[tuple[str, int]] = field(default_factory=list)

    def of(self, name: str) -> list[int]:
        return [partition for process, partition in self.seen if process == name]


@pytest.fixture
def rebuilds(monkeypatch: pytest.MonkeyPatch) -> Rebuilds:
    rebuilds, rebuild = Rebuilds(), Opening._rebuild

    async def noting(self: Opening, offset: int) -> int:
        rebuilds.seen.append((self._folder.parent.name, self._fence.partition))
        return await rebuild(self, offset)

    monkeypatch.setattr(Opening, "_rebuild", noting)
    monkeypatch.setattr(opening, "OLD_S", DEADLINE_S)
    return rebuilds


@pytest.mark.parametrize(("first", "second"), ["ab", "ba"])
async def test_roles_that_restart_together_have_again_what_they_had_and_go_on_from_their_own_state(
    streams: Streams, rebuilds: Rebuilds, first: str, second: str
) -> None:
    """Also the one that comes later: until then the other one has all partitions, and works on them."""
    shares: dict[str, list[int]] = {}
    stop = asyncio.Event()
    async with streams.relay():
        async with streams.role("a", stop=stop) as a, streams.role("b", stop=stop) as b:
            streams.produce([create(job_on(partition)) for partition in ALL])
            await until(lambda: streams.consumed(PARTITIONS))
            await until(lambda: len(a.partitions()) == len(b.partitions()) == PARTITIONS // 2)
            shares |= {"a": a.partitions(), "b": b.partitions()}
            stop.set()
        rebuilds.seen.clear()
        async with streams.role(first) as one:
            await until(lambda: one.partitions() == ALL)
            streams.produce([create(job_on(partition)) for partition in ALL])
            await until(lambda: streams.consumed(2 * PARTITIONS))
            async with streams.role(second) as other:
                await until(lambda: len(other.partitions()) == PARTITIONS // 2)
                await until(lambda: sorted(one.partitions() + other.partitions()) == ALL)
                assert (one.partitions(), other.partitions()) == (shares[first], shares[second])
                await until(lambda: len(one.owners()) == PARTITIONS // 2)  # it sees that it has been replaced
                assert [len(_known_runs(owner)) for owner in (*one.owners(), *other.owners())] == [2] * PARTITIONS
    assert set(rebuilds.of(first)) <= set(shares[second])
    assert rebuilds.of(second) == []


def _known_runs(owner: PartitionOwner) -> list[bytes]:
    return owner._memory.state.run_ids(b"", 1_000)


async def test_one_that_joins_takes_its_even_share_and_what_it_leaves_the_others_go_on_with(
    streams: Streams, rebuilds: Rebuilds
) -> None:
    async with streams.relay(), streams.role("a") as a, streams.role("b") as b:
        await until(lambda: len(a.partitions()) == len(b.partitions()) == PARTITIONS // 2)
        before = {"a": a.partitions(), "b": b.partitions()}
        async with streams.role("c") as c:
            await until(
                lambda: sorted(a.partitions() + b.partitions() + c.partitions()) == ALL and c.partitions() != []
            )
            assert sorted(len(role.partitions()) for role in (a, b, c)) == [5, 5, 6]
            assert set(a.partitions()) < set(before["a"])
            assert set(b.partitions()) < set(before["b"])
            rebuilds.seen.clear()
        await until(lambda: (a.partitions(), b.partitions()) == (before["a"], before["b"]))
        assert rebuilds.seen == []


async def test_while_the_relay_is_away_no_partition_waits_for_it(
    streams: Streams, rebuilds: Rebuilds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its states are of older epochs, and what another has done since waits for Kafka."""
    async with streams.role("a") as a:
        await until(lambda: a.partitions() == ALL)
    async with streams.role("b") as b:
        streams.produce([create(job_on(partition)) for partition in ALL])
        await until(lambda: b.partitions() == ALL)
        await until(lambda: streams.consumed(PARTITIONS))
    await fetch(streams.pool, "UPDATE outbox SET at = at - interval '1 hour' RETURNING id")
    looks = list[Unpublished | None]()

    async def looking(conn: Connection) -> Unpublished | None:
        looks.append(await oldest_unpublished(conn))
        return looks[-1]

    monkeypatch.setattr(opening, "oldest_unpublished", looking)
    rebuilds.seen.clear()
    async with streams.role("a") as a:
        await until(lambda: a.partitions() == ALL)
        assert len(looks) == PARTITIONS  # one each
        assert sorted(rebuilds.of("a")) == ALL
        assert [len(_known_runs(owner)) for owner in a.owners()] == [1] * PARTITIONS


@pytest.mark.parametrize("old_first", [True, False])
async def test_a_process_with_faust_s_own_assignor_is_in_the_group_too(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, old_first: bool
) -> None:
    """A rolling upgrade. Whoever is first leads; once it has gone, the other one does."""

    @asynccontextmanager
    async def old() -> AsyncIterator[Ownership]:
        with monkeypatch.context() as patch:
            patch.setattr(faust_app, "StickyAssignor", PartitionAssignor)
            async with streams.role("old") as role:
                await until(lambda: len(role.partitions()) >= PARTITIONS // 2)
                patch.undo()
                yield role

    first, second = (old(), streams.role("new")) if old_first else (streams.role("new"), old())
    async with AsyncExitStack() as leaving:
        one = await leaving.enter_async_context(first)
        await until(lambda: one.partitions() == ALL)
        async with second as two:
            await until(lambda: len(one.partitions()) == len(two.partitions()) == PARTITIONS // 2)
            assert sorted(one.partitions() + two.partitions()) == ALL
            await leaving.aclose()
            await until(lambda: two.partitions() == ALL)


async def test_partitions_in_which_nothing_comes_due_are_decided_through_a_moment_ago(streams: Streams) -> None:
    async with streams.role("a") as a:
        await until(lambda: a.partitions() == ALL)
        [now] = await fetch(streams.pool, "SELECT clock_timestamp()")
        await until(lambda: _all_are_decided_through(streams, now))
        assert min(_gauge(partition) or 0 for partition in ALL) >= now.timestamp()
    assert [_gauge(partition) for partition in ALL] == [None] * PARTITIONS


def _gauge(partition: int) -> float | None:
    """Up to when the partition is decided, as its owner tells who looks."""
    return REGISTRY.get_sample_value("fencepost_decided_through_seconds", {"partition": str(partition)})


async def _all_are_decided_through(streams: Streams, instant: datetime) -> bool:
    return all(status.decided_through >= instant for status in await streams.partitions())


async def test_reading_every_command_again_from_offset_0_changes_nothing(streams: Streams) -> None:
    async with streams.role("a"), toggling(streams) as toggles:
        await until(lambda: toggles.rounds > 3)
    assert all(status.owner is None for status in await streams.partitions())
    before = await dump(streams.pool, *OF_OWNERS)
    async with streams.pool.connection() as conn:
        await conn.execute("UPDATE partitions SET consumed_offset = 0")
    async with streams.role("a"):
        await until(lambda: streams.consumed(toggles.records))
    assert await dump(streams.pool, *OF_OWNERS) == before


async def test_deleting_all_timing_state_changes_nothing_and_runs_still_fire(streams: Streams) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=4)
    jobs = [job_on(partition) for partition in ALL]
    at = soon.isoformat().replace("+00:00", "Z")
    async with streams.role("a"):
        streams.produce([create(job_id, {"runAt": at}) for job_id in jobs])
        await until(lambda: streams.consumed(PARTITIONS))
    before = await dump(streams.pool, *OF_OWNERS)
    shutil.rmtree(streams.folder / "a")
    async with streams.role("a") as again:
        await until(lambda: again.partitions() == ALL)
        assert await dump(streams.pool, *OF_OWNERS) == before
        hinted = await asyncio.to_thread(read_hints, streams, PARTITIONS)
    assert hinted == set(await fetch(streams.pool, "SELECT run_id FROM runs"))
    assert datetime.now(UTC) >= soon


def read_hints(streams: Streams, count: int) -> set[UUID]:
    """The runs that are hinted, until there are `count`."""
    consumer = Consumer({"bootstrap.servers": streams.bootstrap, "group.id": uuid4().hex})
    consumer.assign([TopicPartition(streams.topics.ready, p, OFFSET_BEGINNING) for p in range(READY_PARTITIONS)])
    hinted: set[UUID] = set()
    until_at = datetime.now(UTC) + timedelta(seconds=30)
    while len(hinted) < count and datetime.now(UTC) < until_at:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            ids = Codec().decode(message.value())[1]["runIds"]
            hinted |= {UUID(bytes=ids[start : start + 16]) for start in range(0, len(ids), 16)}
    consumer.close()
    return hinted


async def test_a_job_that_repeats_fires_on_time_again_and_again(streams: Streams) -> None:
    async with streams.role("a") as a, streams.relay():
        await until(lambda: a.partitions() == ALL)
        streams.produce([create(job_on(4), {"everySeconds": 1}), create(job_on(5), {"everySeconds": 1})])
        await until(lambda: _runs(streams, 8))
        occurrences = await fetch(streams.pool, "SELECT job_id, scheduled_for FROM runs ORDER BY 1, 2")
    for job_id in {job_id for job_id, _ in occurrences}:
        times = [at for each, at in occurrences if each == job_id]
        assert {later - earlier for earlier, later in itertools.pairwise(times)} == {timedelta(seconds=1)}


async def _runs(streams: Streams, count: int) -> bool:
    return bool((await fetch(streams.pool, "SELECT count(*) FROM runs"))[0] >= count)


async def test_bad_records_do_not_stop_what_follows(streams: Streams) -> None:
    producer = Producer({"bootstrap.servers": streams.bootstrap})
    async with streams.role("a"):
        producer.produce(streams.topics.commands, b"not ours", partition=3)
        producer.produce(streams.topics.commands, None, key=b"tombstone", partition=3)
        assert producer.flush(10) == 0
        streams.produce([create(job_on(3))])
        await until(lambda: streams.consumed(3))
    assert await fetch(streams.pool, "SELECT count(*) FROM jobs") == [1]


async def test_a_last_command_that_got_lost_on_its_way_is_read_again(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later record of its partition tells that it is missing."""
    receive = Ownership.receive
    lost: list[tuple[int, int]] = []

    def lose_the_first(ownership: Ownership, record: RawCommand) -> None:
        if not lost:
            lost.append((record.partition, record.offset))
        else:
            receive(ownership, record)

    monkeypatch.setattr(Ownership, "receive", lose_the_first)
    async with streams.role("a"):
        streams.produce([create(job_on(3))])
        await until(lambda: streams.consumed(1))
    assert lost == [(3, 0)]


@pytest.mark.apache_kafka(reason="tansu stores batches as they come")
async def test_commands_are_read_however_their_producer_compresses(streams: Streams) -> None:
    jobs = [create(job_on(3), payload='"' + "x" * 5_000 + '"') for _ in range(5)]
    for command, codec in zip(jobs, ("none", "gzip", "snappy", "lz4", "zstd"), strict=True):
        producer = Producer({"bootstrap.servers": streams.bootstrap, "compression.type": codec})
        producer.produce(streams.topics.commands, wire(command), partition=3)
        assert producer.flush(10) == 0
    async with streams.role("a"):
        await until(lambda: streams.consumed(5))
    assert await fetch(streams.pool, "SELECT count(*) FROM jobs") == [5]


async def test_a_role_waits_for_a_broker_that_is_away_and_can_be_stopped_meanwhile(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topic_ends, "TIMEOUT_S", 0.3)
    role = StreamsRole("a", streams.dsn, "127.0.0.1:1", streams.topics, Codec(), streams.folder)
    stop = asyncio.Event()
    task = asyncio.create_task(role.run(stop))
    await until(lambda: "waiting for Kafka" in caplog.text)
    stop.set()
    async with asyncio.timeout(10):
        await task


async def test_a_crash_of_faust_ends_the_role_instead_of_leaving_it_idle(streams: Streams) -> None:
    ownership = Ownership("a", MEMBERSHIP_KNOWN_S)
    role = StreamsRole("a", streams.dsn, streams.bootstrap, streams.topics, Codec(), streams.folder)
    task = asyncio.create_task(role.run(asyncio.Event(), ownership))
    await until(lambda: ownership.partitions() == ALL)
    ownership.assign = _fail  # type: ignore[method-assign, assignment]
    async with streams.role("b"):  # makes a rebalance
        with pytest.raises(RuntimeError, match="out of order"):
            async with asyncio.timeout(30):
                await task


def _fail(_: object) -> None:
    raise RuntimeError("out of order")
