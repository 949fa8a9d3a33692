"""The tables of the history in DuckDB, and the statements that fold a batch of run events into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

# definition: the job as its last event tells it, without its payload.
JOB_COLUMNS: Mapping[str, str] = {
    "job_id": "UUID PRIMARY KEY",
    "tenant": "VARCHAR",
    "queue": "VARCHAR",
    "lane": "VARCHAR",
    "state": "VARCHAR",
    "version": "BIGINT NOT NULL",
    "definition": "VARCHAR",
    "created_at": "TIMESTAMPTZ",
    "updated_at": "TIMESTAMPTZ",
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


def definitions(columns: Mapping[str, str]) -> str:
    """The columns of a CREATE TABLE."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _typed(name: str, kind: str) -> str:
    """The SQL for a column's value, of a batch that has times as numbers: a datetime each would be made and unmade."""
    return f"make_timestamptz({name}) AS {name}" if kind.startswith("TIMESTAMPTZ") else f'"{name}"'


CREATE_TABLES = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {SCHEMA}.positions ("partition" INTEGER PRIMARY KEY, next_offset BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS {SCHEMA}.runs ({definitions(RUN_COLUMNS)});
CREATE TABLE IF NOT EXISTS {SCHEMA}.audit ({definitions(AUDIT_COLUMNS)});
CREATE TABLE IF NOT EXISTS {SCHEMA}.jobs ({definitions(JOB_COLUMNS)});
"""

CREATE_BATCH = f"""
CREATE TEMP TABLE incoming ({definitions(RUN_EVENT_COLUMNS).replace("TIMESTAMPTZ", "BIGINT")});
CREATE TEMP VIEW batch AS
SELECT {", ".join(_typed(name, kind) for name, kind in RUN_EVENT_COLUMNS.items())}, rowid AS place FROM incoming;
CREATE TEMP TABLE incoming_audits ({definitions(AUDIT_COLUMNS).replace("TIMESTAMPTZ", "BIGINT")});
CREATE TEMP TABLE changed ({definitions(RUN_COLUMNS)});
"""

# Before the folds below, which move the versions that it compares with. An event twice in the batch counts once, where
# it came first: to look for its place costs half of what numbering the rows does.
KEEP_NEW_EVENTS = f"""
INSERT INTO {{table}} BY NAME
SELECT b.* EXCLUDE (place) FROM batch b
LEFT JOIN {SCHEMA}.runs r ON r.run_id = b.run_id
LEFT JOIN {SCHEMA}.jobs j ON j.job_id = CASE WHEN b.run_id IS NULL THEN b.job_id END
WHERE b.version > coalesce(r.version, j.version, 0) AND {{of_day}}
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

# An edit leaves a paused job paused. Skipped occurrences have the job's versions too, and tell nothing of it.
# source: the table or view of the events.
FOLD_JOBS = f"""
INSERT INTO {SCHEMA}.jobs AS kept BY NAME
SELECT job_id, arg_max(tenant, version) AS tenant, arg_max(queue, version) AS queue, arg_max(lane, version) AS lane,
       arg_max(CASE type WHEN 'job_created' THEN 'active' WHEN 'job_resumed' THEN 'active'
                         WHEN 'job_paused' THEN 'paused' WHEN 'job_deleted' THEN 'deleted' END, version) AS state,
       max(version) AS version,
       arg_max(definition, version) AS definition,
       arg_max(scheduled_for, version) FILTER (type LIKE 'job_%') AS created_at,
       arg_max(happened_at, version) FILTER (type LIKE 'job_%') AS updated_at
FROM {{source}} WHERE run_id IS NULL GROUP BY job_id
ON CONFLICT (job_id) DO UPDATE SET
    tenant = excluded.tenant, queue = excluded.queue, lane = excluded.lane,
    state = coalesce(excluded.state, kept.state), version = excluded.version,
    definition = coalesce(excluded.definition, kept.definition),
    created_at = coalesce(excluded.created_at, kept.created_at),
    updated_at = coalesce(excluded.updated_at, kept.updated_at)
WHERE excluded.version >= kept.version
"""

# What ended lives on as long as the events that tell of it.
FORGET_ENDED = (
    f"DELETE FROM {SCHEMA}.runs WHERE finished_at < $before AND updated_at < $before",
    f"DELETE FROM {SCHEMA}.jobs WHERE state = 'deleted' AND updated_at < $before",
)

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
