"""Read-only SQL over one tenant's history: checked, confined, bounded in rows and time."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import duckdb

from schemas.errors import HistoryBusy, QueryRejected
from streams.history_store import HistoryStore
from streams.history_tables import AUDIT_COLUMNS, JOB_COLUMNS, RUN_COLUMNS, RUN_EVENT_COLUMNS, SCHEMA
from streams.query_guard import Node, parse_query, parse_statements, tables_of

MAX_ROWS = 10_000


def _confined(table: str, columns: Iterable[str]) -> str:
    names = ", ".join(f'"{name}"' for name in columns)
    return f"{table} AS NOT MATERIALIZED (SELECT {names} FROM {SCHEMA}.{table} WHERE tenant = $tenant)"


# An attempt lasts until the run's next event, except a cancel that is only asked for. Partitioned by whatever one
# looks for attempts by, so that such a filter reaches the scan.
_ATTEMPTS = """
SELECT run_id, job_id, tenant, queue, lane, attempt, lease_token, worker_id, scheduled_for, due_at,
       happened_at AS leased_at, next.happened_at AS ended_at,
       CASE next.type WHEN 'run_completed' THEN 'completed' WHEN 'run_retried' THEN 'retried'
                      WHEN 'run_dead' THEN 'dead' WHEN 'run_cancelled' THEN 'cancelled' ELSE next.type END AS outcome,
       next.reason AS reason
FROM (
    SELECT *, lead({'type': type, 'happened_at': happened_at, 'reason': reason}) OVER (
        PARTITION BY tenant, queue, job_id, run_id ORDER BY version) AS next
    FROM run_events WHERE run_id IS NOT NULL AND type <> 'run_cancel_requested'
) AS moves WHERE type = 'run_leased'
"""
# What was decided last of each occurrence; a range of skipped ones is one decision.
_DECISIONS = """
SELECT job_id, run_id, tenant, queue, scheduled_for, happened_at AS decided_at,
       CASE type WHEN 'run_held' THEN 'held' WHEN 'run_skipped' THEN 'skipped' WHEN 'occurrences_skipped' THEN 'skipped'
                 ELSE 'run' END AS decision,
       reason, due_at, "count"
FROM (
    SELECT *, row_number() OVER (
        PARTITION BY tenant, queue, job_id, run_id, CASE WHEN run_id IS NULL THEN version END ORDER BY version DESC
    ) AS place
    FROM run_events
    WHERE type IN ('run_scheduled', 'run_held', 'run_released', 'run_skipped', 'occurrences_skipped')
) AS decided WHERE place = 1
"""
# What each table of a tenant is; those of one may stand upon those before it.
_TABLES = {
    "run_events": _confined("run_events", RUN_EVENT_COLUMNS),
    "runs": _confined("runs", RUN_COLUMNS),
    "jobs": _confined("jobs", JOB_COLUMNS),
    "audit": _confined("audit", AUDIT_COLUMNS),
    "attempts": f"attempts AS NOT MATERIALIZED ({_ATTEMPTS})",
    "decisions": f"decisions AS NOT MATERIALIZED ({_DECISIONS})",
}
_STANDS_UPON = {"attempts": "run_events", "decisions": "run_events"}


def confined_query(tables: Collection[str]) -> str:
    """A query around a tenant's, whose statement takes the place of the inner SELECT in the parse tree.

    tables: those that it asks; the CTEs are the only tables of those names there. NOT MATERIALIZED lets its filters
    reach the scan. None that it does not ask: to plan one costs a millisecond or ten.
    """
    needed = {*tables, *(_STANDS_UPON[table] for table in tables if table in _STANDS_UPON)}
    ctes = [cte for table, cte in _TABLES.items() if table in (needed or {"runs"})]  # $tenant must be named
    return f"WITH {', '.join(ctes)} SELECT * FROM (SELECT 1) AS answer LIMIT $rows"


class Column(NamedTuple):
    name: str
    type: str


class Answer(NamedTuple):
    """rows hold JSON-ready values; truncated says that there were more than the limit."""

    columns: list[Column]
    rows: list[list[Any]]
    truncated: bool


class HistoryQueries:
    """Answers queries, each on a cursor of its own. Blocks: call it from a thread."""

    def __init__(self, store: HistoryStore, *, time_limit_s: float = 10.0) -> None:
        self._store = store
        self._time_limit_s = time_limit_s
        self._running: set[duckdb.DuckDBPyConnection] = set()
        self._stopping = False

    def query(self, tenant: str, sql: str, limit: int = 1000) -> Answer:
        """The rows of a SELECT over one tenant's tables (`query_guard.TABLES`), at most `limit` (≤ 10,000) of them.

        Raises QueryRejected (never to be repeated as it is) or HistoryBusy (short of memory, or stopping).
        """
        if not 1 <= limit <= MAX_ROWS:
            raise QueryRejected(f"limit must be 1 to {MAX_ROWS}", field="limit")
        with self._store.cursor() as reader, _query_errors(), self._time_limit(reader):
            statement = confine(reader, sql)
            reader.execute("BEGIN TRANSACTION READ ONLY")
            reader.execute(statement, {"tenant": tenant, "rows": limit + 1})
            columns = [Column(name, str(kind)) for name, kind, *_ in reader.description or ()]
            rows = reader.fetchall()
        return Answer(columns, [[json_ready(value) for value in row] for row in rows[:limit]], len(rows) > limit)

    def stop(self) -> None:
        """End what is running and what still comes, from any thread."""
        self._stopping = True
        for reader in tuple(self._running):
            reader.interrupt()

    @contextmanager
    def _time_limit(self, reader: duckdb.DuckDBPyConnection) -> Iterator[None]:
        timer = threading.Timer(self._time_limit_s, reader.interrupt)
        timer.daemon = True
        self._running.add(reader)
        timer.start()
        try:
            if self._stopping:
                raise duckdb.InterruptException
            yield
        except duckdb.InterruptException as error:
            if self._stopping:
                raise HistoryBusy("the history is stopping") from error
            raise QueryRejected(f"the query took longer than {self._time_limit_s:g} s") from error
        finally:
            timer.cancel()
            timer.join()  # an interrupt that is just being sent must not meet a closed cursor
            self._running.discard(reader)


def confine(conn: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The text to execute for a tenant's SQL, with parameters tenant and rows. Raises QueryRejected."""
    checked = parse_query(conn, sql)
    [outer] = parse_statements(conn, confined_query(tables_of(checked)))
    answer: Node = outer["node"]["from_table"]
    answer["subquery"] = checked
    tree = json.dumps({"error": False, "statements": [outer]})
    [[text]] = conn.execute("SELECT json_deserialize_sql(?::JSON)", [tree]).fetchall()
    return str(text)


@contextmanager
def _query_errors() -> Iterator[None]:
    """Our errors for DuckDB's. Their first line tells the user what to mend; what follows shows our own text."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise HistoryBusy("the query needs more memory than it may have") from error
    except duckdb.InterruptException:
        raise
    except duckdb.Error as error:
        raise QueryRejected(str(error).partition("\n")[0]) from error


def json_ready(value: Any) -> Any:
    """A value of DuckDB as JSON can hold it: instants as RFC 3339 in UTC, ids as text, intervals in seconds."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case datetime():
            return _instant(value)
        case UUID():
            return str(value)
        case Decimal():
            return float(value)
        case timedelta():
            return value.total_seconds()
        case date() | time():
            return value.isoformat()
        case bytes():
            return value.hex()
        case dict():
            return {str(json_ready(key)): json_ready(item) for key, item in value.items()}
        case list() | tuple():
            return [json_ready(item) for item in value]
        case _:
            return str(value)


def _instant(value: datetime) -> str:
    """RFC 3339 with Z; a reading without a zone keeps none."""
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
