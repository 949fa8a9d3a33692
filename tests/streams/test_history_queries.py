"""Tenants' SQL over the history: what it may say, what it can see, what it may cost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import thread_time
from typing import Any
from uuid import UUID

import pytest

from schemas.errors import CommandRejected, HistoryBusy, QueryRejected
from streams.history_queries import HistoryQueries, confine, json_ready
from streams.history_store import HistoryStore
from streams.history_tables import AUDIT_COLUMNS, JOB_COLUMNS, RUN_COLUMNS, RUN_EVENT_COLUMNS, EventRow
from streams.query_guard import MAX_OPEN, TABLES
from tests.streams.event_samples import START, life_of, run_row, stored


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HistoryStore]:
    """Three runs of acme and one of umbra, whose results do not convert to numbers."""
    store = HistoryStore(tmp_path_factory.mktemp("history") / "history.duckdb", memory_limit="128MB")
    events = [event for n in (1, 2, 3) for event in life_of(UUID(int=n))]
    events += life_of(UUID(int=4), tenant="umbra", queue="secret")
    pauses = enumerate(("acme", "umbra"))
    audits = [(f"audit-{n}", n, tenant, "t", "queue_paused", "mail", None, 0, n) for n, tenant in pauses]
    store.append([stored(event, offset) for offset, event in enumerate(events)], {0: 12}, audits)
    yield store
    store.close()


@pytest.fixture(scope="module")
def queries(store: HistoryStore) -> HistoryQueries:
    return HistoryQueries(store, time_limit_s=10.0)


def rows(queries: HistoryQueries, sql: str, tenant: str = "acme") -> list[list[Any]]:
    return queries.query(tenant, sql).rows


# What a tenant may say.


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT count(*) FROM runs", [[3]]),
        ("select count(*) from RUN_EVENTS;", [[9]]),
        ("SELECT state, count(*) AS n FROM runs GROUP BY ALL ORDER BY n DESC", [["completed", 3]]),
        ("SELECT quantile_cont(lateness_ms, 0.99) FROM runs -- all of them", [[500.0]]),
        ("FROM runs SELECT DISTINCT queue", [["mail"]]),
        ("WITH late AS (SELECT * FROM runs WHERE lateness_ms > 100) SELECT count(*) FROM late", [[3]]),
        ("WITH a AS (SELECT 1 AS x), b AS (SELECT x + 1 AS y FROM a) SELECT y FROM b", [[2]]),
        ("SELECT count(*) FROM runs JOIN run_events USING (run_id) WHERE type = 'run_leased'", [[3]]),
        ("SELECT 1 UNION ALL SELECT 2 ORDER BY 1 DESC", [[2], [1]]),
        ("SELECT result->>'sent' FROM runs LIMIT 1", [["2"]]),
        ("SELECT queue || '/' || lane FROM runs LIMIT 1", [["mail/normal"]]),
        ("SELECT date_trunc('hour', finished_at) FROM runs LIMIT 1", [["2026-03-01T12:00:00Z"]]),
        ("SELECT epoch_ms(first_leased_at) - epoch_ms(due_at) FROM runs LIMIT 1", [[500]]),
        ("SELECT CASE WHEN attempt BETWEEN 1 AND 2 THEN 'few' END FROM runs LIMIT 1", [["few"]]),
        ("SELECT version FROM run_events WHERE run_id = '00000000-0000-0000-0000-000000000001' ORDER BY version",
         [[1], [2], [3]]),
        ("SELECT max(version) - lag(max(version)) OVER (ORDER BY run_id) FROM runs GROUP BY run_id LIMIT 2",
         [[None], [0]]),
        ("SELECT count(*) FROM runs r WHERE EXISTS (SELECT 1 FROM run_events e WHERE e.run_id = r.run_id)", [[3]]),
        ("SELECT type FROM run_events WHERE tenant LIKE 'ac%' AND version IN (2) LIMIT 1", [["run_leased"]]),
        ("VALUES (1), (2)", [[1], [2]]),
        ("SELECT 'a;b', '--', '/*'", [["a;b", "--", "/*"]]),
    ],
)  # fmt: skip
def test_ordinary_sql_is_answered(queries: HistoryQueries, sql: str, expected: list[list[Any]]) -> None:
    assert rows(queries, sql) == expected


def test_the_columns_come_with_names_and_types(queries: HistoryQueries) -> None:
    answer = queries.query("acme", "SELECT run_id, finished_at AS ended, lateness_ms FROM runs")
    assert [tuple(column) for column in answer.columns] == [
        ("run_id", "UUID"),
        ("ended", "TIMESTAMP WITH TIME ZONE"),
        ("lateness_ms", "DOUBLE"),
    ]


def test_the_tables_have_the_documented_columns(queries: HistoryQueries) -> None:
    documented = {"runs": RUN_COLUMNS, "run_events": RUN_EVENT_COLUMNS, "jobs": JOB_COLUMNS, "audit": AUDIT_COLUMNS}
    for table, columns in documented.items():
        assert [column.name for column in queries.query("acme", f"FROM {table}").columns] == list(columns)


def of_events(tmp_path: Path, *events: EventRow) -> HistoryQueries:
    store = HistoryStore(tmp_path / "history.duckdb")
    store.append(events, {0: len(events)})
    return HistoryQueries(store)


def test_an_attempt_has_what_became_of_it(tmp_path: Path) -> None:
    run, other = UUID(int=1), UUID(int=2)
    queries = of_events(
        tmp_path,
        run_row(run, 1, "run_scheduled"),
        run_row(run, 2, "run_leased", attempt=1, workerId="one"),
        run_row(run, 3, "run_cancel_requested", reason="replaced"),
        run_row(run, 4, "run_retried", attempt=1, reason="lease expired"),
        run_row(run, 5, "run_leased", attempt=2, workerId="two"),
        run_row(run, 6, "run_completed", attempt=2),
        run_row(other, 2, "run_leased", attempt=1, workerId="three"),
        run_row(UUID(int=3), 1, "run_leased", attempt=1, workerId="spy", tenant="umbra"),
    )
    sql = "SELECT worker_id, attempt, outcome, reason, epoch(ended_at - leased_at) FROM attempts ORDER BY ALL DESC"
    assert rows(queries, sql) == [
        ["two", 2, "completed", None, 1.0],
        ["three", 1, None, None, None],
        ["one", 1, "retried", "lease expired", 2.0],
    ]
    assert rows(queries, "SELECT worker_id FROM attempts", "umbra") == [["spy"]]


def test_a_decision_is_the_last_one_on_an_occurrence(tmp_path: Path) -> None:
    held, other = UUID(int=1), UUID(int=2)
    queries = of_events(
        tmp_path,
        run_row(held, 1, "run_held", reason="overlap", scheduledFor=START),
        run_row(held, 2, "run_released", scheduledFor=START),
        run_row(other, 1, "run_skipped", reason="missed", scheduledFor=START + timedelta(hours=1)),
        run_row(held, 3, "run_leased", scheduledFor=START),
        run_row(None, 1, "job_created", definition="{}"),
        run_row(None, 2, "occurrences_skipped", reason="downtime", count=7, scheduledFor=START + timedelta(hours=2)),
        run_row(None, 3, "occurrences_skipped", reason="downtime", count=2, scheduledFor=START + timedelta(hours=9)),
    )
    sql = 'SELECT decision, reason, "count" FROM decisions ORDER BY scheduled_for'
    assert rows(queries, sql) == [
        ["run", None, None],
        ["skipped", "missed", None],
        ["skipped", "downtime", 7],
        ["skipped", "downtime", 2],
    ]


def test_what_is_planned_is_no_more_than_what_is_asked(store: HistoryStore) -> None:
    with store.cursor() as reader:
        text = confine(reader, "SELECT (SELECT count(*) FROM jobs) FROM attempts LIMIT 1")
    named = {table for table in TABLES if f"{table} AS NOT MATERIALIZED" in text}
    assert named == {"attempts", "jobs", "run_events"}


def test_order_and_offset_hold_up_to_the_answer(queries: HistoryQueries) -> None:
    sql = "SELECT run_id, version FROM run_events ORDER BY version DESC, run_id"
    versions = [version for _, version in queries.query("acme", sql, 7).rows]
    assert versions == [3, 3, 3, 2, 2, 2, 1]


def test_a_limit_truncates_and_says_so(queries: HistoryQueries) -> None:
    assert queries.query("acme", "FROM runs", 3).truncated is False
    answer = queries.query("acme", "FROM runs", 2)
    assert (len(answer.rows), answer.truncated) == (2, True)


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_limit_out_of_range_is_rejected_by_its_own_name(queries: HistoryQueries, limit: int) -> None:
    with pytest.raises(QueryRejected) as raised:
        queries.query("acme", "FROM runs", limit)
    assert raised.value.field == "limit"


def test_values_are_ready_for_json(queries: HistoryQueries) -> None:
    sql = """
    SELECT run_id, first_leased_at, first_leased_at::DATE, first_leased_at - due_at, 1.50::DECIMAL(4, 2),
           'nan'::DOUBLE, NULL, true, list(attempt), 170141183460469231731687303715884105727::HUGEINT
    FROM runs GROUP BY ALL ORDER BY run_id LIMIT 1
    """
    [row] = rows(queries, sql)
    assert row == [
        "00000000-0000-0000-0000-000000000001",
        "2026-03-01T12:00:00.500000Z",
        "2026-03-01",
        0.5,
        1.5,
        None,
        None,
        True,
        [1],
        170141183460469231731687303715884105727,
    ]


def test_the_rest_of_duckdbs_values_are_ready_for_json_too() -> None:
    assert json_ready(b"\x01\xff") == "01ff"
    assert json_ready({"at": START, 1: (START - START,)}) == {"at": "2026-03-01T12:00:00Z", "1": [0.0]}
    assert json_ready(START.replace(tzinfo=None)) == "2026-03-01T12:00:00"
    assert json_ready(START.time()) == "12:00:00"


# What a tenant can see.


def test_a_tenant_sees_only_its_own(queries: HistoryQueries) -> None:
    assert rows(queries, "SELECT DISTINCT tenant FROM runs") == [["acme"]]
    assert rows(queries, "SELECT DISTINCT tenant FROM run_events", "umbra") == [["umbra"]]
    assert rows(queries, "SELECT count(*) FROM runs", "nobody") == [[0]]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT tenant FROM runs WHERE tenant = 'umbra' OR true",
        "SELECT tenant FROM runs WHERE true OR tenant IS NULL UNION ALL SELECT tenant FROM run_events",
        "SELECT a.tenant FROM runs a FULL JOIN run_events b ON a.run_id <> b.run_id",
        "SELECT tenant FROM (SELECT * FROM runs) WHERE queue = 'mail' OR queue = 'secret'",
        "WITH r AS (SELECT * FROM runs) SELECT tenant FROM r",
        "SELECT tenant FROM audit WHERE tenant = 'umbra' OR true",
        "SELECT (SELECT max(tenant) FROM runs)",
        'SELECT "tenant" FROM "RuNs"',
    ],
)
def test_no_condition_reaches_another_tenant(queries: HistoryQueries, sql: str) -> None:
    assert {value for [value] in rows(queries, sql)} == {"acme"}


@pytest.mark.parametrize("tenant", ["acme' OR true --", "$rows", "", "umbra\0", "ACME"])
def test_a_tenants_name_is_never_sql(queries: HistoryQueries, tenant: str) -> None:
    assert rows(queries, "SELECT count(*) FROM runs", tenant) == [[0]]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM runs WHERE result::INT >= 0",
        "SELECT count(*) FROM runs WHERE queue LIKE '%' AND result::INT >= 0 AND worker_id ~ 'w'",
        "SELECT count(*) FROM runs a JOIN runs b ON a.result::INT = b.result::INT",
        "SELECT count(*) FROM runs WHERE queue = 'other' OR result::INT IN (SELECT result::INT FROM runs)",
    ],
)
def test_a_conversion_never_meets_another_tenants_values(tmp_path: Path, sql: str) -> None:
    """If the planner moved it below the tenant's filter, its error would tell that others have such values."""
    store = HistoryStore(tmp_path / "history.duckdb")
    mixed = [("acme", str(n)) if n % 2 else ("umbra", f"secret {n}") for n in range(5000)]
    store.append(
        [
            run_row(UUID(int=n), 1, "run_completed", tenant=tenant, result=result, workerId="w")
            for n, (tenant, result) in enumerate(mixed)
        ],
        {0: 1},
    )
    assert HistoryQueries(store).query("acme", sql).rows == [[2500]]
    store.close()


# What a tenant may not say.


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        # other statements, and more than one
        ("", "not 0 statements"),
        (";", "not 0 statements"),
        ("SELECT 1; SELECT 2", "not 2 statements"),
        ("SELECT 1; DROP TABLE store.runs", "only SELECT"),
        ("DROP TABLE runs", "only SELECT"),
        ("INSERT INTO runs SELECT * FROM runs", "only SELECT"),
        ("DELETE FROM store.runs", "only SELECT"),
        ("UPDATE store.runs SET tenant = 'acme'", "only SELECT"),
        ("CREATE TABLE main.runs AS SELECT 1", "only SELECT"),
        ("CREATE TEMP VIEW runs AS SELECT * FROM store.runs", "only SELECT"),
        ("CREATE MACRO count() AS 1", "only SELECT"),
        ("ATTACH 'other.duckdb'", "only SELECT"),
        ("COPY (SELECT 1) TO 'out.csv'", "only SELECT"),
        ("EXPORT DATABASE 'out'", "only SELECT"),
        ("INSTALL httpfs", "only SELECT"),
        ("LOAD httpfs", "only SELECT"),
        ("SET memory_limit = '1TB'", "only SELECT"),
        ("PRAGMA database_list", "only SELECT"),
        ("CALL pragma_version()", "only SELECT"),
        ("EXPLAIN SELECT 1", "only SELECT"),
        ("CHECKPOINT", "only SELECT"),
        ("USE store", "only SELECT"),
        ("BEGIN", "only SELECT"),
        ("PREPARE p AS SELECT 1", "only SELECT"),
        ("WITH gone AS (DELETE FROM store.runs RETURNING *) SELECT * FROM gone", "delete is not allowed"),
        ("WITH made AS (INSERT INTO runs VALUES (1) RETURNING *) SELECT * FROM made", "insert is not allowed"),
        ("WITH set AS (UPDATE store.runs SET state = '' RETURNING *) FROM set", "update is not allowed"),
        # other tables
        ("SELECT * FROM store.runs", "no table store.runs"),
        ("SELECT * FROM STORE.run_events", "no table STORE.run_events"),
        ("SELECT * FROM history.store.runs", "no table history.store.runs"),
        ("SELECT * FROM batch", "no table batch"),
        ("SELECT * FROM positions", "no table positions"),
        ("SELECT * FROM information_schema.tables", "no table information_schema.tables"),
        ("SELECT * FROM pg_catalog.pg_class", "no table pg_catalog.pg_class"),
        ("SELECT * FROM duckdb_settings", "no table duckdb_settings"),
        ("SELECT * FROM sqlite_master", "no table sqlite_master"),
        ("SELECT (SELECT count(*) FROM store.runs)", "no table store.runs"),
        ("SELECT 1 LIMIT (SELECT count(*) FROM store.runs)", "no table store.runs"),
        ("SELECT 1 ORDER BY (SELECT max(tenant) FROM store.runs)", "no table store.runs"),
        ("SELECT 1 FROM runs WHERE run_id IN (SELECT run_id FROM store.runs)", "no table store.runs"),
        ("WITH x AS (SELECT * FROM store.runs) SELECT * FROM x", "no table store.runs"),
        ("SELECT 1 UNION SELECT tenant FROM store.runs", "no table store.runs"),
        ("SELECT * FROM runs JOIN store.runs s ON true", "no table store.runs"),
        ("SELECT * FROM runs, LATERAL (SELECT * FROM store.runs)", "no table store.runs"),
        ("SELECT store.runs.tenant FROM runs", "not found"),
        ("TABLE store.runs", "no table store.runs"),
        ("SELECT * FROM 'file.csv'", "no table file.csv"),
        ("SELECT * FROM '/etc/passwd'", "no table /etc/passwd"),
        ("SELECT * FROM \"https://example.com/x.parquet\"", "no table https"),
        # a CTE's name is good only where it is in scope, and never one of ours
        ("WITH runs AS (SELECT 1) SELECT * FROM runs", "a CTE may not be called runs"),
        ("WITH Run_Events AS (SELECT 1) SELECT 1", "a CTE may not be called run_events"),
        ("SELECT 1 WHERE EXISTS (WITH duckdb_settings AS (SELECT 1) FROM duckdb_settings) "
         "AND EXISTS (FROM duckdb_settings)", "no table duckdb_settings"),
        ("WITH a AS (FROM duckdb_settings), duckdb_settings AS (SELECT 1) FROM a", "no table duckdb_settings"),
        ("WITH duckdb_settings AS (FROM duckdb_settings) FROM duckdb_settings", "no table duckdb_settings"),
        ("WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t) FROM t", "recursive cte"),
        # other sources
        ("SELECT * FROM read_csv('/etc/passwd')", "table function"),
        ("SELECT * FROM read_text('/etc/passwd')", "table function"),
        ("SELECT * FROM glob('*')", "table function"),
        ("SELECT * FROM query('SELECT * FROM store.runs')", "table function"),
        ("SELECT * FROM query_table('store.runs')", "table function"),
        ("SELECT * FROM range(1000000000000)", "table function"),
        ("SELECT * FROM generate_series(1, 10)", "table function"),
        ("SELECT * FROM duckdb_tables()", "table function"),
        ("SELECT * FROM runs, unnest([1, 2])", "table function"),
        ("SELECT * FROM json_execute_serialized_sql('{}')", "table function"),
        ("DESCRIBE store.runs", "show is not allowed"),
        ("SHOW ALL TABLES", "show is not allowed"),
        ("SUMMARIZE runs", "show is not allowed"),
        ("FROM (SHOW TABLES)", "show is not allowed"),
        ("SELECT * FROM runs TABLESAMPLE 10%", "SAMPLE is not allowed"),
        ("SELECT * FROM runs USING SAMPLE 3", "SAMPLE is not allowed"),
        ("SELECT * FROM runs AT (VERSION => 1)", "AT is not allowed"),
        # functions
        ("SELECT getenv('HOME')", "function getenv"),
        ("SELECT current_setting('memory_limit')", "function current_setting"),
        ("SELECT getvariable('x')", "function getvariable"),
        ("SELECT nextval('s')", "function nextval"),
        ("SELECT version()", "function version"),
        ("SELECT repeat('x', 1000000000)", "function repeat"),
        ("SELECT lpad('x', 1000000000, 'y')", "function lpad"),
        ("SELECT format('{:1000000000}', 1)", "function format"),
        ("SELECT printf('%1000000000d', 1)", "function printf"),
        ("SELECT replace('aaa', 'a', 'aaaa')", "function replace"),
        ("SELECT range(1000000000)", "function range"),
        ("SELECT list_transform([1], lambda x: x + 1)", "function list_transform"),
        ("SELECT error('x')", "function error"),
        ("SELECT main.count(*) FROM runs", "function main.count"),
        ("SELECT system.main.getenv('HOME')", "function system.main.getenv"),
        ("SELECT count(*) FILTER (WHERE getenv('HOME') = '/root') FROM runs", "function getenv"),
        ("SELECT sum(1) OVER (ORDER BY getenv('HOME')) FROM runs", "function getenv"),
        ("SELECT [getenv('HOME')]", "function getenv"),
        ("SELECT string_agg(queue, getenv('HOME') ORDER BY getenv('HOME')) FROM runs", "function getenv"),
        ("SELECT 1 LIMIT getenv('N')::INT", "function getenv"),
        ("VALUES (getenv('HOME'))", "function getenv"),
        ("SELECT * REPLACE (getenv('HOME') AS queue) FROM runs", "function getenv"),
        ("SELECT " + "||".join(["result"] * 40) + " FROM runs", "concatenations"),
        ("SELECT concat(concat(queue, lane), 'x'::ENUM('x'))", "type ENUM"),
        ("SELECT 'x'::store.secret", "type store.secret"),
        # odds and ends
        ("SELECT $1", "parameter"),
        ("SELECT $tenant", "parameter"),
        ("SELECT ?", "parameter"),
        ("SELECT 1) UNION SELECT * FROM (SELECT 2", "syntax error"),
        ("SELECT 1 /*", ""),
        ("SELEC 1", "syntax error"),
        ("SELECT \0", "NUL"),
        ("SELECT nothing FROM runs", 'column "nothing" not found'),
        ("SELECT 'secret'::INT", "Conversion Error"),
        ("SELECT 1" + " + 1" * 6_000, "characters"),
    ],
)  # fmt: skip
def test_hostile_sql_is_rejected_with_its_reason(queries: HistoryQueries, sql: str, reason: str) -> None:
    with pytest.raises(QueryRejected) as raised:
        queries.query("acme", sql)
    assert reason in str(raised.value)
    assert (raised.value.field, raised.value.code) == ("sql", "query_rejected")


def test_a_rejected_query_is_rejected_like_a_command() -> None:
    assert issubclass(QueryRejected, CommandRejected)


@pytest.mark.parametrize("depth", [300, 450, 900, 4_000])
def test_deep_nesting_is_rejected_and_harms_nobody(queries: HistoryQueries, depth: int) -> None:
    for sql in ("SELECT " + "NOT " * depth + "true", "FROM (" * depth + "SELECT 1" + ")" * depth):
        with pytest.raises(QueryRejected):
            queries.query("acme", sql)
    assert rows(queries, "SELECT 1") == [[1]]


# What it may cost.


@pytest.mark.parametrize("piece", ["(", "[", "{'a': ", "- ", "+ ", "-/**/", "(- ", "abs(", "x[", "CASE WHEN ("])
def test_what_opens_without_end_is_refused_before_the_parser_keeps_it_all(queries: HistoryQueries, piece: str) -> None:
    began, before = thread_time(), getrusage(RUSAGE_SELF).ru_maxrss
    for times in (MAX_OPEN, 20_000 // len(piece) - 10):
        with pytest.raises(QueryRejected):
            queries.query("acme", "SELECT " + piece * times)
    assert thread_time() - began < 1
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB


def test_signs_within_values_are_no_signs_that_open(queries: HistoryQueries) -> None:
    run_ids = ", ".join(f"'{UUID(int=n)}'" for n in range(400))
    assert rows(queries, f"SELECT count(*) FROM runs WHERE run_id IN ({run_ids})") == [[3]]
    assert rows(queries, "SELECT 1 " + "- 1 " * 60) == [[-59]]


def test_a_query_that_takes_too_long_is_ended(store: HistoryStore) -> None:
    endless = "SELECT count(*) FROM " + ", ".join(f"run_events e{n}" for n in range(12))
    with pytest.raises(QueryRejected, match="longer than"):
        HistoryQueries(store, time_limit_s=0.3).query("acme", endless)
    assert rows(HistoryQueries(store), "SELECT 1") == [[1]]


def test_a_query_that_needs_too_much_memory_is_ended(store: HistoryStore) -> None:
    greedy = "SELECT list(e0.run_id) FROM " + ", ".join(f"run_events e{n}" for n in range(8))
    with pytest.raises(HistoryBusy, match="memory"):
        HistoryQueries(store, time_limit_s=60).query("acme", greedy)
    assert rows(HistoryQueries(store), "SELECT 1") == [[1]]


def test_an_endless_result_is_cut_at_the_limit(queries: HistoryQueries) -> None:
    answer = queries.query("acme", "SELECT 1 FROM " + ", ".join(f"run_events e{n}" for n in range(12)), 10)
    assert (len(answer.rows), answer.truncated) == (10, True)


def test_a_query_sees_a_writers_commits_but_stops_none(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "history.duckdb")
    with store.cursor() as reader:
        reader.execute("BEGIN TRANSACTION READ ONLY")
        reader.execute("SELECT count(*) FROM store.runs")
        store.append([run_row(UUID(int=1), 1, "run_leased", at=START + timedelta(seconds=9))], {0: 1})
        assert HistoryQueries(store).query("acme", "SELECT count(*) FROM runs").rows == [[1]]
    store.close()
