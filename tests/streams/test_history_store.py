"""The history store: what it keeps of events, and that it keeps them once whatever happens."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.history_store import HistoryStore, RunState
from streams.history_tables import RUN_COLUMNS, definitions
from tests.streams.event_samples import JOB_ID, START, life_of, run_row, stored
from tests.streams.stored_history import opened, read

RUN = UUID(int=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.duckdb"


@pytest.fixture
def store(path: Path) -> Iterator[HistoryStore]:
    with opened(path) as store:
        yield store


def event_count(store: HistoryStore) -> int:
    [[count]] = read(store, "SELECT count(*) FROM store.run_events")
    return int(count)


def state_of(store: HistoryStore, run_id: UUID = RUN) -> RunState:
    state = store.latest_run(str(run_id))
    assert state is not None
    return state


def test_a_whole_life_becomes_one_completed_run(store: HistoryStore) -> None:
    rows = [stored(event, offset) for offset, event in enumerate(life_of(RUN))]
    assert store.append(rows, {0: 3}) == 3
    state = state_of(store)
    assert (str(state.run_id), str(state.job_id)) == (str(RUN), str(JOB_ID))
    assert (state.tenant, state.queue, state.lane, state.state) == ("acme", "mail", "normal", "completed")
    assert (state.version, state.attempt, state.lease_token, state.worker_id) == (3, 1, 1, "worker-1")
    assert (state.scheduled_for, state.due_at, state.result) == (START, START, '{"sent":2}')
    assert (state.first_leased_at, state.lateness_ms) == (START + timedelta(seconds=0.5), 500.0)
    assert state.finished_at == state.updated_at == START + timedelta(seconds=3)


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("run_scheduled", "scheduled"),
        ("run_held", "held"),
        ("run_leased", "leased"),
        ("run_released", "scheduled"),
        ("run_retried", "retrying"),
        ("run_completed", "completed"),
        ("run_dead", "dead"),
        ("run_cancelled", "cancelled"),
        ("run_skipped", "skipped"),
        ("run_teleported", "unknown"),
    ],
)
def test_the_last_event_tells_the_state(store: HistoryStore, kind: str, state: str) -> None:
    store.append([run_row(RUN, 1, "run_scheduled"), run_row(RUN, 2, kind)], {0: 2})
    assert state_of(store).state == state


def test_lateness_is_that_of_the_first_lease(store: HistoryStore) -> None:
    nominal = START - timedelta(hours=1)
    store.append([run_row(RUN, 2, "run_leased", dueAt=START, scheduledFor=nominal)], {0: 1})
    store.append([run_row(RUN, 3, "run_retried", dueAt=START + timedelta(seconds=60), reason="boom")], {0: 2})
    store.append([run_row(RUN, 4, "run_leased", dueAt=START + timedelta(seconds=60))], {0: 3})
    state = state_of(store)
    assert (state.lateness_ms, state.first_leased_at) == (2000.0, START + timedelta(seconds=2))


def test_a_reason_belongs_to_the_event_that_gave_it(store: HistoryStore) -> None:
    store.append([run_row(RUN, 1, "run_retried", reason="boom")], {0: 1})
    assert state_of(store).reason == "boom"
    store.append([run_row(RUN, 2, "run_completed", result="1")], {0: 2})
    assert (state_of(store).reason, state_of(store).result) == (None, "1")


def test_a_replayed_run_is_not_finished_any_more(store: HistoryStore) -> None:
    store.append([run_row(RUN, 1, "run_dead", reason="boom")], {0: 1})
    assert state_of(store).finished_at is not None
    store.append([run_row(RUN, 2, "run_scheduled")], {0: 2})
    assert (state_of(store).state, state_of(store).finished_at) == ("scheduled", None)


def test_repeated_events_are_dropped(store: HistoryStore) -> None:
    rows = [run_row(RUN, version, "run_leased") for version in (1, 2, 3)]
    assert store.append([*rows, *rows], {0: 6}) == 3
    assert store.append(rows, {0: 9}) == 0
    assert store.append([rows[2], run_row(RUN, 4, "run_completed")], {0: 11}) == 1
    assert event_count(store) == 4


def test_an_older_event_does_not_turn_a_run_back(store: HistoryStore) -> None:
    store.append([run_row(RUN, 3, "run_completed")], {0: 1})
    assert store.append([run_row(RUN, 2, "run_leased")], {0: 2}) == 0
    assert state_of(store).state == "completed"


def test_job_events_are_kept_once_and_make_no_run(store: HistoryStore) -> None:
    created = run_row(None, 1, "job_created", definition='{"queue":"mail"}')
    assert store.append([created, created], {0: 2}) == 1
    assert store.append([created, run_row(None, 2, "job_paused")], {0: 4}) == 1
    assert read(store, "SELECT count(*) FROM store.runs") == [(0,)]


def test_audits_that_come_again_are_kept_once_also_beside_newer_ones(store: HistoryStore) -> None:
    paused, resumed = (
        (f"audit-0-{number}-0", at_us, "acme", "t", action, "mail", None, 0, number)
        for number, (at_us, action) in enumerate([(1_000_000, "queue_paused"), (2_000_000, "queue_resumed")])
    )
    store.append([], {0: 2}, [paused, paused])
    store.append([], {0: 4}, [resumed, paused])
    told = read(store, "SELECT event_id, epoch_us(happened_at), action FROM store.audit ORDER BY happened_at")
    assert told == [("audit-0-0-0", 1_000_000, "queue_paused"), ("audit-0-1-0", 2_000_000, "queue_resumed")]


def test_a_batch_with_a_value_that_fits_nowhere_changes_nothing(store: HistoryStore) -> None:
    store.append([run_row(RUN, 1, "run_scheduled")], {0: 1})
    with pytest.raises(duckdb.ConversionException):
        store.append([run_row(RUN, 2, "run_leased"), run_row(RUN, 3, "run_completed", jobId="nobody")], {0: 3})
    assert (event_count(store), state_of(store).version, store.positions()) == (1, 1, {0: 1})
    assert store.append([run_row(RUN, 2, "run_leased")], {0: 2}) == 1


def test_positions_move_without_events(store: HistoryStore) -> None:
    store.append([], {0: 5, 3: 7})
    store.append([], {0: 6})
    assert store.positions() == {0: 6, 3: 7}


def test_an_opened_again_store_goes_on_where_it_stood(path: Path) -> None:
    first = HistoryStore(path)
    first.append([run_row(RUN, 1, "run_scheduled")], {0: 1})
    first.close()
    again = HistoryStore(path)
    assert again.positions() == {0: 1}
    assert again.append([run_row(RUN, 1, "run_scheduled"), run_row(RUN, 2, "run_leased")], {0: 3}) == 1
    again.close()


def test_a_reader_that_takes_its_time_sees_one_state_while_a_run_goes_on(store: HistoryStore) -> None:
    store.append([run_row(RUN, 1, "run_scheduled")], {0: 1})
    with store.cursor() as reader:
        reader.begin()
        seen = "SELECT version, state FROM store.runs"
        assert reader.execute(seen).fetchall() == [(1, "scheduled")]
        for version in range(2, 6):
            store.append([run_row(RUN, version, "run_leased")], {0: version})
        assert reader.execute(seen).fetchall() == [(1, "scheduled")]
        reader.commit()
    assert read(store, "SELECT version, state FROM store.runs") == [(5, "leased")]


def test_a_store_of_the_time_when_runs_had_a_primary_key_goes_on(path: Path) -> None:
    with duckdb.connect(str(path)) as older:
        older.execute(
            f"CREATE SCHEMA store; CREATE TABLE store.runs ({definitions(RUN_COLUMNS)}, PRIMARY KEY (run_id))"
        )
    store = HistoryStore(path)
    for version, kind in enumerate(("run_scheduled", "run_leased", "run_completed"), start=1):
        store.append([run_row(RUN, version, kind)], {0: version})
    assert (state_of(store).version, state_of(store).state) == (3, "completed")
    store.close()


def test_an_unknown_run_has_no_state(store: HistoryStore) -> None:
    assert store.latest_run(str(RUN)) is None


KILLED = """
import itertools, sys
from pathlib import Path
from uuid import UUID
from streams.history_store import HistoryStore
from tests.streams.event_samples import run_row

store = HistoryStore(Path(sys.argv[1]))
for offset in itertools.count(store.positions().get(0, 0), 50):
    rows = [run_row(UUID(int=one), 1, "run_scheduled", offset=one) for one in range(offset, offset + 50)]
    store.append(rows, {0: offset + 50})
    print(offset + 50, flush=True)
"""


@pytest.mark.chaos
def test_a_killed_writer_leaves_events_and_positions_that_agree(path: Path) -> None:
    for commits in (1, 7, 23):
        acknowledged = _commit_and_kill(path, commits)
        store = HistoryStore(path)
        position = store.positions()[0]
        assert position >= acknowledged
        assert event_count(store) == position
        assert read(store, "SELECT count(*) FROM store.runs") == [(position,)]
        store.close()


def _commit_and_kill(path: Path, commits: int) -> int:
    """Runs a writer, kills it (SIGKILL) after so many commits, and returns the last position it told of."""
    argv = [sys.executable, "-c", textwrap.dedent(KILLED), str(path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(commits)]
        writer.kill()
    return told[-1]


KINDS = ["run_scheduled", "run_leased", "run_retried", "run_released", "run_completed", "run_dead", "run_cancelled"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(KINDS)), min_size=1, max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=4),
    repeats=st.integers(0, 3),
)
def test_however_the_stream_is_cut_and_repeated_the_history_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[tuple[int, str]], cuts: list[int], repeats: int
) -> None:
    rows = _stream(kinds)
    whole = _history_of(tmp_path_factory, [rows])
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    pieces = [rows[max(0, begin - repeats) : end] for begin, end in pairwise(edges)]
    assert _history_of(tmp_path_factory, pieces) == whole


def _stream(kinds: list[tuple[int, str]]) -> list[tuple[Any, ...]]:
    versions: dict[int, int] = {}
    rows = []
    for offset, (run, kind) in enumerate(kinds):
        versions[run] = versions.get(run, 0) + 1
        fields = {"reason": f"r{offset}"} if kind == "run_retried" else {"dueAt": START + timedelta(seconds=offset)}
        rows.append(run_row(UUID(int=run + 1), versions[run], kind, offset=offset, **fields))
    return rows


def _history_of(factory: pytest.TempPathFactory, batches: list[list[tuple[Any, ...]]]) -> tuple[list[Any], list[Any]]:
    store = HistoryStore(factory.mktemp("cut") / "history.duckdb")
    for batch in batches:
        store.append(batch, {0: 1})
    runs = read(store, "SELECT * FROM store.runs ORDER BY run_id")
    events = read(store, "SELECT * FROM store.run_events ORDER BY topic_offset")
    store.close()
    return runs, events


def test_a_run_that_is_asked_to_stop_is_still_leased(store: HistoryStore) -> None:
    leased: dict[str, Any] = {"leaseExpiresAt": START + timedelta(seconds=30), "workerId": "worker-1", "dueAt": START}
    asked = run_row(RUN, 3, "run_cancel_requested", reason="replaced", **leased)
    store.append([run_row(RUN, 2, "run_leased", **leased), asked], {0: 1})
    state = state_of(store)
    assert (state.state, state.reason, state.lease_expires_at) == ("leased", "replaced", leased["leaseExpiresAt"])
    assert state.first_leased_at == START + timedelta(seconds=2)


def test_a_range_of_skipped_occurrences_is_kept_with_its_count(store: HistoryStore) -> None:
    store.append([run_row(None, 2, "occurrences_skipped", count=42_200, reason="catch-up limit")], {0: 1})
    assert read(store, 'SELECT type, "count", reason FROM store.run_events') == [
        ("occurrences_skipped", 42_200, "catch-up limit")
    ]
    assert read(store, "SELECT version FROM store.jobs") == [(2,)]


def test_a_job_is_as_its_last_event_tells(store: HistoryStore) -> None:
    told: dict[str, Any] = {"scheduledFor": START, "definition": '{"queue":"mail"}'}
    store.append([run_row(None, 1, "job_created", **told), run_row(None, 2, "job_paused", **told)], {0: 2})
    edited = run_row(None, 3, "job_updated", **{**told, "definition": '{"queue":"post"}'}, queue="post")
    store.append([edited, run_row(None, 4, "occurrences_skipped", count=3)], {0: 4})
    [[queue, state, version, definition, created, updated]] = read(
        store, "SELECT queue, state, version, definition, created_at, updated_at FROM store.jobs"
    )
    assert (queue, state, version, definition) == ("mail", "paused", 4, '{"queue":"post"}')
    assert (created, updated) == (START, START + timedelta(seconds=3))
    store.append([run_row(None, 5, "job_deleted", **told)], {0: 5})
    assert read(store, "SELECT state FROM store.jobs") == [("deleted",)]
