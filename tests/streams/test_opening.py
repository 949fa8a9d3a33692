"""What an owner begins with: its state of before, with what others did meanwhile, or the ledger."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from msgspec.structs import replace

from ledger.connection import Connection, Pool, session
from ledger.fence import owner_transaction
from ledger.outbox import Unpublished
from ledger.partitions import leave_untold
from ledger.restoration import declare_restored
from schemas.commands import OVERLAPS, Command
from schemas.errors import KafkaUnavailable, LedgerUnavailable
from schemas.ids import partition_of_job
from streams import kept_states, opening
from streams.command_batch import apply_commands
from streams.missed_events import Fold
from streams.partition_memory import PartitionMemory
from streams.rebuild import rebuild
from streams.timers import Position, decode_job
from streams.timing_store import iterate
from tests.ledger_fixtures import PARTITIONS
from tests.streams.commands import backfill, create, delete, job_on, pause, resume, trigger, update
from tests.streams.ledger_dump import fetch
from tests.streams.simulated_owner import PARTITION, Simulation, simulating

START = datetime(2026, 5, 1, 8, 29, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SCHEDULES: list[dict[str, Any]] = [
    {"everySeconds": 20}, {"cron": "*/2 * * * *"}, {"cron": "H * * * *"}, {"cron": "0 9 * * *", "zone": "Europe/Paris"}
]  # fmt: skip


class Cluster:
    """One owner at a time, each process with a folder of its own; what they tell is in the outbox, for ever."""

    def __init__(self, simulation: Simulation, folder: Path) -> None:
        self.simulation, self._folder = simulation, folder
        self.jobs: list[UUID] = []
        self.missed: list[int] = []  # how many events, each time
        self.rebuilt = 0
        self.lost = 0  # events that the topic does not have any more
        self.silent_from: int | None = None  # no event from there on comes
        self.is_published = True
        self.is_kafka_away = False
        simulation.missed_events, simulation.end_offset = self._read_missed, self._end

    async def become(self, name: str) -> None:
        """The process takes over, after whoever had the partition."""
        await self.simulation.stop()
        self.simulation.folder = self._folder / name
        await self.simulation.start()

    async def feed(self, behind: int) -> None:
        """Bring the owner all events but the last so many."""
        told = (await self.simulation.told())[: -behind or None]
        self.simulation.owner.fold(told, len(told))

    async def live(self, rng: random.Random, steps: int) -> None:
        """Whatever may become of jobs and runs, and a while between."""
        simulation = self.simulation
        for _ in range(steps):
            await simulation.apply(*self._commands(rng))
            await simulation.run_until(simulation.now + rng.choice([0, 7, 61]) * timedelta(seconds=1))
            leases = await simulation.lease(*rng.sample(due := await simulation.poll(), k=len(due) // 2))
            for lease in leases:
                if (outcome := rng.choice(["completed", "failed", "goes on"])) == "completed":
                    await simulation.complete(lease)
                elif outcome == "failed":
                    await simulation.fail(lease)
            await simulation.work()

    def _commands(self, rng: random.Random) -> list[Command]:
        if len(self.jobs) < 4 or rng.random() < 0.2:
            self.jobs.append(_job(rng))
            schedule = rng.choice([*SCHEDULES, {"delaySeconds": rng.randrange(200)}])
            return [create(self.jobs[-1], schedule, issued_at=self.simulation.now, overlap=rng.choice(OVERLAPS))]
        job_id, after = rng.choice(self.jobs), self.simulation.now - 5 * MINUTE
        choices: list[list[Command]] = [
            [update(job_id, rng.choice(SCHEDULES), overlap=rng.choice(OVERLAPS)) for _ in range(2)],
            [pause(job_id)], [resume(job_id)], [delete(job_id)], [trigger(job_id)],
            [backfill(job_id, after, after + MINUTE)],
        ]  # fmt: skip
        return rng.choice(choices)

    async def _end(self, _: int) -> int:
        if self.is_kafka_away:
            raise KafkaUnavailable("away")
        return len(await self.simulation.told())

    async def _read_missed(self, partition: int, offset: int, end: int, limit: int, fold: Fold) -> int | None:
        assert partition == PARTITION
        if offset == end:
            return end
        told = await self.simulation.told()
        assert limit == opening.MISSED_AT_LEAST
        if offset < self.lost:
            return None
        for at in range(offset, end):
            if at == self.silent_from:
                return None
            fold(told[at : at + 1], at + 1)
        self.missed.append(end - offset)
        return end


def _job(rng: random.Random) -> UUID:
    """A job id of the partition, the same each time."""
    while partition_of_job(job_id := UUID(int=rng.getrandbits(128), version=4), PARTITIONS) != PARTITION:
        pass
    return job_id


@pytest_asyncio.fixture
async def cluster(ledger_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """Process a has the partition."""
    async with simulating(ledger_pool, tmp_path / "a", START, monkeypatch) as simulation:
        cluster = Cluster(simulation, tmp_path)

        async def note_rebuild(memory: PartitionMemory, pool: Pool, partition: int) -> None:
            cluster.rebuilt += 1
            await rebuild(memory, pool, partition)

        async def oldest(_: Connection) -> Unpublished | None:
            return None if cluster.is_published else Unpublished(0, opening.OLD_S + 1)

        monkeypatch.setattr(opening, "rebuild", note_rebuild)
        monkeypatch.setattr(opening, "oldest_unpublished", oldest)
        yield cluster


def contents(memory: PartitionMemory) -> dict[bytes, bytes]:
    """What is remembered of jobs and runs."""
    return {key: value for key, value in iterate(memory.state._db, b"", b"\xff") if key[:1] not in b"poz"}


async def known(cluster: Cluster) -> dict[bytes, bytes]:
    """The same of the owner, without timers of paused jobs: the event of an edit does not tell that its job is paused,
    which is found out when its time comes."""
    paused = await fetch(cluster.simulation.pool, "SELECT job_id FROM jobs WHERE state = 'paused'")
    timed = {b"j" + job_id.bytes for job_id in paused}
    found = contents(cluster.simulation.owner._memory)
    return {key: found[key] for key in found if key not in timed and not (key[:1] == b"c" and b"j" + key[9:] in timed)}


async def from_the_ledger(cluster: Cluster, folder: Path) -> dict[bytes, bytes]:
    memory = PartitionMemory(folder)
    await rebuild(memory, cluster.simulation.pool, PARTITION)
    found = contents(memory)
    memory.close()
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_a_state_that_was_brought_up_to_date_is_what_a_rebuilt_one_would_be(
    cluster: Cluster, tmp_path: Path, seed: int
) -> None:
    await live_with_others(cluster, random.Random(seed), behind=0)
    assert (len(cluster.missed), cluster.rebuilt) == (1, 2)
    assert await known(cluster) == await from_the_ledger(cluster, tmp_path / "anew")


@pytest.mark.parametrize("seed", range(3))
async def test_so_it_is_when_the_first_events_are_of_what_the_owner_had_folded_as_it_wrote_it(
    cluster: Cluster, tmp_path: Path, seed: int
) -> None:
    """A cursor may be too low then, at which the ledger is asked."""
    await live_with_others(cluster, random.Random(seed), behind=25)
    assert (len(cluster.missed), cluster.rebuilt) == (1, 2)
    found, anew = await known(cluster), await from_the_ledger(cluster, tmp_path / "anew")
    jobs, jobs_anew = ({key: decode_job(each.pop(key)) for key in [*each] if key[:1] == b"j"} for each in (found, anew))
    assert [key for key in jobs if jobs[key].cursor_us > jobs_anew[key].cursor_us] == []
    assert {key: replace(job, cursor_us=0) for key, job in jobs.items()} == {
        key: replace(job, cursor_us=0) for key, job in jobs_anew.items()
    }
    runs, runs_anew = ({key: each[key] for key in each if key[:1] != b"c"} for each in (found, anew))
    assert runs == runs_anew


async def live_with_others(cluster: Cluster, rng: random.Random, *, behind: int) -> None:
    """Process a has the partition, then b and c, then a again."""
    await cluster.live(rng, 12)
    await cluster.feed(behind)
    for name in ("b", "c"):
        await cluster.become(name)
        await cluster.live(rng, 8)
    await cluster.become("a")


async def create_one(cluster: Cluster) -> UUID:
    """And tell of it."""
    job_id = job_on(PARTITION)
    await cluster.simulation.apply(create(job_id, {"cron": "H * * * *"}, issued_at=cluster.simulation.now))
    await cluster.feed(0)
    return job_id


async def return_of_a(cluster: Cluster) -> set[UUID]:
    """The jobs that it knows of, once it is back."""
    await cluster.become("a")
    return {UUID(bytes=job_id) for job_id in cluster.simulation.owner._memory.state.job_ids(b"", 1_000)}


async def test_only_what_happened_since_is_folded(cluster: Cluster) -> None:
    first = await create_one(cluster)
    await cluster.become("b")
    second = await create_one(cluster)
    assert await return_of_a(cluster) == {first, second}
    assert await return_of_a(cluster) == {first, second}
    assert (cluster.missed, cluster.rebuilt) == ([2], 1)  # a job, and its run


async def test_what_an_owner_committed_as_it_was_killed_is_known_before_it_works_again(cluster: Cluster) -> None:
    """Though nobody else has had the partition: it did not live to remember it, and the relay may be slow to tell."""
    first, second = await create_one(cluster), job_on(PARTITION)
    async with cluster.simulation.transaction() as tx:
        await apply_commands(tx, [create(second, {"cron": "H * * * *"}, issued_at=cluster.simulation.now)])
    assert await return_of_a(cluster) == {first, second}
    assert (cluster.missed, cluster.rebuilt) == ([2], 0)


async def test_what_an_owner_did_of_whom_no_event_tells_is_read_from_the_ledger(cluster: Cluster) -> None:
    first = await create_one(cluster)
    await cluster.become("b")
    second = await create_one(cluster)
    async with owner_transaction(cluster.simulation.pool, cluster.simulation.fence) as tx:
        await leave_untold(tx)
    assert await return_of_a(cluster) == {first, second}
    assert (cluster.missed, cluster.rebuilt) == ([], 2)


async def test_after_a_backup_was_restored_a_state_is_rebuilt_that_is_ahead_of_it(cluster: Cluster) -> None:
    """Though nobody else has owned the partition."""
    first, after_backup = await create_one(cluster), job_on(PARTITION)
    lost = [event for event in await cluster.simulation.told() if event.run_id is None]
    cluster.simulation.owner.fold([event._replace(job_id=after_backup.bytes) for event in lost], 3)
    async with session(cluster.simulation.pool) as conn:
        await declare_restored(conn)
    assert await return_of_a(cluster) == {first}
    assert (cluster.missed, cluster.rebuilt) == ([], 1)


async def test_after_a_backup_was_restored_every_state_is_rebuilt(cluster: Cluster) -> None:
    """It may know of what was after the backup."""
    first = await create_one(cluster)
    await cluster.become("b")
    async with session(cluster.simulation.pool) as conn:
        await declare_restored(conn)
    await cluster.become("c")
    assert await return_of_a(cluster) == {first}
    assert (cluster.missed, cluster.rebuilt) == ([], 3)


async def test_a_state_whose_writer_is_not_known_is_rebuilt(cluster: Cluster) -> None:
    """As one that another build or another installation wrote."""
    first = await create_one(cluster)
    cluster.simulation.owner._memory.state.set_owner("somebody of another ledger")
    await cluster.become("b")
    assert await return_of_a(cluster) == {first}
    assert (cluster.missed, cluster.rebuilt) == ([], 2)


async def test_a_state_of_another_installation_is_rebuilt_though_its_epoch_is_the_one_before(cluster: Cluster) -> None:
    first = await create_one(cluster)
    state = cluster.simulation.owner._memory.state
    state.set_owner("somebody of another ledger")
    state.forget_job(first.bytes)
    assert await return_of_a(cluster) == {first}
    assert (cluster.missed, cluster.rebuilt) == ([], 1)


async def test_a_state_that_an_older_build_wrote_is_gone_on_from_when_nobody_else_had_the_partition(
    cluster: Cluster,
) -> None:
    first = await create_one(cluster)
    cluster.simulation.owner._memory.state._db.delete(b"o")
    assert await return_of_a(cluster) == {first}
    assert cluster.rebuilt == 0
    cluster.simulation.owner._memory.state._db.delete(b"o")
    await cluster.become("b")
    assert await return_of_a(cluster) == {first}
    assert (cluster.missed, cluster.rebuilt) == ([], 2)


async def test_more_events_than_are_worth_reading_are_not_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "EVENTS_A_RECORD", opening.MISSED_AT_LEAST // 3)
    first = await create_one(cluster)
    await cluster.become("b")
    second = await create_one(cluster)
    assert await return_of_a(cluster) == {first, second}
    assert (cluster.missed, cluster.rebuilt) == ([2], 1)
    await cluster.become("b")
    jobs = {await create_one(cluster) for _ in range(2)}
    assert await return_of_a(cluster) == {first, second, *jobs}
    assert cluster.rebuilt == 2


async def test_when_kafka_falls_silent_the_ledger_is_read_and_what_happens_meanwhile_comes_after_it(
    cluster: Cluster,
) -> None:
    first = await create_one(cluster)
    await cluster.become("b")
    second = await create_one(cluster)
    cluster.silent_from = 3
    assert await return_of_a(cluster) == {first, second}
    assert (cluster.missed, cluster.rebuilt) == ([], 2)
    assert position(cluster).offset == 4


async def test_while_kafka_is_away_the_ledger_is_read_and_what_others_did_comes_once_more(
    cluster: Cluster, tmp_path: Path
) -> None:
    first = await create_one(cluster)
    await cluster.become("b")
    second = await create_one(cluster)
    cluster.is_kafka_away = True
    assert await return_of_a(cluster) == {first, second}
    assert (cluster.missed, cluster.rebuilt) == ([], 2)
    assert position(cluster) == Position(cluster.simulation.fence.epoch, 2)
    cluster.simulation.owner.fold((await cluster.simulation.told())[2:], 4)
    assert await known(cluster) == await from_the_ledger(cluster, tmp_path / "anew")


async def test_without_a_state_of_use_kafka_is_waited_for(cluster: Cluster) -> None:
    """Where its events go on nobody knows."""
    first = await create_one(cluster)
    cluster.is_kafka_away = True
    with pytest.raises(KafkaUnavailable):
        await cluster.become("b")
    cluster.is_kafka_away = False
    await cluster.simulation.owner.open()
    assert await return_of_a(cluster) == {first}


def position(cluster: Cluster) -> Position:
    found = cluster.simulation.owner._memory.state.position()
    assert found is not None
    return found


async def test_while_events_wait_for_kafka_the_ledger_is_read(cluster: Cluster) -> None:
    first = await create_one(cluster)
    await cluster.become("b")
    second = await create_one(cluster)
    cluster.is_published = False
    assert await return_of_a(cluster) == {first, second}
    assert (cluster.missed, cluster.rebuilt) == ([], 2)


async def test_a_state_whose_next_events_are_gone_is_rebuilt(cluster: Cluster) -> None:
    first = await create_one(cluster)
    await cluster.become("b")
    second = await create_one(cluster)
    cluster.lost = 4
    assert await return_of_a(cluster) == {first, second}
    assert (cluster.missed, cluster.rebuilt) == ([], 2)


async def test_a_state_that_was_brought_up_to_date_is_its_owner_s_from_then_on(cluster: Cluster) -> None:
    first = await create_one(cluster)
    for _ in range(2):
        await cluster.become("b")
        assert await return_of_a(cluster) == {first}
    assert position(cluster) == Position(cluster.simulation.fence.epoch, 2)
    assert cluster.simulation.owner._memory.state.owner() == cluster.simulation.fence.owner
    assert (cluster.missed, cluster.rebuilt) == ([], 1)


async def test_the_group_is_told_of_the_states_that_are_kept(cluster: Cluster, tmp_path: Path) -> None:
    epoch = cluster.simulation.fence.epoch
    assert kept_states.kept_epochs(tmp_path / "a") == {PARTITION: epoch}
    await cluster.become("b")
    assert kept_states.kept_epochs(tmp_path / "a") == {PARTITION: epoch}
    await cluster.simulation.owner.close(release=True, forget=True)
    assert kept_states.kept_epochs(tmp_path / "b") == {}
    await cluster.simulation.start()
    assert kept_states.kept_epochs(tmp_path / "b") == {PARTITION: epoch + 2}


async def test_a_state_that_is_being_rebuilt_is_none(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut_off(*_: object) -> None:
        raise LedgerUnavailable("away")

    await create_one(cluster)
    await cluster.become("b")
    cluster.is_published = False
    with monkeypatch.context() as patch:
        patch.setattr(opening, "rebuild", cut_off)
        with pytest.raises(LedgerUnavailable):
            await cluster.become("a")
        assert kept_states.kept_epochs(tmp_path / "a") == {}
    await cluster.simulation.owner.open()
