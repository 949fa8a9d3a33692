"""The history on disk: DuckDB tables folded from run events, with the topic positions in the same transaction.

`run_events` keeps every event once, in a table a day, `runs` and `jobs` the latest state of each, `audit` who changed
what. Whatever was committed is exactly what the positions say was read, so a process killed at any point goes on where
its last commit stopped. Events that the relay published twice are told by their version, which grows with every event
of a run or job; audits by their ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import NamedTuple

import duckdb

from streams.history_days import EventDays, begin_of, days_of, table_of, transaction, within
from streams.history_tables import (
    AUDIT_COLUMNS,
    CREATE_BATCH,
    CREATE_TABLES,
    FOLD_JOBS,
    FOLD_RUNS,
    FORGET_ENDED,
    JOB_COLUMNS,
    KEEP_NEW_AUDITS,
    KEEP_NEW_EVENTS,
    KEEP_POSITIONS,
    READ_POSITIONS,
    READ_RUN,
    RUN_EVENT_COLUMNS,
    SCHEMA,
    AuditRow,
    EventRow,
)

_RUN_ID, _HAPPENED_AT = map(list(RUN_EVENT_COLUMNS).index, ("run_id", "happened_at"))
_AUDIT_AT = list(AUDIT_COLUMNS).index("happened_at")


class RunState(NamedTuple):
    """The latest known state of a run: a row of `runs`."""

    run_id: str
    job_id: str
    tenant: str
    queue: str
    lane: str
    state: str
    version: int
    attempt: int | None
    lease_token: int | None
    scheduled_for: datetime | None
    due_at: datetime | None
    first_leased_at: datetime | None
    lateness_ms: float | None
    lease_expires_at: datetime | None
    finished_at: datetime | None
    worker_id: str | None
    reason: str | None
    result: str | None
    updated_at: datetime


class HistoryStore:
    """One DuckDB file, owned by this process. One thread appends; any thread may read, each call on its own cursor."""

    def __init__(self, path: Path, *, memory_limit: str = "256MB", threads: int = 2) -> None:
        """Opens or creates the file. Raises duckdb.IOException while another process has it open."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = duckdb.connect(
            str(path),
            config={
                "memory_limit": memory_limit,
                "threads": threads,
                "max_temp_directory_size": "1GB",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "enable_external_access": False,
            },
        )
        self._database.execute("SET GLOBAL TimeZone = 'UTC'")
        self._database.execute("SET lock_configuration = true")
        self._database.execute(CREATE_TABLES)
        self._writer = self._database.cursor()
        self._days = EventDays(self._writer)
        self._complete_jobs()
        self._writer.execute(CREATE_BATCH)
        self._goes_back_to = date.min

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the file, for one reader."""
        return self._database.cursor()

    def positions(self) -> dict[int, int]:
        """The next offset to read of every partition that was read before."""
        with self.cursor() as reader:
            return dict(reader.execute(READ_POSITIONS).fetchall())

    def append(self, events: Sequence[EventRow], positions: Mapping[int, int], audits: Sequence[AuditRow] = ()) -> int:
        """Fold events, keep audits and move the positions, all or nothing; returns how many of the events were new.

        positions: the next offset of each partition the events came from. Events of days that are forgotten are left
        out. Raises duckdb.Error with nothing written.
        """
        days = days_of(event[_HAPPENED_AT] for event in events)
        if any(day < self._goes_back_to for day in days):
            events = [event for event in events if event[_HAPPENED_AT] >= begin_of(self._goes_back_to)]
            days = {day for day in days if day >= self._goes_back_to}
        self._days.make(days)
        with transaction(self._writer):
            kept = self._fold(events, days) if events else 0
            if audits:
                self._keep(audits)
            self._writer.execute(KEEP_POSITIONS, [list(positions), list(positions.values())])
        return kept

    def _fold(self, events: Sequence[EventRow], days: Collection[date]) -> int:
        with self._writer.appender("incoming") as appender:
            appender.append_rows(events)
        kept = sum(self._keep_events_of(day) for day in days)
        self._writer.execute(FOLD_RUNS)
        if any(event[_RUN_ID] is None for event in events):
            self._writer.execute(FOLD_JOBS.format(source="batch"))
        self._writer.execute("DELETE FROM incoming")
        return kept

    def _keep_events_of(self, day: date) -> int:
        statement = KEEP_NEW_EVENTS.format(table=table_of(day), of_day=within(day, "b.happened_at"))
        [[kept]] = self._writer.execute(statement).fetchall()
        return int(kept)

    def _keep(self, audits: Sequence[AuditRow]) -> None:
        with self._writer.appender("incoming_audits") as appender:
            appender.append_rows(audits)
        self._writer.execute(KEEP_NEW_AUDITS, [min(audit[_AUDIT_AT] for audit in audits)])
        self._writer.execute("DELETE FROM incoming_audits")

    def forget(self, before: date) -> list[date]:
        """Drop the days before that one, and what ended before it; returns the days. None of them is kept again."""
        self._goes_back_to = before
        with transaction(self._writer):
            dropped = self._days.drop(before)
            for statement in FORGET_ENDED if dropped else ():
                self._writer.execute(statement, {"before": before})
        self._days.forget(dropped)
        return dropped

    def sort_a_day(self, before: date) -> date | None:
        """Sort one day before that one, which makes a look at one job quick; returns which, None when all are sorted.

        Nothing is appended meanwhile: 1 to 2 s a million events.
        """
        return self._days.sort_oldest(before)

    def _complete_jobs(self) -> None:
        """A build of before kept no more of jobs than their versions; their events have the rest."""
        known = {name for name, *_ in self._writer.execute(f"DESCRIBE {SCHEMA}.jobs").fetchall()}
        if missing := [name for name in JOB_COLUMNS if name not in known]:
            with transaction(self._writer):
                for name in missing:
                    self._writer.execute(f"ALTER TABLE {SCHEMA}.jobs ADD COLUMN {name} {JOB_COLUMNS[name]}")
                self._writer.execute(FOLD_JOBS.format(source=f"{SCHEMA}.run_events"))

    def latest_run(self, run_id: str) -> RunState | None:
        """What the history knows last about a run; None for an unknown one."""
        with self.cursor() as reader:
            row = reader.execute(READ_RUN, [run_id]).fetchone()
        return None if row is None else RunState(str(row[0]), str(row[1]), *row[2:])

    def close(self) -> None:
        self._writer.close()
        self._database.close()
