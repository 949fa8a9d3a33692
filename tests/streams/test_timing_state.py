"""Timing state: what events make of it, and that it can be closed, opened and lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.events import Event
from schemas.ids import run_id_for
from streams import timing_state
from streams.timers import Position, WaitingRun, from_us, to_us
from streams.timing_state import TimingState, scan_key
from streams.timing_store import iterate
from tests.streams.timing_events import (
    EVERY_SECOND,
    PARTITION,
    START_US,
    gone,
    job_event,
    job_id,
    leased,
    occurrence,
    run_event,
    scheduled,
)

FAR_US = START_US + 10**12
MAILED = WaitingRun("acme", "mail", "normal", job_id(0).bytes)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[TimingState]:
    state = TimingState(tmp_path / "state")
    yield state
    state.close()


def all_due(state: TimingState) -> list[tuple[int, bytes]]:
    return state.due(scan_key(0), FAR_US, 1_000)


def test_a_waiting_run_is_found_by_its_due_time(state: TimingState) -> None:
    first, second = uuid4(), uuid4()
    state.fold([scheduled(second, 1, START_US + 2), scheduled(first, 1, START_US + 1)])
    assert all_due(state) == [(START_US + 1, first.bytes), (START_US + 2, second.bytes)]
    assert state.waiting(first.bytes) == (START_US + 1, MAILED)


def test_a_scan_starts_at_the_edge_and_ends_before_its_limit(state: TimingState) -> None:
    runs = [uuid4() for _ in range(4)]
    state.fold([scheduled(run_id, 1, START_US + number) for number, run_id in enumerate(runs)])
    assert state.due(scan_key(START_US + 1), START_US + 3, 10) == [
        (START_US + 1, runs[1].bytes),
        (START_US + 2, runs[2].bytes),
    ]
    assert state.due(scan_key(START_US + 1, runs[1].bytes), FAR_US, 1) == [(START_US + 2, runs[2].bytes)]


def test_a_retry_moves_the_run_to_its_new_due_time(state: TimingState) -> None:
    run_id = uuid4()
    state.fold([scheduled(run_id, 1, START_US), leased(run_id, 2, START_US + 30)])
    assert all_due(state) == []
    changed = state.fold([run_event("run_retried", run_id, 3, due_us=START_US + 99)])
    assert changed.runs == {run_id.bytes: START_US + 99}
    assert all_due(state) == [(START_US + 99, run_id.bytes)]
    assert state.expiring(FAR_US, 10) == []


@pytest.mark.parametrize("kind", ["run_held", "run_completed", "run_dead", "run_cancelled", "run_skipped"])
def test_a_run_that_ended_or_is_held_is_in_no_order(state: TimingState, kind: str) -> None:
    run_id = uuid4()
    state.fold([scheduled(run_id, 1, START_US), gone(run_id, 2, kind)])
    assert all_due(state) == []
    assert state.waiting(run_id.bytes) is None
    assert state.run_ids(b"", 10) == []


def test_an_earlier_occurrence_that_an_edit_has_set_stands_when_the_feed_brings_it_all_again(
    state: TimingState,
) -> None:
    """What an owner writes it folds at once; the events come by the feed a moment later, from the older ones on."""
    noon, nine = occurrence(0, START_US + 12), occurrence(0, START_US + 9)
    created = [job_event("job_created", 0, 1, START_US + 12), scheduled(noon, 1, START_US + 12)]
    edited = [
        job_event("job_updated", 0, 2, START_US + 9), gone(noon, 2, "run_cancelled"), scheduled(nine, 1, START_US + 9)
    ]  # fmt: skip
    for events in (created, edited, created, edited):
        state.fold(events)
    assert state.cursors(scan_key(0), FAR_US, 10) == [(START_US + 9, job_id(0).bytes)]
    assert all_due(state) == [(START_US + 9, nine.bytes)]


life = st.sampled_from(["wait", "lease", "retry", "end"])


def events_of(steps: list[str]) -> list[Event]:
    """A run's events, version by version."""
    run_id, events = UUID(int=9), []
    for version, step in enumerate(steps, 1):
        at_us = START_US + version
        events.append(
            {
                "wait": scheduled(run_id, version, at_us),
                "lease": leased(run_id, version, at_us),
                "retry": run_event("run_retried", run_id, version, due_us=at_us),
                "end": gone(run_id, version),
            }[step]
        )
    return events


@given(st.lists(life, min_size=1, max_size=8), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_doubled_and_stale_events_change_nothing(state: TimingState, steps: list[str], data: st.DataObject) -> None:
    """Whatever comes again while the run is known, in whatever order, is told by its version."""
    while "end" in steps[:-1]:
        steps.remove("end")
    events = events_of(steps)
    noisy = []
    for index, event in enumerate(events):
        noisy.append(event)
        if event.type != "run_completed":
            noisy += data.draw(st.lists(st.sampled_from(events[: index + 1]), max_size=3))
    state.clear()
    state.fold(events)
    expected = (all_due(state), state.expiring(FAR_US, 10), state.run_ids(b"", 10))
    state.clear()
    for event in noisy:
        state.fold([event])
    assert (all_due(state), state.expiring(FAR_US, 10), state.run_ids(b"", 10)) == expected


happening = st.tuples(st.sampled_from(["wait", "lease", "retry", "end", "job", "pause"]), st.integers(0, 2))


def happened(kind: str, number: int, version: int) -> Event:
    """To one of three occurrences, or to their job."""
    run_id, at_us = occurrence(0, START_US + number * 1_000_000), START_US + number * 1_000_000
    return {
        "wait": scheduled(run_id, version, at_us),
        "lease": leased(run_id, version, at_us + version),
        "retry": run_event("run_retried", run_id, version, due_us=at_us + version),
        "end": gone(run_id, version),
        "job": job_event("job_updated", 0, version, at_us),
        "pause": job_event("job_paused", 0, version, at_us),
    }[kind]


@given(st.lists(happening, max_size=12), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_does_not_matter_which_events_are_folded_together(
    state: TimingState, steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    events = [happened(kind, number, version) for version, (kind, number) in enumerate(steps, 1)]
    state.clear()
    for event in events:
        state.fold([event])
    expected = everything(state)
    state.clear()
    while events:
        together = data.draw(st.integers(1, len(events)))
        state.fold(events[:together])
        del events[:together]
    assert everything(state) == expected


def test_events_of_one_fold_see_each_other(state: TimingState) -> None:
    run_id = uuid4()
    changed = state.fold([scheduled(run_id, 1, START_US), leased(run_id, 2, START_US + 5), gone(run_id, 3)])
    assert changed.runs == {run_id.bytes: None}
    assert (all_due(state), state.expiring(FAR_US, 10)) == ([], [])


def test_a_new_occurrence_moves_its_job_s_cursor(state: TimingState) -> None:
    state.fold([job_event("job_created", 0, 1, START_US)])
    at_us = START_US + 1_000_000
    changed = state.fold([scheduled(occurrence(0, at_us), 1, at_us)])
    assert changed.jobs == {job_id(0).bytes: at_us}
    assert state.cursors(scan_key(0), FAR_US, 10) == [(at_us, job_id(0).bytes)]
    stale = state.fold([scheduled(occurrence(0, START_US), 1, START_US)])
    assert stale.jobs == {}


def test_a_jittered_run_leaves_the_cursor_at_its_nominal_time(state: TimingState) -> None:
    state.fold([job_event("job_created", 0, 1, START_US)])
    at_us = START_US + 1_000_000
    state.fold([scheduled(occurrence(0, at_us), 1, at_us + 77, at_us=at_us)])
    assert state.cursors(scan_key(0), FAR_US, 10) == [(at_us, job_id(0).bytes)]


def test_a_triggered_run_never_moves_the_cursor_even_when_it_was_held_and_released(state: TimingState) -> None:
    state.fold([job_event("job_created", 0, 1, START_US)])
    at_us = START_US + 3_600_000_000  # the producer's clock was ahead
    run_id = run_id_for(job_id(0), from_us(at_us), PARTITION, nonce=b"trigger")
    state.fold([scheduled(run_id, 3, START_US, at_us=at_us)])  # a release says no more that it was triggered
    assert state.cursors(scan_key(0), FAR_US, 10) == [(START_US, job_id(0).bytes)]


def test_a_paused_job_has_no_timer_and_a_resumed_one_has(state: TimingState) -> None:
    state.fold([job_event("job_created", 0, 1, START_US), job_event("job_paused", 0, 2, START_US)])
    assert state.job(job_id(0).bytes) is None
    assert state.cursors(scan_key(0), FAR_US, 10) == []
    state.fold([job_event("job_resumed", 0, 3, START_US + 7), job_event("job_paused", 0, 2, START_US)])
    assert state.cursors(scan_key(0), FAR_US, 10) == [(START_US + 7, job_id(0).bytes)]


def test_a_job_that_fires_once_needs_no_timer(state: TimingState) -> None:
    state.fold([job_event("job_created", 0, 1, START_US, '{"schedule":{"delaySeconds":5}}')])
    assert state.job_ids(b"", 10) == []


def test_an_extended_lease_expires_later_and_is_still_found(state: TimingState) -> None:
    run_id = uuid4()
    state.fold([leased(run_id, 2, START_US)])
    assert state.expiring(START_US + 1, 10) == [(START_US, run_id.bytes)]
    state.rearm_lease(run_id.bytes, START_US + 50)
    assert state.expiring(START_US + 50, 10) == []
    assert state.expiring(START_US + 51, 10) == [(START_US + 50, run_id.bytes)]


def test_it_is_known_when_the_first_lease_ends(state: TimingState) -> None:
    assert state.next_expiry_us() == 1  # nobody has looked yet
    assert (state.expiring(START_US, 1), state.next_expiry_us()) == ([], None)
    first, second = uuid4(), uuid4()
    state.fold([leased(second, 2, START_US + 20), leased(first, 2, START_US + 10)])
    next_us = state.next_expiry_us()
    assert next_us == START_US + 11
    assert state.expiring(next_us - 1, 1) == []
    assert state.expiring(next_us, 1) == [(START_US + 10, first.bytes)]
    state.forget_run(first.bytes)
    assert (state.expiring(next_us, 1), state.next_expiry_us()) == ([], START_US + 21)


def test_a_lease_that_ended_before_the_last_look_is_found_all_the_same(state: TimingState) -> None:
    assert state.expiring(START_US + 1_000, 10) == []
    late, later = uuid4(), uuid4()
    state.fold([leased(late, 2, START_US + 5)])
    assert state.expiring(START_US + 1_001, 10) == [(START_US + 5, late.bytes)]
    state.fold([leased(later, 2, START_US + 9_000)])
    state.rearm_lease(later.bytes, START_US + 1)
    assert (START_US + 1, later.bytes) in state.expiring(START_US + 1_002, 10)


def test_a_reopened_state_is_as_it_was(tmp_path: Path) -> None:
    run_id, other = uuid4(), uuid4()
    state = TimingState(tmp_path)
    assert state.position() is None
    events = [job_event("job_created", 0, 1, START_US), scheduled(run_id, 1, START_US), leased(other, 2, START_US + 9)]
    state.fold(events, Position(4, 17))
    state.close()
    state = TimingState(tmp_path)
    assert state.position() == Position(4, 17)
    assert state.waiting(run_id.bytes) == (START_US, MAILED)
    assert state.expiring(FAR_US, 10) == [(START_US + 9, other.bytes)]
    timer = state.job(job_id(0).bytes)
    assert timer is not None
    assert (timer.version, timer.cursor_us, timer.schedule) == (1, START_US, {"everySeconds": 1})
    state.close()


def test_clearing_forgets_everything(state: TimingState) -> None:
    state.fold([scheduled(uuid4(), 1, START_US), job_event("job_created", 0, 1, START_US)], Position(1, 1))
    state.clear()
    assert (state.position(), state.run_ids(b"", 10), state.job_ids(b"", 10), all_due(state)) == (None, [], [], [])


@pytest.mark.parametrize("many", [0, 1_000])
def test_a_state_that_was_filled_is_the_one_that_was_folded_and_stays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(timing_state, "_MANY", many)
    waiting, held, once = uuid4(), uuid4(), '{"schedule":{"runAt":"2100-01-01T00:00:00Z"}}'
    folded, filled = TimingState(tmp_path / "folded"), TimingState(tmp_path / "filled")
    folded.fold([scheduled(waiting, 3, START_US, job=1), leased(held, 2, START_US + 9)])
    folded.fold([job_event("job_created", 0, 1, START_US), job_event("job_created", 5, 1, START_US, once)])
    filling = filled.filling()
    filling.add_waiting(waiting.bytes, START_US, 3, WaitingRun("acme", "mail", "normal", job_id(1).bytes))
    filling.write()
    filling.add_lease(held.bytes, START_US + 9, 2)
    filling.add_job(job_id(0).bytes, 1, START_US, START_US, EVERY_SECOND)
    filling.add_job(job_id(5).bytes, 1, START_US, START_US, once)
    filling.done()
    filled.close()
    filled = TimingState(tmp_path / "filled")
    assert everything(filled) == everything(folded) != []
    for state in (folded, filled):
        state.close()


def everything(state: TimingState) -> list[tuple[bytes, bytes]]:
    return list(iterate(state._db, b"", b"\xff"))


def test_the_tzdata_of_the_cursors_is_kept_until_the_state_is_cleared(tmp_path: Path) -> None:
    state = TimingState(tmp_path)
    assert state.tzdata_version() is None
    state.set_tzdata_version("2026a")
    state.close()
    state = TimingState(tmp_path)
    assert state.tzdata_version() == "2026a"
    state.clear()
    assert state.tzdata_version() is None
    state.close()


def test_ids_come_in_pages(state: TimingState) -> None:
    runs = sorted(uuid4().bytes for _ in range(5))
    state.fold([scheduled(UUID(bytes=run_id), 1, START_US) for run_id in runs])
    assert state.run_ids(b"", 3) == runs[:3]
    assert state.run_ids(runs[2], 3) == runs[3:]
    assert state.run_ids(runs[4], 3) == []


def test_a_damaged_state_is_replaced_by_an_empty_one(tmp_path: Path) -> None:
    state = TimingState(tmp_path)
    state.fold([scheduled(uuid4(), 1, START_US)], Position(1, 1))
    state.close()
    (tmp_path / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    state = TimingState(tmp_path)
    assert state.position() is None
    state.fold([scheduled(uuid4(), 1, START_US)])
    assert len(all_due(state)) == 1
    state.close()


def test_a_state_that_somebody_has_open_is_left_alone(tmp_path: Path) -> None:
    state = TimingState(tmp_path)
    run_id = uuid4()
    state.fold([scheduled(run_id, 1, START_US)])
    with pytest.raises(Exception, match=r"(?i)lock"):
        TimingState(tmp_path)
    assert all_due(state) == [(START_US, run_id.bytes)]
    state.close()


def test_an_instant_before_1970_is_as_overdue_as_can_be() -> None:
    assert to_us(from_us(-5)) == 0
