"""Gated runs wait for the run of their job that is active, and for nothing else."""

from __future__ import annotations

from uuid import uuid4

import pytest

from streams import admissions
from streams.admissions import AdmissionQueue
from tests.streams.timing_events import gone, job_id, leased, run_event

RUN, OTHER = uuid4().bytes, uuid4().bytes


def _waits_not(_: bytes) -> bool:
    return False


async def test_runs_are_taken_in_order_each_once_and_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admissions, "ADMIT_BATCH", 1)
    queue = AdmissionQueue()
    queue.add([RUN, OTHER, RUN])
    assert [await queue.take(), await queue.take()] == [[RUN], [OTHER]]


@pytest.mark.parametrize("kind", ["run_completed", "run_dead", "run_cancelled", "run_retried", "run_released"])
async def test_a_blocked_run_is_looked_at_when_a_lease_of_its_job_ends(kind: str) -> None:
    queue = AdmissionQueue()
    queue.block(RUN, job_id(1).bytes)
    queue.block(OTHER, job_id(2).bytes)
    queue.folded([run_event(kind, uuid4(), 3, job=1)], _waits_not)
    assert await queue.take() == [RUN]
    assert queue.blocked() == 2  # until the ledger has been asked
    assert queue.unblock([RUN]) == {job_id(1).bytes}
    assert queue.blocked() == 1


async def test_a_blocked_run_stays_so_while_nothing_of_its_job_ends() -> None:
    queue = AdmissionQueue()
    queue.block(RUN, job_id(1).bytes)
    queue.folded([leased(uuid4(), 2, 5), gone(uuid4(), 3)], _waits_not)  # of another job
    assert queue.blocked() == 1


async def test_all_are_looked_at_again_now_and_then() -> None:
    queue = AdmissionQueue()
    queue.block(RUN, job_id(1).bytes)
    queue.block(OTHER, job_id(2).bytes)
    queue.look_again()
    assert set(await queue.take()) == {RUN, OTHER}


async def test_of_a_long_line_only_one_is_asked_for_and_the_next_once_that_one_has_gone() -> None:
    queue = AdmissionQueue()
    line = [uuid4() for _ in range(1_000)]
    for run_id in line:
        queue.block(run_id.bytes, job_id(1).bytes)
    queue.look_again()
    assert await queue.take() == [line[0].bytes]
    queue.folded([run_event("run_cancelled", line[0], 3, job=1)], _waits_not)
    assert await queue.take() == [line[1].bytes]
    assert queue.blocked() == 999
