"""Which partitions a process owns, through assignments, losses, takeovers that fail, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from ledger.fence import take_over
from schemas.errors import KafkaUnavailable, LedgerMismatch, LedgerUnavailable
from streams import opening
from streams import ownership as ownership_module
from streams.ownership import Ownership
from streams.partition_owner import PartitionOwner
from streams.rejections import RawCommand
from streams.zone_moves import follow_zone_rules
from tests.streams.commands import create, job_on, wire
from tests.streams.conftest import OwnerSetting
from tests.streams.ledger_dump import fetch
from tests.streams.waiting import DEADLINE_S, until


class Reads:
    """How the commands topic and the feed are read, as the ownership asks."""

    def __init__(self) -> None:
        self.commands: list[int] = []
        self.events: dict[int, int] = {}

    def read_next(self, partition: int) -> None:
        self.commands.append(partition)

    def assign(self, partition: int, offset: int) -> None:
        self.events[partition] = offset

    def unassign(self, partition: int) -> None:
        self.events.pop(partition, None)


@pytest.fixture
def reads() -> Reads:
    return Reads()


@pytest_asyncio.fixture
async def owned(setting: OwnerSetting, reads: Reads) -> AsyncIterator[Ownership]:
    async with _ownership(setting, reads) as ownership:
        yield ownership


@asynccontextmanager
async def _ownership(setting: OwnerSetting, reads: Reads) -> AsyncIterator[Ownership]:
    ownership = Ownership("a", membership_known_s=0.1)
    ownership.around_of, ownership.read_next = lambda _: setting.around, reads.read_next
    ownership.feed = reads  # type: ignore[assignment]
    yield ownership
    await ownership.close()
    assert setting.crashes == []


async def owners(setting: OwnerSetting) -> dict[int, str | None]:
    rows = await fetch(setting.pool, "SELECT partition, owner FROM partitions WHERE partition < 4")
    return dict(rows)


async def takeovers(setting: OwnerSetting, partition: int) -> int:
    """How often the partition was taken over."""
    [found] = await fetch(setting.pool, "SELECT count(*) FROM takeovers WHERE partition = %s", partition)
    return int(found)


async def test_what_is_assigned_is_taken_over_and_read_from_the_ledger_s_offset(
    setting: OwnerSetting, owned: Ownership, reads: Reads
) -> None:
    async with setting.pool.connection() as conn:
        await conn.execute("UPDATE partitions SET consumed_offset = 40 + partition")
    owned.assign([0, 2])
    await until(lambda: owned.partitions() == [0, 2])
    assert await owners(setting) == {0: owned.nonce, 1: None, 2: owned.nonce, 3: None}
    assert sorted(reads.commands) == [0, 2]
    assert (owned.next_offset(0), owned.next_offset(2)) == (40, 42)
    assert reads.events == {0: 0, 2: 0}
    assert await owned.next_offsets(0) == {0: 40, 2: 42}


async def test_a_process_is_settled_once_it_owns_all_that_it_was_assigned(owned: Ownership) -> None:
    assert not owned.is_settled()  # the group has not told yet
    owned.assign([0, 2])
    assert not owned.is_settled()
    await until(lambda: owned.partitions() == [0, 2])
    assert owned.is_settled()
    owned.assign([])
    assert owned.is_settled()  # one of more processes than partitions has nothing to do
    await owned.close()
    assert not owned.is_settled()


async def test_what_stays_is_not_taken_again_and_what_nobody_else_takes_over_is_released(
    setting: OwnerSetting, owned: Ownership, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership_module, "HAND_OVER_WITHIN_S", 0.05)
    owned.assign([0, 1])
    await until(lambda: owned.partitions() == [0, 1])
    owned.assign([1, 2])
    await until(lambda: owned.partitions() == [1, 2])
    await until(lambda: _released(setting, 0))
    assert await takeovers(setting, 1) == 1
    assert reads.events.keys() == {1, 2}


async def test_what_goes_is_kept_in_time_until_another_has_taken_it_over(
    setting: OwnerSetting, owned: Ownership, reads: Reads
) -> None:
    owned.assign([0, 1])
    await until(lambda: owned.partitions() == [0, 1])
    owned.assign([1])
    assert owned.partitions() == [1]
    assert {owner.fence.partition for owner in owned.owners()} == {0, 1}
    assert reads.events.keys() == {0, 1}
    owned.fold(0, [], 7)
    await take_over(setting.pool, 0, "another")
    await until(lambda: reads.events.keys() == {1})
    assert {owner.fence.partition for owner in owned.owners()} == {1}
    assert (await owners(setting))[0] == "another"


async def test_what_comes_back_before_another_has_it_is_taken_over_anew(
    setting: OwnerSetting, owned: Ownership, reads: Reads
) -> None:
    """It has not read what came meanwhile."""
    owned.assign([0])
    await until(lambda: owned.partitions() == [0])
    owned.assign([])
    owned.assign([0])
    await until(lambda: owned.partitions() == [0])
    assert await takeovers(setting, 0) == 2
    assert reads.commands == [0, 0]
    assert len(owned.owners()) == 1


async def test_a_process_that_hands_over_waits_for_the_others_and_for_no_longer_than_there_are_any(
    setting: OwnerSetting, reads: Reads
) -> None:
    async with _ownership(setting, reads) as ownership:
        ownership.assign([0, 1])
        await until(lambda: ownership.partitions() == [0, 1])
        ownership.leave()
        nobody_there = asyncio.Event()
        handing_over = asyncio.create_task(ownership.hand_over(_when(nobody_there)))
        await take_over(setting.pool, 0, "another")
        await until(lambda: len(ownership.owners()) == 1)
        assert not handing_over.done()
        assert await owners(setting) == {0: "another", 1: ownership.nonce, 2: None, 3: None}
        nobody_there.set()
        await handing_over
    assert await owners(setting) == {0: "another", 1: None, 2: None, 3: None}


async def test_a_process_that_hands_over_ends_once_the_others_have_everything(
    setting: OwnerSetting, reads: Reads
) -> None:
    async with _ownership(setting, reads) as ownership:
        ownership.assign([0])
        await until(lambda: ownership.partitions() == [0])
        ownership.leave()
        handing_over = asyncio.create_task(ownership.hand_over(_when(asyncio.Event())))
        await take_over(setting.pool, 0, "another")
        async with asyncio.timeout(DEADLINE_S):
            await handing_over


async def _when(event: asyncio.Event) -> None:
    await event.wait()


async def _released(setting: OwnerSetting, partition: int) -> bool:
    return (await owners(setting))[partition] is None


async def test_assignments_that_change_faster_than_takeovers_end_as_the_last_one_says(
    setting: OwnerSetting, owned: Ownership
) -> None:
    """A state folder may be closing, opening or cut off in between; it has one user at a time."""
    for wanted in ([0, 1], [], [0], [1], [0, 1, 2], [], [2], [0, 2]) * 3:
        owned.assign(wanted)
        await asyncio.sleep(0.01)
    await until(lambda: owned.partitions() == [0, 2])
    found = await owners(setting)
    assert (found[0], found[2]) == (owned.nonce, owned.nonce)


async def test_a_lost_partition_is_dropped_and_taken_back_when_it_is_still_assigned(
    setting: OwnerSetting, owned: Ownership, reads: Reads
) -> None:
    owned.assign([0])
    await until(lambda: owned.partitions() == [0])
    await take_over(setting.pool, 0, "another")
    owned.receive(RawCommand(0, 0, None, wire(create(job_on(0)))))
    await until(lambda: owned.partitions() == [])
    owned.receive(RawCommand(0, 7, None, b"between owners"))  # Faust goes on reading
    await until(lambda: owned.partitions() == [0])
    assert await takeovers(setting, 0) == 3
    assert (reads.commands[-1], owned.next_offset(0)) == (0, 0)  # read again from the first one that was not applied
    owned.receive(RawCommand(0, 8, None, b"from before the seek"))
    assert await owned.next_offsets(0) == {0: 0}


LEAVE = """
WITH gone AS (DELETE FROM partitions WHERE partition = 0 RETURNING *)
INSERT INTO departures
SELECT 0, gen_random_uuid(), epoch, NULL, owner_since, consumed_offset, decided_through, token_floor FROM gone
"""
COME = """
WITH gone AS (DELETE FROM departures RETURNING *)
INSERT INTO partitions
SELECT partition, epoch, owner, owner_since, consumed_offset, decided_through, token_floor FROM gone
"""


async def test_a_partition_that_moves_is_taken_over_with_the_state_it_has_once_a_shard_has_it(
    setting: OwnerSetting, owned: Ownership, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it comes back to the same shard, where nobody else has owned it meanwhile."""
    asked = asyncio.Event()

    async def is_moving(_: int) -> bool:
        asked.set()
        return True

    owned.is_moving = is_moving
    owned.assign([0])
    await until(lambda: owned.partitions() == [0])
    [before] = owned.owners()
    monkeypatch.setattr(opening, "rebuild", _must_not_be)
    async with setting.pool.connection() as conn:
        await conn.execute(LEAVE)
    owned.receive(RawCommand(0, 0, None, wire(create(job_on(0)))))
    async with asyncio.timeout(DEADLINE_S):
        await asked.wait()
    assert owned.partitions() == []
    async with setting.pool.connection() as conn:
        await conn.execute(COME)
    await until(lambda: owned.partitions() == [0])
    assert reads.events == {0: 0}
    assert [owner.fence.epoch for owner in owned.owners()] == [before.fence.epoch + 1]


async def _must_not_be(*_: object) -> None:
    raise AssertionError("the state is good: it is not to be rebuilt")


async def test_a_partition_lost_while_it_is_being_opened_is_taken_back_when_it_is_still_assigned(
    setting: OwnerSetting, owned: Ownership, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken = 0

    async def overtake(pool: Any, partition: int, begin: Any) -> Any:
        nonlocal overtaken
        if partition == 0 and not overtaken:
            overtaken += 1
            await take_over(setting.pool, partition, "another")
            async with begin():
                pass
        return await follow_zone_rules(pool, partition, begin)

    monkeypatch.setattr(opening, "follow_zone_rules", overtake)
    owned.assign([0, 1])
    await until(lambda: owned.partitions() == [0, 1])
    assert (overtaken, await takeovers(setting, 0)) == (1, 3)


async def test_a_lost_partition_that_is_assigned_elsewhere_is_left_alone(
    setting: OwnerSetting, owned: Ownership
) -> None:
    owned.assign([0])
    await until(lambda: owned.partitions() == [0])
    await take_over(setting.pool, 0, "another")
    owned.owners()[0].check()
    await until(lambda: owned.partitions() == [])
    owned.assign([])
    await asyncio.sleep(0.3)  # longer than it waits before taking back
    assert owned.partitions() == []
    assert (await owners(setting))[0] == "another"


async def test_a_takeover_waits_for_a_ledger_that_is_away(
    setting: OwnerSetting, owned: Ownership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership_module, "TAKE_OVER_AGAIN_S", 0.01)
    attempts = _failing(monkeypatch, ownership_module, "take_over", LedgerUnavailable("away"), times=3)
    owned.assign([0])
    await until(lambda: owned.partitions() == [0])
    assert len(attempts) == 4
    assert await takeovers(setting, 0) == 1


async def test_a_takeover_waits_for_a_broker_that_is_away_under_one_epoch(
    setting: OwnerSetting, owned: Ownership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership_module, "TAKE_OVER_AGAIN_S", 0.01)
    attempts = _failing(monkeypatch, PartitionOwner, "open", KafkaUnavailable("away"), times=3)
    owned.assign([0])
    await until(lambda: owned.partitions() == [0])
    assert len(attempts) == 4
    assert await takeovers(setting, 0) == 1


def _failing(monkeypatch: pytest.MonkeyPatch, home: Any, name: str, error: Exception, *, times: int) -> list[object]:
    work: Callable[..., Awaitable[Any]] = getattr(home, name)
    attempts: list[object] = []

    async def failing(*args: Any) -> Any:
        attempts.append(None)
        if len(attempts) <= times:
            raise error
        return await work(*args)

    monkeypatch.setattr(home, name, failing)
    return attempts


async def test_a_takeover_that_can_never_work_ends_the_process(setting: OwnerSetting, reads: Reads) -> None:
    async with _ownership(setting, reads) as ownership:
        ownership.assign([99])
        await until(lambda: setting.crashes != [])
        assert isinstance(setting.crashes.pop(), LedgerMismatch)


async def test_events_that_are_gone_make_the_owner_start_over_from_the_ledger(
    setting: OwnerSetting, owned: Ownership, reads: Reads
) -> None:
    owned.assign([0])
    await until(lambda: owned.partitions() == [0])
    owned.fold(0, [], 1_234_567)  # what the topic has lost
    owned.events_gone(0)
    await until(lambda: owned.partitions() == [0])
    assert reads.events == {0: 0}
    assert await takeovers(setting, 0) == 2
    owned.events_gone(3)  # not ours any more: nothing to do


async def test_once_closed_nothing_is_taken_over_any_more(setting: OwnerSetting, reads: Reads) -> None:
    """Until Faust has left the group, the group may still assign to us what it takes from others."""
    async with _ownership(setting, reads) as ownership:
        ownership.assign([0, 1])
        await until(lambda: ownership.partitions() == [0, 1])
        ownership.assign([0, 1, 2, 3])  # and closes while it takes these over
        await ownership.close()
        ownership.assign([0, 1, 2, 3])
        assert ownership.partitions() == []
        assert not [task for task in asyncio.all_tasks() if "take over" in task.get_name()]
    found = await owners(setting)
    assert found[0] is None
    assert found[1] is None


async def test_closing_goes_through_while_the_ledger_is_away(
    setting: OwnerSetting, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _ownership(setting, reads) as ownership:
        ownership.assign([0])
        await until(lambda: ownership.partitions() == [0])
        _failing(monkeypatch, PartitionOwner, "close", LedgerUnavailable("away"), times=1)
        owner = ownership.owners()[0]
        async with asyncio.timeout(10):
            await ownership.close()
        assert ownership.partitions() == []
        monkeypatch.undo()
        await owner.close(release=False)


async def test_what_comes_for_a_partition_that_is_not_owned_is_dropped(owned: Ownership) -> None:
    owned.receive(RawCommand(5, 0, None, b""))
    owned.fold(5, [], 1)
    owned.doubt()
    owned.sought([5])
    assert owned.partitions() == []
