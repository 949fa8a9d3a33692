"""A memory made, or mended, from the ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from ledger.connection import Pool, session
from ledger.fence import Fence, api_transaction, owner_transaction, take_over
from ledger.leases import Beat, LeaseAsk, extend_leases, lease_runs
from ledger.runs import read_runs
from schemas.commands import Command
from schemas.events import Event
from schemas.ids import run_id_for
from streams.command_batch import apply_commands
from streams.partition_memory import PartitionMemory
from streams.rebuild import rebuild, reconcile, take_in
from streams.timers import from_us, to_us
from streams.timing_state import scan_key
from tests.streams.commands import create, delete, job_on, pause
from tests.streams.ledger_dump import fetch
from tests.streams.timing_events import START_US, leased, scheduled

PARTITION = 8
FOREVER_US = 1 << 62


class Known:
    """A partition and a memory of it."""

    def __init__(self, pool: Pool, fence: Fence, memory: PartitionMemory) -> None:
        self.pool, self.fence, self.memory = pool, fence, memory

    async def apply(self, *commands: Command) -> None:
        async with owner_transaction(self.pool, self.fence) as tx:
            await apply_commands(tx, commands)

    async def run_of(self, job_id: UUID) -> UUID:
        [run_id] = await fetch(self.pool, "SELECT run_id FROM runs WHERE job_id = %s", job_id)
        return UUID(str(run_id))

    async def lease(self, run_id: UUID, visibility_s: float = 30) -> int:
        async with api_transaction(self.pool, [run_id]) as conn:
            [lease] = await lease_runs(conn, [LeaseAsk(run_id, self.fence.epoch, "w", visibility_s)])
        return lease.lease_token

    async def ask(self, run_id: UUID) -> None:
        """What an owner does when the run's time seems to have come."""
        async with session(self.pool) as conn:
            take_in(self.memory, [run_id.bytes], await read_runs(conn, [run_id]))

    def waiting(self) -> set[bytes]:
        return {run_id for _, run_id in self.memory.state.due(scan_key(0), FOREVER_US, 1_000)}

    def leases(self) -> dict[bytes, int]:
        return {run_id: at_us for at_us, run_id in self.memory.state.expiring(FOREVER_US, 1_000)}


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[PartitionMemory]:
    memory = PartitionMemory(tmp_path)
    yield memory
    memory.close()


@pytest_asyncio.fixture
async def known(ledger_pool: Pool, memory: PartitionMemory) -> AsyncIterator[Known]:
    yield Known(ledger_pool, (await take_over(ledger_pool, PARTITION, "me")).fence, memory)


async def a_bit_of_everything(known: Known) -> tuple[UUID, UUID, UUID]:
    """A waiting run, a leased run, and a job that repeats; a paused and a deleted job beside them."""
    waiting, due, repeating, paused, deleted = (job_on(PARTITION) for _ in range(5))
    await known.apply(
        create(waiting),
        create(due, {"delaySeconds": 0}, issued_at=datetime.now(UTC) - timedelta(minutes=1)),
        create(repeating, {"everySeconds": 3600}),
        create(paused, {"everySeconds": 3600}),
        pause(paused),
        create(deleted, {"everySeconds": 3600}),
        delete(deleted),
    )
    leased_run = await known.run_of(due)
    await known.lease(leased_run)
    return await known.run_of(waiting), leased_run, repeating


async def test_a_rebuilt_memory_knows_what_waits_what_is_leased_and_what_repeats(known: Known) -> None:
    waiting, leased_run, repeating = await a_bit_of_everything(known)
    await rebuild(known.memory, known.pool, PARTITION)
    assert known.waiting() == {waiting.bytes, (await known.run_of(repeating)).bytes}
    assert known.leases().keys() == {leased_run.bytes}
    assert known.memory.state.job_ids(b"", 10) == [repeating.bytes]


async def test_a_rebuild_takes_only_its_own_partition(known: Known) -> None:
    await a_bit_of_everything(known)
    await rebuild(known.memory, known.pool, PARTITION + 1)
    assert (known.waiting(), known.leases(), known.memory.state.job_ids(b"", 10)) == (set(), {}, [])


async def test_what_events_did_not_tell_is_found_once_it_is_overdue(known: Known) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    waiting, repeating, worked_on = job_on(PARTITION), job_on(PARTITION), job_on(PARTITION)
    await known.apply(
        create(waiting, {"delaySeconds": 0}, issued_at=past),
        create(repeating, {"everySeconds": 60}, issued_at=past),
        create(worked_on, {"delaySeconds": 0}, issued_at=past),
    )
    leased_run = await known.run_of(worked_on)
    await known.lease(leased_run)
    async with known.pool.connection() as conn:
        await conn.execute("UPDATE runs SET lease_expires_at = %s WHERE run_id = %s", (past, leased_run))
    await reconcile(known.memory, known.pool, PARTITION)
    assert known.waiting() == {(await known.run_of(each)).bytes for each in (waiting, repeating)}
    assert known.leases() == {leased_run.bytes: to_us(past)}
    assert known.memory.state.job_ids(b"", 10) == [repeating.bytes]


async def test_a_cursor_that_is_too_far_on_is_put_back_to_what_is_overdue(known: Known) -> None:
    job_id = job_on(PARTITION)
    await known.apply(create(job_id, {"everySeconds": 60}, issued_at=datetime.now(UTC) - timedelta(hours=1)))
    await reconcile(known.memory, known.pool, PARTITION)
    [(cursor_us, _)] = known.memory.state.cursors(scan_key(0), FOREVER_US, 10)
    later_us = cursor_us + 60_000_000
    run_id = run_id_for(job_id, from_us(later_us), PARTITION)
    event = Event(
        "run_scheduled", job_id.bytes, run_id.bytes, 1, "acme", "mail", scheduled_us=later_us, due_us=later_us
    )
    known.memory.fold([event])  # as from before an edit
    assert known.memory.state.cursors(scan_key(0), FOREVER_US, 10) == [(later_us, job_id.bytes)]
    await reconcile(known.memory, known.pool, PARTITION)
    assert known.memory.state.cursors(scan_key(0), FOREVER_US, 10) == [(cursor_us, job_id.bytes)]


async def test_what_is_not_overdue_is_not_read_again(known: Known) -> None:
    await a_bit_of_everything(known)
    await reconcile(known.memory, known.pool, PARTITION)
    assert (known.waiting(), known.leases(), known.memory.state.job_ids(b"", 10)) == (set(), {}, [])


async def test_reconciling_never_goes_back_behind_a_newer_event(known: Known) -> None:
    job_id = job_on(PARTITION)
    await known.apply(create(job_id, {"delaySeconds": 0}, issued_at=datetime.now(UTC) - timedelta(minutes=1)))
    run_id = await known.run_of(job_id)
    known.memory.fold([leased(run_id, 9, START_US)])
    await reconcile(known.memory, known.pool, PARTITION)
    assert known.leases() == {run_id.bytes: START_US}


async def test_the_ledger_s_word_tells_of_leases_that_were_extended(known: Known) -> None:
    _, leased_run, _ = await a_bit_of_everything(known)
    await rebuild(known.memory, known.pool, PARTITION)
    before_us = known.leases()[leased_run.bytes]
    async with api_transaction(known.pool, [leased_run]) as conn:
        [extended] = await extend_leases(conn, [Beat(leased_run, 1, 600)])
    await known.ask(leased_run)
    assert known.leases()[leased_run.bytes] == to_us(extended.lease_expires_at) > before_us


async def test_the_ledger_s_word_makes_forget_what_is_gone(known: Known) -> None:
    gone = uuid4()
    known.memory.fold([scheduled(gone, 1, START_US)])
    await known.ask(gone)
    assert known.waiting() == set()
