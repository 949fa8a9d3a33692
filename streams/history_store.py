"""The history on disk: DuckDB tables folded from run events, with the topic positions in the same transaction.

`run_events` keeps every event once, `runs` the latest state of every run, `audit` who changed what. Whatever was
committed is exactly what the positions say was read, so a process killed at any point goes on where its last commit
stopped. Events that the relay published twice are told by their version, which grows with every event of a run or job;
audits by their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

# The tables live outside the search path, so that a tenant's query can never reach them by their plain names.
SCHEMA = "store"

RUN_EVENT_COLUMNS: Mapping[str, str] = {
    "event_id": "VARCHAR NOT NULL",
    "type": "VARCHAR NOT NULL",
    "happened_at": "TIMESTAMPTZ NOT NULL",
    "tenant": "VARCHAR NOT NULL",
    "job_id": "UUID NOT NULL",
    "run_id": "UUID",
    "version": "BIGINT NOT NULL",
    "queue": "VARCHAR NOT NULL",
    "lane": "VARCHAR NOT NULL",
    "attempt": "INTEGER",
    "lease_token": "BIGINT",
    "scheduled_for": "TIMESTAMPTZ",
    "due_at": "TIMESTAMPTZ",
    "lease_expires_at": "TIMESTAMPTZ",
    "worker_id": "VARCHAR",
    "reason": "VARCHAR",
    "result": "VARCHAR",
    "definition": "VARCHAR",
    "count": "BIGINT",
    "partition": "INTEGER NOT NULL",
    "topic_offset": "BIGINT NOT NULL",
}

# No primary key: its index would be in memory as a whole, and cost more than the fold. The fold keeps runs unique, and
# run ids begin with a time, so that a look-up skips nearly all of the file by its minima and maxima.
RUN_COLUMNS: Mapping[str, str] = {
    "run_id": "UUID NOT NULL",
    "job_id": "UUID NOT NULL",
    "tenant": "VARCHAR NOT NULL",
    "queue": "VARCHAR NOT NULL",
    "lane": "VARCHAR NOT NULL",
    "state": "VARCHAR NOT NULL",
    "version": "BIGINT NOT NULL",
    "attempt": "INTEGER",
    "lease_token": "BIGINT",
    "scheduled_for": "TIMESTAMPTZ",
    "due_at": "TIMESTAMPTZ",
    "first_leased_at": "TIMESTAMPTZ",
    "lateness_ms": "DOUBLE",
    "lease_expires_at": "TIMESTAMPTZ",
    "finished_at": "TIMESTAMPTZ",
    "worker_id": "VARCHAR",
    "reason": "VARCHAR",
    "result": "VARCHAR",
    "updated_at": "TIMESTAMPTZ NOT NULL",
}

AUDIT_COLUMNS: Mapping[str, str] = {
    "event_id": "VARCHAR NOT NULL",
    "happened_at": "TIMESTAMPTZ NOT NULL",
    "tenant": "VARCHAR NOT NULL",
    "actor": "VARCHAR NOT NULL",
    "action": "VARCHAR NOT NULL",
    "subject": "VARCHAR NOT NULL",
    "detail": "VARCHAR",
    "partition": "INTEGER NOT NULL",
    "topic_offset": "BIGINT NOT NULL",
}

# The values of RUN_EVENT_COLUMNS, in their order; ids as text, times as microseconds since 1970.
EventRow = tuple[Any, ...]
AuditRow = tuple[Any, ...]  # in the same way those of AUDIT_COLUMNS
_RUN_ID = list(RUN_EVENT_COLUMNS).index("run_id")


def _columns(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _typed(name: str, kind: str) -> str:
    """The SQL for a column's value, of a batch that has times as numbers: a datetime each would be made and unmade."""
    return f"make_timestamptz({name}) AS {name}" if kind.startswith("TIMESTAMPTZ") else f'"{name}"'


CREATE_TABLES = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {SCHEMA}.positions ("partition" INTEGER PRIMARY KEY, next_offset BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS {SCHEMA}.run_events ({_columns(RUN_EVENT_COLUMNS)});
ALTER TABLE {SCHEMA}.run_events ADD COLUMN IF NOT EXISTS "count" BIGINT;
CREATE TABLE IF NOT EXISTS {SCHEMA}.runs ({_columns(RUN_COLUMNS)});
CREATE TABLE IF NOT EXISTS {SCHEMA}.audit ({_columns(AUDIT_COLUMNS)});
CREATE TABLE IF NOT EXISTS {SCHEMA}.jobs (job_id UUID PRIMARY KEY, version BIGINT NOT NULL);
"""

CREATE_BATCH = f"""
CREATE TEMP TABLE incoming ({_columns(RUN_EVENT_COLUMNS).replace("TIMESTAMPTZ", "BIGINT")});
CREATE TEMP VIEW batch AS
SELECT {", ".join(_typed(name, kind) for name, kind in RUN_EVENT_COLUMNS.items())}, rowid AS place FROM incoming;
CREATE TEMP TABLE incoming_audits ({_columns(AUDIT_COLUMNS).replace("TIMESTAMPTZ", "BIGINT")});
CREATE TEMP TABLE changed ({_columns(RUN_COLUMNS)});
"""

# Before the folds below, which move the versions that it compares with. An event twice in the batch counts once, where
# it came first: to look for its place costs half of what numbering the rows does.
KEEP_NEW_EVENTS = f"""
INSERT INTO {SCHEMA}.run_events BY NAME
SELECT b.* EXCLUDE (place) FROM batch b
LEFT JOIN {SCHEMA}.runs r ON r.run_id = b.run_id
LEFT JOIN {SCHEMA}.jobs j ON j.job_id = CASE WHEN b.run_id IS NULL THEN b.job_id END
WHERE b.version > coalesce(r.version, j.version, 0)
  AND b.place IN (SELECT min(place) FROM batch GROUP BY coalesce(run_id, job_id), version)
"""

# What an event does not tell about its run stays as it was known; of the first lease, what was known first.
_KNOWN_LAST = frozenset({"attempt", "lease_token", "scheduled_for", "due_at", "worker_id"})
_KNOWN_FIRST = frozenset({"first_leased_at", "lateness_ms"})


def _folded(column: str) -> str:
    if column in _KNOWN_FIRST:
        return f"coalesce(kept.{column}, latest.{column})"
    return f"coalesce(latest.{column}, kept.{column})" if column in _KNOWN_LAST else f"latest.{column}"


# arg_max passes over NULLs (the newest value known), arg_max_null does not (the newest event's own). Folding an event
# again changes nothing, so a batch that mixes old and new events of a run needs no sorting out. A changed run is
# deleted and inserted: an update would write each of its columns apart, which takes twice as long.
FOLD_RUNS = f"""
INSERT INTO changed
WITH typed AS (
    SELECT *, CASE type
        WHEN 'run_scheduled' THEN 'scheduled'
        WHEN 'run_released' THEN 'scheduled'
        WHEN 'run_held' THEN 'held'
        WHEN 'run_leased' THEN 'leased'
        WHEN 'run_cancel_requested' THEN 'leased'
        WHEN 'run_retried' THEN 'retrying'
        WHEN 'run_completed' THEN 'completed'
        WHEN 'run_dead' THEN 'dead'
        WHEN 'run_cancelled' THEN 'cancelled'
        WHEN 'run_skipped' THEN 'skipped'
        ELSE 'unknown' END AS state
    FROM batch WHERE run_id IS NOT NULL
), latest ({", ".join(RUN_COLUMNS)}) AS (
    SELECT run_id, arg_max(job_id, version), arg_max(tenant, version), arg_max(queue, version), arg_max(lane, version),
           arg_max(state, version), max(version), arg_max(attempt, version), arg_max(lease_token, version),
           arg_max(scheduled_for, version), arg_max(due_at, version),
           arg_min(happened_at, version) FILTER (state = 'leased'),
           (arg_min(epoch_us(happened_at) - epoch_us(coalesce(due_at, scheduled_for)), version)
               FILTER (state = 'leased')) / 1000,
           arg_max_null(lease_expires_at, version),
           arg_max_null(CASE WHEN state IN ('completed', 'dead', 'cancelled', 'skipped') THEN happened_at END, version),
           arg_max(worker_id, version), arg_max_null(reason, version), arg_max_null(result, version),
           arg_max(happened_at, version)
    FROM typed GROUP BY run_id
)
SELECT {", ".join(_folded(column) for column in RUN_COLUMNS)}
FROM latest LEFT JOIN {SCHEMA}.runs kept ON kept.run_id = latest.run_id
WHERE latest.version > coalesce(kept.version, 0);
DELETE FROM {SCHEMA}.runs WHERE run_id IN (SELECT run_id FROM changed);
INSERT INTO {SCHEMA}.runs BY NAME FROM changed;
DELETE FROM changed;
"""

FOLD_JOBS = f"""
INSERT INTO {SCHEMA}.jobs AS kept
SELECT job_id, max(version) FROM batch WHERE run_id IS NULL GROUP BY job_id
ON CONFLICT (job_id) DO UPDATE SET version = excluded.version WHERE excluded.version > kept.version
"""

# What is looked for is as old as the batch or younger, so nearly all of the table is skipped.
KEEP_NEW_AUDITS = f"""
INSERT INTO {SCHEMA}.audit BY NAME
SELECT {", ".join(_typed(name, kind) for name, kind in AUDIT_COLUMNS.items())} FROM incoming_audits
WHERE rowid IN (SELECT min(rowid) FROM incoming_audits GROUP BY event_id)
  AND event_id NOT IN (SELECT event_id FROM {SCHEMA}.audit WHERE happened_at >= make_timestamptz(?::BIGINT))
"""
_AUDIT_AT = list(AUDIT_COLUMNS).index("happened_at")

# One statement for all: DuckDB plans each anew, which takes it a millisecond.
KEEP_POSITIONS = f"INSERT OR REPLACE INTO {SCHEMA}.positions SELECT unnest(?::INTEGER[]), unnest(?::BIGINT[])"
READ_POSITIONS = f'SELECT "partition", next_offset FROM {SCHEMA}.positions'
READ_RUN = f"SELECT {', '.join(RUN_COLUMNS)} FROM {SCHEMA}.runs WHERE run_id = ?"


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
        self._writer.execute(CREATE_BATCH)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own to the file, for one reader."""
        return self._database.cursor()

    def positions(self) -> dict[int, int]:
        """The next offset to read of every partition that was read before."""
        with self.cursor() as reader:
            return dict(reader.execute(READ_POSITIONS).fetchall())

    def append(self, events: Sequence[EventRow], positions: Mapping[int, int], audits: Sequence[AuditRow] = ()) -> int:
        """Fold events, keep audits and move the positions, all or nothing; returns how many of the events were new.

        positions: the next offset of each partition the events came from. Raises duckdb.Error with nothing written.
        """
        self._writer.begin()
        try:
            kept = self._fold(events) if events else 0
            if audits:
                self._keep(audits)
            self._writer.execute(KEEP_POSITIONS, [list(positions), list(positions.values())])
            self._writer.commit()
        except BaseException:
            self._writer.rollback()
            raise
        return kept

    def _fold(self, events: Sequence[EventRow]) -> int:
        with self._writer.appender("incoming") as appender:
            appender.append_rows(events)
        [[kept]] = self._writer.execute(KEEP_NEW_EVENTS).fetchall()
        self._writer.execute(FOLD_RUNS)
        if any(event[_RUN_ID] is None for event in events):
            self._writer.execute(FOLD_JOBS)
        self._writer.execute("DELETE FROM incoming")
        return int(kept)

    def _keep(self, audits: Sequence[AuditRow]) -> None:
        with self._writer.appender("incoming_audits") as appender:
            appender.append_rows(audits)
        self._writer.execute(KEEP_NEW_AUDITS, [min(audit[_AUDIT_AT] for audit in audits)])
        self._writer.execute("DELETE FROM incoming_audits")

    def latest_run(self, run_id: str) -> RunState | None:
        """What the history knows last about a run; None for an unknown one."""
        with self.cursor() as reader:
            row = reader.execute(READ_RUN, [run_id]).fetchone()
        return None if row is None else RunState(str(row[0]), str(row[1]), *row[2:])

    def close(self) -> None:
        self._writer.close()
        self._database.close()
