"""Each occurrence of a job is decided once, whatever was committed, forgotten, or slept through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from ledger.connection import Pool
from ledger.fence import Fence, owner_transaction, take_over
from schemas.commands import Command
from schemas.errors import EpochLost, InvalidSchedule
from streams import decisions
from streams.command_batch import apply_commands
from streams.decisions import Asked, Decided, decide
from streams.partition_memory import PartitionMemory
from streams.rebuild import rebuild
from streams.timers import from_us, to_us
from tests.streams.commands import create, delete, job_on, pause, resume
from tests.streams.ledger_dump import dump, fetch

PARTITION = 6
MINUTE = timedelta(minutes=1)


class Decider:
    """An owner's part that decides, by a clock of the test's."""

    def __init__(self, pool: Pool, fence: Fence, memory: PartitionMemory) -> None:
        self.pool, self.fence, self.memory = pool, fence, memory

    async def apply(self, *commands: Command) -> None:
        async with owner_transaction(self.pool, self.fence) as tx:
            effects = await apply_commands(tx, commands)
        self.memory.fold(effects.events)

    async def decide(self, *job_ids: UUID, now: datetime, remember: bool = True) -> Decided:
        """remember: False as if the process had died after the commit."""
        async with owner_transaction(self.pool, self.fence) as tx:
            asked = Asked.of(self.fence, self.memory.state, [job_id.bytes for job_id in job_ids])
            [decided] = await decide(replace(tx, now=now), [asked])
        if remember:
            for job_id in [*decided.finished, *decided.stale]:
                self.memory.forget_job(job_id)
            self.memory.fold([*decided.events, *decided.stale.values()])
        return decided

    def cursor(self, job_id: UUID) -> datetime | None:
        timer = self.memory.state.job(job_id.bytes)
        return from_us(timer.cursor_us) if timer else None

    async def occurrences(self, job_id: UUID) -> list[datetime]:
        return await fetch(self.pool, "SELECT scheduled_for FROM runs WHERE job_id = %s ORDER BY 1", job_id)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[PartitionMemory]:
    memory = PartitionMemory(tmp_path)
    yield memory
    memory.close()


@pytest_asyncio.fixture
async def decider(ledger_pool: Pool, memory: PartitionMemory) -> AsyncIterator[Decider]:
    yield Decider(ledger_pool, (await take_over(ledger_pool, PARTITION, "me")).fence, memory)


@pytest.fixture
def start() -> datetime:
    """A whole minute, an hour ago: commands may not come from the future."""
    return datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)


async def minutely(decider: Decider, start: datetime, **schedule: Any) -> UUID:
    await decider.apply(create(job_id := job_on(PARTITION), {"everySeconds": 60, **schedule}, issued_at=start))
    return job_id


async def test_an_occurrence_that_has_come_makes_the_next_one_pending(decider: Decider, start: datetime) -> None:
    job_id = await minutely(decider, start)
    for minute in range(1, 4):
        assert decider.cursor(job_id) == start + minute * MINUTE
        await decider.decide(job_id, now=start + minute * MINUTE)
    assert await decider.occurrences(job_id) == [start + minute * MINUTE for minute in range(1, 5)]


async def test_an_occurrence_that_has_not_come_is_not_decided_and_is_looked_at_again(
    decider: Decider, start: datetime
) -> None:
    job_id = await minutely(decider, start)
    decided = await decider.decide(job_id, now=start + MINUTE - timedelta(microseconds=1))
    assert decided.early == {job_id.bytes: to_us(start + MINUTE)}
    assert await decider.occurrences(job_id) == [start + MINUTE]


async def test_a_decision_that_was_committed_but_not_remembered_is_not_made_twice(
    decider: Decider, start: datetime
) -> None:
    job_id = await minutely(decider, start)
    await decider.decide(job_id, now=start + MINUTE, remember=False)
    before = await dump(decider.pool)
    again = await decider.decide(job_id, now=start + MINUTE)
    assert await dump(decider.pool) == before
    assert again.stale.keys() == {job_id.bytes}
    assert decider.cursor(job_id) == start + 2 * MINUTE


async def test_a_job_asked_for_twice_at_once_is_decided_once(decider: Decider, start: datetime) -> None:
    job_id = await minutely(decider, start)
    await decider.decide(job_id, job_id, now=start + MINUTE)
    assert len(await decider.occurrences(job_id)) == 2


async def test_a_long_downtime_is_caught_up_by_one_run_and_then_the_schedule_goes_on(
    decider: Decider, start: datetime
) -> None:
    job_id = await minutely(decider, start)
    back_at = start + 50 * MINUTE + timedelta(seconds=20)
    decider.memory.clear()
    await rebuild(decider.memory, decider.pool, PARTITION)
    await decider.decide(job_id, now=back_at)
    assert await decider.occurrences(job_id) == [start + 50 * MINUTE, start + 51 * MINUTE]
    await decider.decide(job_id, now=start + 51 * MINUTE)
    assert await decider.occurrences(job_id) == [start + minute * MINUTE for minute in (50, 51, 52)]


async def test_a_job_whose_schedule_ends_has_no_timer_any_more(decider: Decider, start: datetime) -> None:
    end_at = (start + 3 * MINUTE).isoformat().replace("+00:00", "Z")
    job_id = await minutely(decider, start, endAt=end_at)
    await decider.decide(job_id, now=start + MINUTE)
    decided = await decider.decide(job_id, now=start + 2 * MINUTE)
    assert decided.finished == [job_id.bytes]
    assert decider.cursor(job_id) is None
    assert await decider.occurrences(job_id) == [start + MINUTE, start + 2 * MINUTE]
    assert await fetch(decider.pool, "SELECT state, next_fire_at FROM jobs") == [("active", None)]


@pytest.mark.parametrize("end", [pause, delete])
async def test_a_job_that_was_paused_or_deleted_meanwhile_is_left_alone(
    decider: Decider, start: datetime, end: Any
) -> None:
    job_id = await minutely(decider, start)
    await decider.apply(end(job_id))
    before = await dump(decider.pool)
    decided = await decider.decide(job_id, now=start + MINUTE)
    assert await dump(decider.pool) == before
    assert decided.finished == [job_id.bytes]
    assert decider.cursor(job_id) is None


async def test_a_memory_from_before_a_change_of_the_job_is_mended(decider: Decider, start: datetime) -> None:
    job_id = await minutely(decider, start)
    before_resumption = datetime.now(UTC)
    async with owner_transaction(decider.pool, decider.fence) as tx:
        await apply_commands(tx, [pause(job_id), resume(job_id)])  # and the process forgets it
    before = await dump(decider.pool)
    await decider.decide(job_id, now=start + MINUTE)
    assert await dump(decider.pool) == before
    timer = decider.memory.state.job(job_id.bytes)
    assert timer is not None
    assert timer.version == 4  # the pause, the resumption, and the occurrences that it skipped
    assert timer.cursor_us > to_us(before_resumption)


async def test_a_schedule_this_build_cannot_read_holds_up_no_other(
    decider: Decider, start: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable, readable = await minutely(decider, start), await minutely(decider, start)
    chain_of = decisions.chain_of

    def refusing(job_id: UUID, *rest: Any, **more: Any) -> Any:
        if job_id == unreadable:
            raise InvalidSchedule("zone", "unknown time zone 'Europe/Atlantis'")
        return chain_of(job_id, *rest, **more)

    monkeypatch.setattr(decisions, "chain_of", refusing)
    decided = await decider.decide(unreadable, readable, now=start + MINUTE)
    assert decided.undecidable == [unreadable.bytes]
    assert len(await decider.occurrences(readable)) == 2
    assert decider.cursor(unreadable) == start + MINUTE


async def test_an_owner_whose_epoch_is_over_decides_nothing(decider: Decider, start: datetime) -> None:
    job_id = await minutely(decider, start)
    await take_over(decider.pool, PARTITION, "another")
    with pytest.raises(EpochLost):
        await decider.decide(job_id, now=start + MINUTE)
    assert len(await decider.occurrences(job_id)) == 1
