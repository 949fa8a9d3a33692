"""The days of the history: events find theirs, old days go as a whole, days that are over are sorted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest

from streams.history_store import HistoryStore
from streams.history_tables import RUN_COLUMNS, RUN_EVENT_COLUMNS, EventRow, definitions
from tests.streams.event_samples import JOB_ID, START, run_row
from tests.streams.stored_history import opened, read

TODAY = START.date()
DAY = timedelta(days=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.duckdb"


@pytest.fixture
def store(path: Path) -> Iterator[HistoryStore]:
    with opened(path) as store:
        yield store


def ran(number: int, days_ago: int, kind: str = "run_completed", **fields: Any) -> EventRow:
    return run_row(UUID(int=number), 1, kind, at=START - days_ago * DAY, **fields)


def days(store: HistoryStore) -> list[date]:
    return [day for [day] in read(store, "SELECT DISTINCT happened_at::DATE FROM store.run_events ORDER BY ALL")]


def states(store: HistoryStore) -> dict[int, str]:
    found = read(store, "SELECT right(run_id::VARCHAR, 12), state FROM store.runs")
    return {int(number, 16): state for number, state in found}


def test_a_batch_over_midnight_is_kept_in_both_days(store: HistoryStore) -> None:
    assert store.append([ran(1, 1), ran(2, 0), ran(1, 1)], {0: 3}) == 2
    assert days(store) == [TODAY - DAY, TODAY]
    assert read(store, f"SELECT count(*) FROM store.run_events_{TODAY:%Y%m%d}") == [(1,)]


def test_old_days_go_with_the_runs_that_ended_then(store: HistoryStore) -> None:
    waiting = ran(3, 9, "run_scheduled")
    store.append([ran(1, 9), ran(2, 0), waiting], {0: 3})
    assert store.forget(TODAY - 3 * DAY) == [TODAY - 9 * DAY]
    assert (days(store), states(store)) == ([TODAY], {2: "completed", 3: "scheduled"})


def test_a_deleted_job_is_forgotten_and_another_is_not(store: HistoryStore) -> None:
    old, other = START - 9 * DAY, str(UUID(int=8))
    store.append(
        [run_row(None, 1, "job_deleted", at=old), run_row(None, 1, "job_created", at=old, jobId=other)], {0: 2}
    )
    store.forget(TODAY)
    assert read(store, "SELECT job_id::VARCHAR FROM store.jobs") == [(other,)]


def test_events_of_a_day_that_is_forgotten_come_too_late(store: HistoryStore) -> None:
    store.forget(TODAY)
    assert store.append([ran(1, 1), ran(2, 0)], {0: 2}) == 1
    assert (days(store), states(store), store.positions()) == ([TODAY], {2: "completed"}, {0: 2})


def test_a_reader_that_has_begun_still_sees_a_day_that_goes(store: HistoryStore) -> None:
    store.append([ran(1, 9), ran(2, 0)], {0: 2})
    with store.cursor() as reader:
        reader.begin()
        seen = "SELECT count(*) FROM store.run_events"
        assert reader.execute(seen).fetchall() == [(2,)]
        store.forget(TODAY)
        assert reader.execute(seen).fetchall() == [(2,)]
        reader.commit()
    assert read(store, seen) == [(1,)]


def test_a_day_that_is_over_is_sorted_by_job_and_keeps_its_events(store: HistoryStore) -> None:
    jobs = [str(UUID(int=number)) for number in (3, 1, 2)]
    store.append([ran(number, 1, jobId=jobs[number % 3]) for number in range(9)], {0: 9})
    store.append([ran(10, 0)], {0: 10})
    before = read(store, "SELECT * FROM store.run_events ORDER BY ALL")
    assert [store.sort_a_day(TODAY), store.sort_a_day(TODAY)] == [TODAY - DAY, None]
    lying = read(store, f"SELECT job_id::VARCHAR FROM store.run_events_{TODAY - DAY:%Y%m%d}")
    assert [job for [job] in lying] == sorted(job for [job] in lying)
    assert read(store, "SELECT * FROM store.run_events ORDER BY ALL") == before
    assert store.append([ran(11, 1), ran(1, 1, jobId=jobs[1])], {0: 12}) == 1


def test_an_event_of_no_day_changes_nothing(store: HistoryStore) -> None:
    store.append([ran(1, 0)], {0: 1})
    never = ran(2, 0)
    never = tuple(2**62 if value == never[2] else value for value in never)
    with pytest.raises(duckdb.ConversionException):
        store.append([ran(3, 0), never], {0: 3})
    assert (states(store), store.positions()) == ({1: "completed"}, {0: 1})


def test_a_store_that_is_opened_again_has_its_days(path: Path) -> None:
    with opened(path) as first:
        first.append([ran(1, 1), ran(2, 0)], {0: 2})
    with opened(path) as again:
        assert again.append([ran(2, 0), ran(3, 0)], {0: 4}) == 1
        assert days(again) == [TODAY - DAY, TODAY]


def test_a_store_of_a_build_before_days_is_parted_and_its_jobs_are_completed(path: Path) -> None:
    columns = {name: kind for name, kind in RUN_EVENT_COLUMNS.items() if name != "count"}
    with duckdb.connect(str(path)) as older:
        older.execute("SET TimeZone = 'UTC'; CREATE SCHEMA store")
        older.execute(f"CREATE TABLE store.run_events ({definitions(columns)})")
        older.execute(f"CREATE TABLE store.runs ({definitions(RUN_COLUMNS)})")
        older.execute("CREATE TABLE store.jobs (job_id UUID PRIMARY KEY, version BIGINT NOT NULL)")
        older.execute(f"INSERT INTO store.jobs VALUES ('{JOB_ID}', 2)")
        for version, kind, at in ((1, "job_created", START - DAY), (2, "job_paused", START)):
            older.execute(
                """INSERT INTO store.run_events BY NAME
                SELECT $kind AS type, $at AS happened_at, $version AS version, $job AS job_id, 'acme' AS tenant,
                       'e' AS event_id, 'mail' AS queue, 'normal' AS lane, 0 AS "partition", 0 AS topic_offset""",
                {"kind": kind, "at": at, "version": version, "job": JOB_ID},
            )
    with opened(path) as store:
        assert days(store) == [TODAY - DAY, TODAY]
        assert read(store, "SELECT tenant, state, version FROM store.jobs") == [("acme", "paused", 2)]
        assert store.append([run_row(None, 2, "job_paused"), run_row(None, 3, "job_resumed")], {0: 3}) == 1
