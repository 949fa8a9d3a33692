"""A partition's memory against a model that has no edge, no wheel and no disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams import partition_memory
from streams.partition_memory import (
    GRACE_US,
    LOAD_STEP_US,
    LOOKAHEAD_US,
    REHINT_AFTER_US,
    REHINT_AT_MOST_EVERY_US,
    PartitionMemory,
)
from streams.timers import Waiting
from streams.timing_state import TimingState
from tests.streams.timing_events import START_US, gone, job_event, job_id, leased, occurrence, scheduled

MAIL = Waiting("acme", "mail", "normal")
MINUTE_US = 60_000_000


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[PartitionMemory]:
    memory = PartitionMemory(tmp_path / "state")
    yield memory
    memory.close()


def popped(memory: PartitionMemory, now_us: int) -> list[bytes]:
    memory.load(now_us)
    return memory.pop_due(now_us).runs.get(MAIL, [])


# Instants reach over the loaded edge several times; many are equal, and many runs are moved.
instants = st.integers(0, 40).map(lambda step: START_US + step * LOOKAHEAD_US // 8)
runs = st.integers(0, 6)
steps = st.one_of(
    st.tuples(st.just("wait"), runs, instants),
    st.tuples(st.just("lease"), runs, instants),
    st.tuples(st.just("end"), runs, instants),
    st.tuples(st.just("load"), runs, instants),
    st.tuples(st.just("pop"), runs, st.integers(0, 6).map(lambda step: step * LOOKAHEAD_US // 8)),
)


@given(st.lists(steps, max_size=60), st.sampled_from([2, 3, 10_000]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_missed_or_fired_twice_however_loads_folds_and_pops_interleave(
    memory: PartitionMemory, steps: list[tuple[str, int, int]], load_limit: int
) -> None:
    memory.clear()
    versions: dict[int, int] = {}
    waiting: dict[int, int] = {}
    now_us = START_US
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_memory, "LOAD_LIMIT", load_limit)
        for kind, number, us in steps:
            if kind == "load":
                memory.load(now_us)
            elif kind == "pop":
                now_us += us
                _pop_like(memory, waiting, now_us)
            else:
                versions[number] = versions.get(number, 0) + 1
                waiting.pop(number, None)
                run_id = UUID(int=number + 1)
                if kind == "wait":
                    waiting[number] = us
                    memory.fold([scheduled(run_id, versions[number], us)])
                else:
                    memory.fold([leased(run_id, versions[number], us) if kind == "lease" else gone(run_id, 10**6)])
                    versions[number] = 0 if kind == "end" else versions[number]
        _pop_like(memory, waiting, START_US + 100 * LOOKAHEAD_US)
        assert waiting == {}


def _pop_like(memory: PartitionMemory, waiting: dict[int, int], now_us: int) -> None:
    """What memory fires until it has nothing to do is what the model has due, in due order; the model forgets it."""
    fired: list[bytes] = []
    while memory.load(now_us) or (memory.next_due_us() or now_us + 1) <= now_us:
        fired += memory.pop_due(now_us).runs.get(MAIL, [])
    fired += memory.pop_due(now_us).runs.get(MAIL, [])
    due = {number: at_us for number, at_us in waiting.items() if at_us <= now_us}
    assert sorted(fired) == sorted(UUID(int=number + 1).bytes for number in due)
    for number in due:
        del waiting[number]


def test_a_timer_folded_in_before_the_loaded_edge_fires_without_another_load(memory: PartitionMemory) -> None:
    memory.load(START_US)
    run_id = uuid4()
    memory.fold([scheduled(run_id, 1, START_US + 5)])
    assert memory.next_due_us() is not None
    assert memory.pop_due(START_US + 5).runs == {MAIL: [run_id.bytes]}


def test_a_timer_beyond_the_edge_waits_on_disk_until_a_load_reaches_it(memory: PartitionMemory) -> None:
    memory.load(START_US)
    memory.fold([scheduled(uuid4(), 1, START_US + 2 * LOOKAHEAD_US)])
    assert memory.timers() == 0
    memory.load(START_US + LOOKAHEAD_US + 1)
    assert memory.timers() == 1


def test_the_disk_is_read_again_when_a_step_of_the_future_has_come_into_sight(memory: PartitionMemory) -> None:
    memory.load(START_US)
    memory.fold([scheduled(uuid4(), 1, START_US + LOOKAHEAD_US)])
    memory.load(START_US + LOAD_STEP_US // 2)
    assert memory.timers() == 0
    memory.load(START_US + LOAD_STEP_US)
    assert memory.timers() == 1


def test_of_a_crowded_future_only_the_nearest_is_in_memory(
    memory: PartitionMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_memory, "LOAD_LIMIT", 3)
    memory.fold([scheduled(UUID(int=number + 1), 1, START_US + number) for number in range(20)])
    memory.load(START_US - 1)
    assert memory.timers() == 3
    for number in range(20):
        assert popped(memory, START_US + number) == [UUID(int=number + 1).bytes]
        assert memory.timers() <= 2 * 3 + number + 1  # what has fired is under watch


def test_jobs_that_are_to_be_looked_at_later_leave_room_for_what_comes_before(
    memory: PartitionMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_memory, "LOAD_LIMIT", 2)
    memory.load(START_US)
    for number in range(10, 14):
        memory.retry_job(job_id(number).bytes, START_US + 9 * LOOKAHEAD_US)
    soon_us = START_US + 2 * LOOKAHEAD_US
    memory.fold([job_event("job_created", number, 1, soon_us) for number in range(5)])
    assert not memory.load(soon_us - LOOKAHEAD_US // 2)
    jobs: list[bytes] = []
    while memory.load(soon_us) or (memory.next_due_us() or soon_us + 1) <= soon_us:
        jobs += memory.pop_due(soon_us).jobs
    assert sorted(jobs) == [job_id(number).bytes for number in range(5)]


def test_a_clock_that_was_put_back_fires_nothing_twice(memory: PartitionMemory) -> None:
    run_id = uuid4()
    memory.fold([scheduled(run_id, 1, START_US)])
    assert popped(memory, START_US) == [run_id.bytes]
    memory.load(START_US - 2 * LOOKAHEAD_US)
    assert popped(memory, START_US + LOOKAHEAD_US) == []


def test_runs_are_hinted_by_where_they_wait_in_due_order(memory: PartitionMemory) -> None:
    high = Waiting("acme", "mail", "high")
    first, second, other = uuid4(), uuid4(), uuid4()
    memory.fold(
        [
            scheduled(second, 1, START_US + 2),
            scheduled(first, 1, START_US + 1),
            scheduled(other, 1, START_US)._replace(lane="high"),
        ]
    )
    memory.load(START_US)
    fired = memory.pop_due(START_US + 2)
    assert fired.runs == {MAIL: [first.bytes, second.bytes], high: [other.bytes]}
    assert fired.oldest_due_us == START_US


def test_jobs_fire_at_their_cursor_and_move_with_their_next_occurrence(memory: PartitionMemory) -> None:
    memory.fold([job_event("job_created", 0, 1, START_US)])
    memory.load(START_US)
    assert memory.pop_due(START_US).jobs == [job_id(0).bytes]
    at_us = START_US + 1_000_000
    memory.fold([scheduled(occurrence(0, at_us), 1, at_us)])
    assert memory.pop_due(at_us - 1).jobs == []
    assert memory.pop_due(at_us).jobs == [job_id(0).bytes]


def test_a_job_can_be_looked_at_again_later(memory: PartitionMemory) -> None:
    memory.retry_job(job_id(0).bytes, START_US)
    assert memory.pop_due(START_US).jobs == [job_id(0).bytes]


def test_a_forgotten_job_or_run_fires_no_more(memory: PartitionMemory) -> None:
    run_id = uuid4()
    memory.fold([scheduled(run_id, 1, START_US), job_event("job_created", 0, 1, START_US)])
    memory.load(START_US)
    memory.forget_run(run_id.bytes)
    memory.forget_job(job_id(0).bytes)
    fired = memory.pop_due(START_US)
    assert (fired.runs, fired.jobs, memory.timers()) == ({}, [], 0)


def test_a_hinted_run_that_nobody_leases_is_hinted_again_ever_more_rarely(memory: PartitionMemory) -> None:
    run_id = uuid4()
    memory.fold([scheduled(run_id, 1, START_US)])
    assert popped(memory, START_US) == [run_id.bytes]
    now_us, pauses = START_US, []
    for _ in range(8):
        hinted_us = now_us
        while not (ids := memory.pop_unleased(now_us)):
            now_us += 100_000
        pauses.append(now_us - hinted_us)
        assert memory.hint_again(ids, now_us).runs == {MAIL: [run_id.bytes]}
    assert pauses[0] == REHINT_AFTER_US
    assert pauses == sorted(pauses)
    assert REHINT_AT_MOST_EVERY_US * 3 / 4 <= pauses[-1] <= REHINT_AT_MOST_EVERY_US + 100_000


def hinted_since(memory: PartitionMemory, now_us: int, until_us: int) -> Counter[bytes]:
    """How often each run is hinted again, by a sweep a second of a ledger that knows no more."""
    hinted: Counter[bytes] = Counter()
    while now_us < until_us:
        now_us += 1_000_000
        memory.look_round(now_us)
        while ids := memory.pop_unleased(now_us):
            for run_ids in memory.hint_again(ids, now_us).runs.values():
                hinted.update(run_ids)
    return hinted


def test_of_a_queue_that_nobody_works_on_one_run_is_hinted_every_minute_and_the_others_every_hour(
    memory: PartitionMemory,
) -> None:
    mail, reports = [uuid4() for _ in range(50)], uuid4()
    memory.fold([scheduled(run_id, 1, START_US) for run_id in mail])
    memory.fold([scheduled(reports, 1, START_US)._replace(queue="reports")])
    memory.load(START_US)
    memory.pop_due(START_US)
    first_hour = hinted_since(memory, START_US, START_US + 60 * MINUTE_US)
    assert first_hour.keys() == {run_id.bytes for run_id in (*mail, reports)}
    day = hinted_since(memory, START_US + 60 * MINUTE_US, START_US + 24 * 60 * MINUTE_US)
    assert 23 * 60 - 1 <= day.pop(reports.bytes) <= 23 * 80 + 1
    assert 23 * 60 - 1 <= day.total() <= 23 * (80 + len(mail) * 4 / 3) + 1
    assert len(day) == len(mail)


def test_when_the_run_that_speaks_for_a_queue_is_leased_another_one_does(memory: PartitionMemory) -> None:
    waiting = [uuid4().bytes for _ in range(5)]
    memory.fold([scheduled(UUID(bytes=run_id), 1, START_US) for run_id in waiting])
    memory.load(START_US)
    memory.pop_due(START_US)
    now_us = START_US + 10 * MINUTE_US
    hinted_since(memory, START_US, now_us)
    for _ in range(3):
        [speaker] = memory._speakers.values()
        memory.fold([leased(UUID(bytes=speaker), 2, now_us)])
        now_us += 60 * MINUTE_US
        hinted_since(memory, now_us - 60 * MINUTE_US, now_us)
        assert hinted_since(memory, now_us, now_us + 10 * MINUTE_US).total() >= 10
        now_us += 10 * MINUTE_US


def test_who_speaks_for_a_queue_that_is_empty_by_now_is_forgotten(
    memory: PartitionMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_memory, "_SPEAKERS_AT_LEAST", 3)
    now_us = START_US
    for number in range(20):
        run_id = uuid4()
        memory.fold([scheduled(run_id, 1, now_us)._replace(queue=f"queue-{number}")])
        memory.load(now_us)
        memory.pop_due(now_us)
        hinted_since(memory, now_us, now_us + 3 * MINUTE_US)
        memory.fold([leased(run_id, 2, now_us)])
        now_us += 3 * MINUTE_US
    assert 0 < len(memory._speakers) <= 4


def test_a_backlog_leaves_room_under_watch_to_what_has_just_come_due(
    memory: PartitionMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_memory, "WATCHED_LIMIT", 20)
    monkeypatch.setattr(partition_memory, "LONG_WATCHED_LIMIT", 10)
    old_us = START_US - 10 * MINUTE_US
    memory.fold([scheduled(uuid4(), 1, old_us) for _ in range(100)])
    memory.load(START_US)
    memory.pop_due(START_US)
    fresh = [uuid4() for _ in range(10)]
    memory.fold([scheduled(run_id, 1, START_US)._replace(queue="reports") for run_id in fresh])
    memory.pop_due(START_US)
    again = memory.pop_unleased(START_US + REHINT_AFTER_US)
    assert sorted(again) == sorted(run_id.bytes for run_id in fresh)


def test_a_backlog_that_has_no_room_under_watch_is_not_gone_through(
    memory: PartitionMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only once there is room for what is found."""
    monkeypatch.setattr(partition_memory, "LONG_WATCHED_LIMIT", 10)
    monkeypatch.setattr(partition_memory, "ROUND_LIMIT", 5)
    backlog = [uuid4() for _ in range(100)]
    memory.fold([scheduled(run_id, 1, START_US - 10 * MINUTE_US) for run_id in backlog])
    memory.load(START_US)
    memory.pop_due(START_US)
    watched = [run_id for run_id in backlog if run_id.bytes in memory._watched]
    pages: list[Any] = []

    def due(*asked: Any) -> list[tuple[int, bytes]]:
        pages.append(asked)
        return TimingState.due(memory.state, *asked)

    monkeypatch.setattr(memory.state, "due", due)
    hinted_since(memory, START_US, START_US + MINUTE_US)
    assert (len(watched), len(pages)) == (10, 0)
    memory.fold([leased(run_id, 2, START_US) for run_id in watched[:5]])
    hinted_since(memory, START_US + MINUTE_US, START_US + 2 * MINUTE_US)
    assert (len(memory._watched), len(pages)) == (10, 2)  # one of those that were watched, and one of others


def test_a_leased_run_is_not_hinted_again(memory: PartitionMemory) -> None:
    run_id = uuid4()
    memory.fold([scheduled(run_id, 1, START_US)])
    assert popped(memory, START_US) == [run_id.bytes]
    memory.fold([leased(run_id, 2, START_US + LOOKAHEAD_US)])
    assert memory.pop_unleased(START_US + 10 * REHINT_AFTER_US) == []


def test_a_run_that_was_leased_while_the_ledger_was_asked_is_not_hinted_again(memory: PartitionMemory) -> None:
    run_id = uuid4()
    memory.fold([scheduled(run_id, 1, START_US)])
    assert popped(memory, START_US) == [run_id.bytes]
    now_us = START_US + REHINT_AFTER_US
    ids = memory.pop_unleased(now_us)
    memory.fold([leased(run_id, 2, now_us + LOOKAHEAD_US)])
    assert memory.hint_again(ids, now_us).runs == {}


def test_a_run_the_ledger_could_not_be_asked_about_stays_under_watch(memory: PartitionMemory) -> None:
    run_id = uuid4()
    memory.fold([scheduled(run_id, 1, START_US)])
    assert popped(memory, START_US) == [run_id.bytes]
    now_us = START_US + REHINT_AFTER_US
    memory.watch(memory.pop_unleased(now_us), now_us)
    assert memory.pop_unleased(now_us) == [run_id.bytes]


def overdue(memory: PartitionMemory, job: int, at_us: int, **fields: Any) -> UUID:
    """A job whose pending occurrence was due at at_us, with its run."""
    run_id = occurrence(job, at_us)
    memory.fold([job_event("job_created", job, 1, at_us), scheduled(run_id, 1, at_us, job=job)._replace(**fields)])
    return run_id


def test_a_late_run_of_a_pending_occurrence_is_withheld_until_that_is_decided(memory: PartitionMemory) -> None:
    run_id, now_us = overdue(memory, 1, START_US), START_US + GRACE_US + 1
    memory.load(now_us)
    fired = memory.pop_due(now_us)
    assert (fired.runs, fired.jobs, fired.late_jobs) == ({}, [], [job_id(1).bytes])
    memory.fold([scheduled(occurrence(1, now_us + 9), 1, now_us + 9, job=1)])
    assert memory.decided([job_id(1).bytes]) == [run_id.bytes]
    assert memory.hint_again([run_id.bytes], now_us).runs == {MAIL: [run_id.bytes]}
    assert memory.decided([job_id(1).bytes]) == []


def test_a_run_that_is_not_late_is_not_withheld(memory: PartitionMemory) -> None:
    run_id, now_us = overdue(memory, 1, START_US), START_US + GRACE_US
    memory.load(now_us)
    fired = memory.pop_due(now_us)
    assert (fired.runs, fired.jobs, fired.late_jobs) == ({MAIL: [run_id.bytes]}, [job_id(1).bytes], [])


def test_a_late_run_beside_the_schedule_is_not_withheld(memory: PartitionMemory) -> None:
    overdue(memory, 1, START_US)
    manual, now_us = uuid4(), START_US + GRACE_US + 1
    memory.fold([scheduled(manual, 1, START_US, job=1)])
    memory.load(now_us)
    assert memory.pop_due(now_us).runs == {MAIL: [manual.bytes]}


def test_a_gated_run_is_hinted_only_once_it_was_admitted(memory: PartitionMemory) -> None:
    run_id = overdue(memory, 1, START_US, gated=True)
    memory.load(START_US)
    fired = memory.pop_due(START_US)
    assert (fired.runs, fired.gated) == ({}, [run_id.bytes])
    assert memory.pop_unleased(START_US + 10 * REHINT_AFTER_US) == []
    assert memory.admitted([run_id.bytes], START_US).runs == {MAIL: [run_id.bytes]}
    assert memory.pop_unleased(START_US + REHINT_AFTER_US) == [run_id.bytes]


def test_runs_may_be_hinted_ahead_but_neither_gated_ones_nor_decisions_come_before_their_time(
    memory: PartitionMemory,
) -> None:
    ahead_us = 500
    plain, gated = overdue(memory, 1, START_US), overdue(memory, 2, START_US, gated=True)
    memory.load(START_US - ahead_us)
    assert memory.pop_due(START_US - ahead_us - 1, ahead_us).soon == {}
    fired = memory.pop_due(START_US - ahead_us, ahead_us)
    assert (fired.runs, fired.soon, fired.gated, fired.jobs) == ({}, {MAIL: [(START_US, plain.bytes)]}, [], [])
    fired = memory.pop_due(START_US, ahead_us)
    assert (fired.runs, fired.soon, fired.gated) == ({}, {}, [gated.bytes])
    assert sorted(fired.jobs) == [job_id(1).bytes, job_id(2).bytes]


def test_a_gated_run_that_is_due_in_a_moment_wakes_nobody_before_its_time(memory: PartitionMemory) -> None:
    ahead_us = 10_000
    memory.fold([scheduled(uuid4(), 1, START_US)._replace(gated=True)])
    memory.load(START_US - ahead_us)
    assert memory.pop_due(START_US - ahead_us, ahead_us).gated == []
    assert memory.next_due_us(ahead_us) == START_US
    assert memory.timers() == 1


def test_a_gated_run_that_is_moved_just_before_its_time_is_not_asked_about(memory: PartitionMemory) -> None:
    ahead_us, later_us = 10_000, START_US + LOAD_STEP_US
    moved, cancelled, forgotten = uuid4(), uuid4(), uuid4()
    memory.fold([scheduled(run_id, 1, START_US)._replace(gated=True) for run_id in (moved, cancelled, forgotten)])
    memory.load(START_US - ahead_us)
    memory.pop_due(START_US - ahead_us, ahead_us)
    memory.fold([scheduled(moved, 2, later_us)._replace(gated=True), gone(cancelled, 2)])
    memory.forget_run(forgotten.bytes)
    assert memory.pop_due(START_US, ahead_us).gated == []
    assert memory.pop_due(later_us, ahead_us).gated == [moved.bytes]


def test_what_is_hinted_ahead_is_looked_for_ahead(memory: PartitionMemory) -> None:
    memory.fold([scheduled(uuid4(), 1, START_US + LOAD_STEP_US)])
    memory.load(START_US)
    at_us = memory.next_due_us()
    assert at_us is not None
    assert memory.next_due_us(500) == at_us - 500
