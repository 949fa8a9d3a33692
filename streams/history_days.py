"""The events of the history, in a table a day: an old day is dropped whole, and a day that is over is sorted.

`run_events` is the view of all days. A day is that of the event, in UTC. While a day lasts its events lie as they came,
and what is asked about one job has to be looked for in all of it; sorted by tenant and job they are a few blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime

import duckdb

from streams.history_tables import RUN_EVENT_COLUMNS, SCHEMA, definitions

_DAY_US = 24 * 60 * 60 * 1_000_000
_EPOCH = date(1970, 1, 1).toordinal()

_CREATE = f"CREATE TABLE IF NOT EXISTS {SCHEMA}.event_days (day DATE PRIMARY KEY, sorted BOOLEAN NOT NULL)"
_COLUMNS = ", ".join(f'"{name}"' for name in RUN_EVENT_COLUMNS)
_NO_EVENTS = ", ".join(f'NULL::{kind.split()[0]} AS "{name}"' for name, kind in RUN_EVENT_COLUMNS.items())

_READ_DAYS = f"SELECT day FROM {SCHEMA}.event_days WHERE day < ? AND (NOT sorted OR ?) ORDER BY day"
_IS_ONE_TABLE = f"""
SELECT count(*) FROM duckdb_tables() WHERE schema_name = '{SCHEMA}' AND table_name = 'run_events'
"""


def days_of(instants: Iterable[int]) -> set[date]:
    """instants: microseconds since 1970. Raises duckdb.ConversionException for one of no day that there is."""
    numbers = {micros // _DAY_US for micros in instants}
    try:
        return {date.fromordinal(_EPOCH + number) for number in numbers}
    except (ValueError, OverflowError):
        raise duckdb.ConversionException("an event of no day that there is") from None


def begin_of(day: date) -> int:
    """Its first microsecond since 1970."""
    return (day.toordinal() - _EPOCH) * _DAY_US


def table_of(day: date) -> str:
    return f"{SCHEMA}.run_events_{day:%Y%m%d}"


def within(day: date, column: str) -> str:
    """SQL for when that instant is of the day."""
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return f"({column} >= TIMESTAMPTZ '{begin}' AND {column} < TIMESTAMPTZ '{begin}' + INTERVAL 1 DAY)"


@contextmanager
def transaction(writer: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """All or nothing of what is executed within."""
    writer.begin()
    try:
        yield
        writer.commit()
    except BaseException:
        writer.rollback()
        raise


class EventDays:
    """The days of one store. writer: its one connection that writes."""

    def __init__(self, writer: duckdb.DuckDBPyConnection) -> None:
        self._writer = writer
        with transaction(writer):
            writer.execute(_CREATE)
            self._days = set(self._read(date.max))
            self._part_the_one_table()
            self._show(self._days)

    def make(self, days: Iterable[date]) -> None:
        """See to it that each of these days has its table."""
        if new := set(days) - self._days:
            with transaction(self._writer):
                self._create(new)
                self._show(self._days | new)
            self._days |= new

    def drop(self, before: date) -> list[date]:
        """Drop the days before that one, within the caller's transaction, and return them."""
        dropped = self._read(before)
        if dropped:
            self._show(self._days - set(dropped))
            for day in dropped:
                self._writer.execute(f"DROP TABLE {table_of(day)}")
            self._writer.execute(f"DELETE FROM {SCHEMA}.event_days WHERE day < ?", [before])
        return dropped

    def forget(self, dropped: Iterable[date]) -> None:
        """These are dropped: the transaction has committed."""
        self._days -= set(dropped)

    def sort_oldest(self, before: date) -> date | None:
        """Sort one day before that one, if there is any that is not; returns which. 1 to 2 s a million events."""
        for day in self._read(before, but_sorted=True):
            with transaction(self._writer):
                self._sort(day)
            return day
        return None

    def _sort(self, day: date) -> None:
        name = table_of(day)
        self._writer.execute(f"ALTER TABLE {name} RENAME TO unsorted")
        self._writer.execute(f"CREATE TABLE {name} ({definitions(RUN_EVENT_COLUMNS)})")
        order = "ORDER BY tenant, job_id, run_id, version"
        self._writer.execute(f"INSERT INTO {name} SELECT {_COLUMNS} FROM {SCHEMA}.unsorted {order}")
        self._writer.execute(f"DROP TABLE {SCHEMA}.unsorted")
        self._writer.execute(f"UPDATE {SCHEMA}.event_days SET sorted = true WHERE day = ?", [day])

    def _read(self, before: date, *, but_sorted: bool = False) -> list[date]:
        return [day for [day] in self._writer.execute(_READ_DAYS, [before, not but_sorted]).fetchall()]

    def _create(self, days: Iterable[date]) -> None:
        for day in sorted(days):
            self._writer.execute(f"CREATE TABLE {table_of(day)} ({definitions(RUN_EVENT_COLUMNS)})")
            self._writer.execute(f"INSERT INTO {SCHEMA}.event_days VALUES (?, false)", [day])

    def _show(self, days: Iterable[date]) -> None:
        tables = [f"SELECT {_COLUMNS} FROM {table_of(day)}" for day in sorted(days)] or [
            f"SELECT {_NO_EVENTS} WHERE false"
        ]
        self._writer.execute(f"CREATE OR REPLACE VIEW {SCHEMA}.run_events AS {' UNION ALL '.join(tables)}")

    def _part_the_one_table(self) -> None:
        """A store of a build before days has all its events in one table."""
        [[is_one]] = self._writer.execute(_IS_ONE_TABLE).fetchall()
        if not is_one:
            return
        self._writer.execute(f"ALTER TABLE {SCHEMA}.run_events RENAME TO undivided")
        self._writer.execute(f'ALTER TABLE {SCHEMA}.undivided ADD COLUMN IF NOT EXISTS "count" BIGINT')
        found = self._writer.execute(f"SELECT DISTINCT happened_at::DATE FROM {SCHEMA}.undivided").fetchall()
        days = {day for [day] in found}
        self._create(days)
        for day in days:
            of_day = within(day, "happened_at")
            self._writer.execute(
                f"INSERT INTO {table_of(day)} SELECT {_COLUMNS} FROM {SCHEMA}.undivided WHERE {of_day}"
            )
        self._writer.execute(f"DROP TABLE {SCHEMA}.undivided")
        self._days |= days
