"""One owner under one epoch: opening its memory, keeping time, ending leases, dropping all of it when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from ledger.completions import Completion, complete_runs
from ledger.fence import Takeover, api_transaction, owner_transaction, take_over
from ledger.leases import Beat, LeaseAsk, extend_leases, lease_runs
from schemas.commands import Command
from schemas.errors import KafkaUnavailable, LedgerUnavailable
from streams import opening, partition_owner
from streams.command_batch import apply_commands
from streams.metrics import EPOCHS_LOST, PARTITION_HALTED
from streams.partition_owner import PartitionOwner
from streams.rebuild import rebuild
from streams.timers import Position, Rhythm, to_us
from tests.streams.commands import create, inbox_at, job_on, raw
from tests.streams.conftest import OwnerSetting
from tests.streams.event_samples import produce_values
from tests.streams.ledger_dump import fetch
from tests.streams.timing_events import leased, scheduled
from tests.streams.waiting import until

PARTITION = 7


class Owned:
    """An owner, and what a test does around it."""

    def __init__(self, setting: OwnerSetting, takeover: Takeover) -> None:
        self.setting, self.fence = setting, takeover.fence
        inbox = inbox_at(takeover.consumed_offset)
        self.lost = asyncio.Event()
        self.owner = PartitionOwner(takeover, setting.around, inbox, lambda _: self.lost.set())
        self.memory = self.owner._memory

    def send(self, *commands: Command) -> None:
        for record in raw(PARTITION, commands, first_offset=self.owner.inbox.next_offset):
            self.owner.inbox.offer(record)

    async def apply(self, *commands: Command) -> None:
        """In the ledger, without the owner's knowing."""
        async with owner_transaction(self.setting.pool, self.fence) as tx:
            await apply_commands(tx, commands)

    async def make_due(self, *, max_attempts: int = 5) -> UUID:
        """A run that is due and known to the owner."""
        command = create(job_on(PARTITION), {"delaySeconds": 0}, max_attempts=max_attempts)
        self.send(command)
        await until(lambda: _has_run(self.setting, command.job_id))
        [run_id] = await fetch(self.setting.pool, "SELECT run_id FROM runs WHERE job_id = %s", command.job_id)
        await until(lambda: self.memory.state.waiting(run_id.bytes) is not None)
        return UUID(str(run_id))

    async def lease(self, run_id: UUID, visibility_s: float, *, tell: bool = True) -> int:
        """tell: fold its event, as the feed would."""
        async with api_transaction(self.setting.pool, [run_id]) as conn:
            [lease] = await lease_runs(conn, [LeaseAsk(run_id, self.fence.epoch, "w", visibility_s)])
        if tell:
            self.owner.fold([leased(run_id, 2, to_us(lease.lease_expires_at))], 1)
        return lease.lease_token

    async def go_rounds(self) -> None:
        """As the timekeeper has the owner do, and hurried; not by an owner that does not work."""
        while True:
            await asyncio.sleep(0.05)
            if self.owner._tasks:
                self.owner.go_round(self.setting.around.clock.now_us())

    def tick(self) -> int | None:
        return self.owner.tick(self.setting.around.clock.now_us())


async def _has_run(setting: OwnerSetting, job_id: UUID) -> bool:
    return bool(await fetch(setting.pool, "SELECT 1 FROM runs WHERE job_id = %s", job_id))


@asynccontextmanager
async def owning(setting: OwnerSetting, *, work: bool = True, release: bool = True) -> AsyncIterator[Owned]:
    owned = Owned(setting, await take_over(setting.pool, PARTITION, "me"))
    await owned.owner.open()
    rounds = asyncio.create_task(owned.go_rounds())
    if work:
        owned.owner.start()
    try:
        yield owned
    finally:
        rounds.cancel()
        await owned.owner.close(release=release)
    assert setting.crashes == []


async def _state(setting: OwnerSetting, run_id: UUID) -> str | None:
    rows = await fetch(setting.pool, "SELECT state FROM runs WHERE run_id = %s", run_id)
    return str(rows[0]) if rows else None


async def test_commands_become_runs_that_are_hinted_when_due(setting: OwnerSetting) -> None:
    async with owning(setting) as owned:
        run_id = await owned.make_due()
        owned.tick()
        assert setting.hints.sent == [(owned.fence.epoch, run_id)]
        owned.tick()
        assert len(setting.hints.sent) == 1


async def test_an_owner_closes_though_a_piece_of_its_work_has_swallowed_the_cancellation(
    setting: OwnerSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_owner, "CANCEL_AGAIN_S", 0.01)

    async def work() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async with owning(setting) as owned:
        owned.owner._begin(work(), "work")
        await asyncio.sleep(0)  # it is waiting
    assert await fetch(setting.pool, "SELECT owner FROM partitions WHERE partition = %s", PARTITION) == [None]


async def test_an_owner_goes_on_from_its_own_last_state_without_reading_the_ledger(
    setting: OwnerSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owning(setting) as owned:
        run_id = await owned.make_due()
    async with setting.pool.connection() as conn:
        await conn.execute("DELETE FROM outbox")  # all of it was told, and folded
    monkeypatch.setattr(opening, "rebuild", _must_not_be_called)
    owned = Owned(setting, await take_over(setting.pool, PARTITION, "me again"))
    assert await owned.owner.open() == 0
    assert owned.memory.state.position() == Position(owned.fence.epoch, 0)
    assert owned.memory.state.waiting(run_id.bytes) is not None
    await owned.owner.close(release=True)


async def _must_not_be_called(*_: object) -> None:
    raise AssertionError("the ledger was read")


async def test_a_state_of_an_older_epoch_is_rebuilt(setting: OwnerSetting) -> None:
    async with owning(setting) as owned:
        stale = await owned.make_due()
    between = await take_over(setting.pool, PARTITION, "another process")
    async with owner_transaction(setting.pool, between.fence) as tx:
        await apply_commands(tx, [create(fresh := job_on(PARTITION))])
        await tx.conn.execute("DELETE FROM runs WHERE run_id = %s", (stale,))
    async with owning(setting, work=False) as owned:
        [run_id] = await fetch(setting.pool, "SELECT run_id FROM runs WHERE job_id = %s", fresh)
        assert owned.memory.state.run_ids(b"", 10) == [run_id.bytes]


@pytest.mark.apache_kafka(reason="tansu tells wrong ends of topics that hold batches")
async def test_an_absent_state_is_rebuilt_and_goes_on_from_the_end_of_the_events(setting: OwnerSetting) -> None:
    await asyncio.to_thread(_produce_events, setting, 3)
    owned = Owned(setting, await take_over(setting.pool, PARTITION, "me"))
    await owned.apply(create(job_on(PARTITION)))
    assert await owned.owner.open() == 3
    assert len(owned.memory.state.run_ids(b"", 10)) == 1
    await owned.owner.close(release=True)


def _produce_events(setting: OwnerSetting, count: int) -> None:
    produce_values(setting.bootstrap, setting.topics.run_events, [b"event"] * count, PARTITION)


async def test_a_rebuild_that_was_cut_off_is_done_again(setting: OwnerSetting, monkeypatch: pytest.MonkeyPatch) -> None:
    async with owning(setting) as owned:
        await owned.make_due()
    await take_over(setting.pool, PARTITION, "another")
    owned = Owned(setting, await take_over(setting.pool, PARTITION, "me"))
    with monkeypatch.context() as patch:
        patch.setattr(opening, "rebuild", _cut_off)
        with pytest.raises(LedgerUnavailable):
            await owned.owner.open()
    assert owned.memory.state.position() is None
    await owned.owner.open()
    assert len(owned.memory.state.run_ids(b"", 10)) == 1
    await owned.owner.close(release=True)


async def _cut_off(*_: object) -> None:
    raise LedgerUnavailable("away")


async def test_a_zombie_s_first_write_ends_it_and_its_memory(setting: OwnerSetting) -> None:
    async with owning(setting) as zombie:
        await zombie.make_due()
        zombie.tick()
        await take_over(setting.pool, PARTITION, "another")
        before = await fetch(setting.pool, "SELECT * FROM jobs")
        zombie.send(create(job_on(PARTITION)))
        async with asyncio.timeout(20):
            await zombie.lost.wait()
        assert await fetch(setting.pool, "SELECT * FROM jobs") == before
    assert not (setting.folder / f"p-{PARTITION:04d}").exists()
    assert await fetch(setting.pool, "SELECT owner FROM partitions WHERE partition = %s", PARTITION) == ["another"]


async def test_a_check_finds_out_that_the_epoch_is_over(setting: OwnerSetting) -> None:
    async with owning(setting) as zombie:
        zombie.owner.check()
        await take_over(setting.pool, PARTITION, "another")
        zombie.owner.check()
        async with asyncio.timeout(20):
            await zombie.lost.wait()


async def test_an_owner_that_leaves_hints_on_until_it_has_a_successor_and_applies_nothing_more(
    setting: OwnerSetting,
) -> None:
    async with owning(setting) as leaving:
        run_id = await leaving.make_due()
        lost_before = EPOCHS_LOST._value.get()
        leaving.send(create(job_on(PARTITION)))  # has come, and nobody has looked at it yet
        leaving.owner.leave()
        leaving.send(create(job_on(PARTITION)))
        leaving.tick()
        assert setting.hints.sent == [(leaving.fence.epoch, run_id)]
        assert not leaving.lost.is_set()
        successor = await take_over(setting.pool, PARTITION, "another")
        async with asyncio.timeout(20):
            await leaving.lost.wait()
    assert successor.consumed_offset == 1
    assert await fetch(setting.pool, "SELECT count(*) FROM jobs") == [1]
    assert EPOCHS_LOST._value.get() == lost_before
    assert (setting.folder / f"p-{PARTITION:04d}").exists()


async def test_a_clean_close_releases_the_partition_and_keeps_the_state(setting: OwnerSetting) -> None:
    async with owning(setting):
        pass
    assert await fetch(setting.pool, "SELECT owner FROM partitions WHERE partition = %s", PARTITION) == [None]
    assert (setting.folder / f"p-{PARTITION:04d}").exists()


async def test_an_expired_lease_is_retried_and_the_run_hinted_again(setting: OwnerSetting) -> None:
    async with owning(setting) as owned:
        run_id = await owned.make_due()
        await owned.lease(run_id, 0.1)
        await until(lambda: _is(setting, run_id, "pending"))
        waiting = await _until_waiting(owned, run_id)
        [due_at] = await fetch(setting.pool, "SELECT due_at FROM runs WHERE run_id = %s", run_id)
        assert waiting == to_us(due_at)  # known without the feed
        owned.owner.tick(waiting)
        assert setting.hints.runs()[-1] == run_id


async def _until_waiting(owned: Owned, run_id: UUID) -> int:
    await until(lambda: owned.memory.state.waiting(run_id.bytes) is not None)
    waiting = owned.memory.state.waiting(run_id.bytes)
    assert waiting is not None
    return waiting[0]


async def _is(setting: OwnerSetting, run_id: UUID, state: str | None) -> bool:
    return await _state(setting, run_id) == state


async def test_a_lease_that_expires_on_the_last_attempt_buries_the_run(setting: OwnerSetting) -> None:
    async with owning(setting) as owned:
        run_id = await owned.make_due(max_attempts=1)
        await owned.lease(run_id, 0.1)
        await until(lambda: _is(setting, run_id, None))
        assert await fetch(setting.pool, "SELECT reason FROM dead_runs WHERE run_id = %s", run_id) == ["lease expired"]
        await until(lambda: owned.memory.state.run_ids(b"", 10) == [])


async def test_a_lease_that_heartbeats_extended_is_not_expired(setting: OwnerSetting) -> None:
    async with owning(setting) as owned:
        run_id = await owned.make_due()
        token = await owned.lease(run_id, 1.0)
        async with api_transaction(setting.pool, [run_id]) as conn:
            [extended] = await extend_leases(conn, [Beat(run_id, token, 60)])
        # The owner looks when the lease was to end, finds it extended, and moves its timer.
        expected = [(to_us(extended.lease_expires_at), run_id.bytes)]
        await until(lambda: owned.memory.state.expiring(1 << 62, 10) == expected)
        assert await _state(setting, run_id) == "leased"


async def test_a_completion_whose_event_was_lost_is_forgotten_when_its_lease_would_end(setting: OwnerSetting) -> None:
    async with owning(setting) as owned:
        run_id = await owned.make_due()
        token = await owned.lease(run_id, 0.5)
        async with api_transaction(setting.pool, [run_id]) as conn:
            assert [done.run_id for done in await complete_runs(conn, [Completion(run_id, token)])] == [run_id]
        await until(lambda: owned.memory.state.run_ids(b"", 10) == [])


async def test_a_lease_whose_event_was_lost_is_learned_by_the_sweep(
    setting: OwnerSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.partition_memory.REHINT_AFTER_US", 100_000)
    async with owning(setting) as owned:
        run_id = await owned.make_due()
        owned.tick()
        await owned.lease(run_id, 60, tell=False)
        await until(lambda: [each for _, each in owned.memory.state.expiring(1 << 62, 10)] == [run_id.bytes])
        assert setting.hints.runs() == [run_id]  # and it was not hinted again


async def test_a_run_that_nobody_leases_is_hinted_again_by_the_sweep(
    setting: OwnerSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.partition_memory.REHINT_AFTER_US", 100_000)
    async with owning(setting) as owned:
        run_id = await owned.make_due()
        owned.tick()
        await until(lambda: setting.hints.runs()[:3] == [run_id] * 3)


async def test_occurrences_are_decided_when_they_come_and_the_owner_knows_through_when(setting: OwnerSetting) -> None:
    async with owning(setting) as owned:
        start = datetime.now(UTC) - timedelta(seconds=90)
        owned.send(create(job_on(PARTITION), {"everySeconds": 60}, issued_at=start))
        await until(lambda: owned.memory.state.job_ids(b"", 1) != [])
        before_us = setting.around.clock.now_us()
        owned.tick()
        await until(lambda: _runs(setting, 2))
        await until(lambda: owned.owner.decider.decided_through_us() >= before_us)
        due = await fetch(setting.pool, "SELECT scheduled_for FROM runs ORDER BY 1")
        assert due == [start + timedelta(seconds=60), start + timedelta(seconds=120)]


async def _runs(setting: OwnerSetting, count: int) -> bool:
    return bool(await fetch(setting.pool, "SELECT 1 FROM runs HAVING count(*) = %s", count))


async def test_a_backlog_of_timers_is_not_said_to_be_decided_before_it_is(
    setting: OwnerSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.partition_memory.LOAD_LIMIT", 2)
    async with owning(setting, work=False) as owned:
        start = datetime.now(UTC) - timedelta(seconds=90)
        await owned.apply(*(create(job_on(PARTITION), {"everySeconds": 60}, issued_at=start) for _ in range(5)))
        owned.memory.clear()
        await rebuild(owned.memory, setting.pool, PARTITION)
        now_us = setting.around.clock.now_us()
        for _ in range(2):
            assert owned.owner.tick(now_us) == now_us
            assert owned.owner.decider._looked_through_us < now_us
        while owned.owner.tick(now_us) == now_us:
            pass
        assert owned.owner.decider._looked_through_us == now_us


async def test_a_partition_stands_still_while_its_rejections_find_no_broker_and_then_goes_on(
    setting: OwnerSetting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_owner, "APPLY_AGAIN_S", 0.05)
    reject, calls = setting.around.returns.reject, asyncio.Semaphore(0)
    away = True

    async def rejecting(rejections: object) -> None:
        calls.release()
        if away and rejections:
            raise KafkaUnavailable("no broker")
        await reject(rejections)  # type: ignore[arg-type]

    monkeypatch.setattr(setting.around.returns, "reject", rejecting)
    halted = PARTITION_HALTED.labels(PARTITION)
    async with owning(setting) as owned:
        for record in raw(PARTITION, [b"garbage", create(job_on(PARTITION))]):
            owned.owner.inbox.offer(record)
        await until(lambda: halted._value.get() == 1)
        await calls.acquire()
        assert await fetch(setting.pool, "SELECT count(*) FROM jobs") == [0]
        away = False
        await until(lambda: _runs(setting, 1))
        await until(lambda: halted._value.get() == 0)
    assert len(await setting.rejected(1)) == 1


async def test_what_an_owner_cannot_survive_ends_the_process_and_not_only_a_task(setting: OwnerSetting) -> None:
    owned = Owned(setting, await take_over(setting.pool, PARTITION, "me"))
    await owned.owner.open()
    owned.owner.start()
    owned.owner._applier.apply = _broken  # type: ignore[method-assign, assignment]
    owned.send(create(job_on(PARTITION)))
    await until(lambda: len(setting.crashes) == 1)
    await owned.owner.close(release=False)


def _broken(_: object) -> Callable[[], None]:
    raise ZeroDivisionError


async def test_events_that_come_after_all_change_nothing(setting: OwnerSetting) -> None:
    async with owning(setting) as owned:
        run_id = await owned.make_due()
        before = owned.memory.state.due(b"\x00" * 8, 1 << 62, 10)
        owned.owner.fold([scheduled(run_id, 1, 5)], 9)
        assert owned.memory.state.due(b"\x00" * 8, 1 << 62, 10) == before
        assert owned.memory.state.position() == Position(owned.fence.epoch, 9)


async def test_a_round_tells_when_a_lease_will_be_over_and_ends_it_then(setting: OwnerSetting) -> None:
    halves, seconds = Rhythm(500_000), Rhythm(1_000_000)
    async with owning(setting, work=False) as owned:
        now_us = setting.around.clock.now_us()
        assert owned.owner.go_round(now_us, halves, seconds) is None
        ends_us = halves.next_us(now_us) + 20_200_000
        owned.owner.fold([leased(uuid4(), 2, ends_us)], 1)
        assert owned.owner.go_round(now_us, halves, seconds) == ends_us + 300_000
        assert owned.owner.go_round(ends_us + 299_999, halves, seconds) == ends_us + 300_000
        assert owned.owner._tasks == set()
        assert owned.owner.go_round(ends_us + 300_000, halves, seconds) == ends_us + 800_000
        assert {task.get_name() for task in owned.owner._tasks} == {f"p{PARTITION} _expire"}


async def test_a_round_is_wanted_every_second_while_a_run_is_blocked_and_asks_once_in_it(setting: OwnerSetting) -> None:
    halves, seconds = Rhythm(500_000), Rhythm(1_000_000)
    async with owning(setting, work=False) as owned:
        second_us = seconds.next_us(setting.around.clock.now_us())
        owned.owner.go_round(second_us, halves, seconds)
        owned.owner._admissions.block(uuid4().bytes, uuid4().bytes)
        assert owned.owner.go_round(second_us + 900_000, halves, seconds) == second_us + 1_000_000
        assert owned.owner._tasks == set()
        assert owned.owner.go_round(second_us + 1_000_000, halves, seconds) == second_us + 2_000_000
        assert {task.get_name() for task in owned.owner._tasks} == {f"p{PARTITION} _sweep"}


async def test_a_round_in_which_nothing_has_come_begins_nothing(setting: OwnerSetting) -> None:
    async with owning(setting, work=False) as owned:
        owned.owner.go_round(setting.around.clock.now_us())
        assert owned.owner._tasks == set()
