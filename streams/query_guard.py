"""What a tenant's SQL may contain: whatever is not on a list here (node kinds, functions, types, tables) is refused.

The judge is DuckDB's own parse tree, never the text, so quoting, comments and case decide nothing. Only what the tree
may cost is read off the text.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import duckdb

from schemas.errors import QueryRejected

Node = dict[str, Any]

TABLES = frozenset({"attempts", "audit", "decisions", "jobs", "run_events", "runs"})
MAX_SQL_CHARS = 20_000
# DuckDB's parser keeps all that is open until it knows that the text is no query: ten thousand ( took it 9 GB and 39 s,
# these take it 40 MB and 50 ms. It is asked before there is a tree, so brackets in texts count as well.
MAX_OPEN = 500
_OPENING = re.compile(r"""[(\[{]|(?<![\w'"\])}.])[-+]""")  # of the signs those that no value stands before
# Each || can double a text, so a chain of them is an exponential; two dozen columns joined for display are not.
MAX_CONCATENATIONS = 24

_QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE"})
_TABLE_REFS = frozenset({"BASE_TABLE", "SUBQUERY", "JOIN", "EMPTY", "EXPRESSION_LIST"})
_MODIFIERS = frozenset({"ORDER_MODIFIER", "LIMIT_MODIFIER", "DISTINCT_MODIFIER"})
_ORDERS = frozenset({"ORDER_DEFAULT", "ASCENDING", "DESCENDING"})
_NODES = _QUERIES | _TABLE_REFS | _MODIFIERS | _ORDERS
_EXPRESSIONS = frozenset(
    {
        "BETWEEN", "CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "OPERATOR",
        "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "TYPE", "WINDOW",
    }
)  # fmt: skip
_TYPES = frozenset(
    {
        "bigint", "bool", "boolean", "date", "decimal", "double", "float", "float8", "hugeint", "int", "int4", "int8",
        "integer", "interval", "json", "numeric", "real", "smallint", "string", "text", "time", "timestamp",
        "timestamptz", "timestamp with time zone", "uuid", "varchar",
    }
)  # fmt: skip
# None of these can make much out of little (repeat, range, lpad, format, replace), read anything but its arguments
# (getenv, read_text, query, getvariable), or change anything (setval, set_config).
_FUNCTIONS = frozenset(
    {
        # aggregates
        "any_value", "approx_count_distinct", "approx_quantile", "arg_max", "arg_min", "avg", "bool_and", "bool_or",
        "corr", "count", "count_if", "count_star", "covar_pop", "covar_samp", "first", "histogram", "last", "list",
        "array_agg", "listagg", "mad", "max", "max_by", "mean", "median", "min", "min_by", "mode", "quantile",
        "quantile_cont", "quantile_disc", "regr_slope", "skewness", "stddev", "stddev_pop", "stddev_samp",
        "string_agg", "sum", "var_pop", "var_samp", "variance",
        # windows
        "cume_dist", "dense_rank", "first_value", "lag", "last_value", "lead", "nth_value", "ntile", "percent_rank",
        "rank", "row_number",
        # numbers
        "abs", "ceil", "ceiling", "exp", "floor", "greatest", "least", "ln", "log", "log10", "log2", "mod", "pow",
        "power", "round", "sign", "sqrt", "trunc",
        # instants
        "age", "date_diff", "date_part", "date_trunc", "datediff", "datepart", "datetrunc", "day", "dayname",
        "dayofweek", "dayofyear", "epoch", "epoch_ms", "epoch_us", "get_current_timestamp", "hour", "isodow",
        "last_day", "make_date", "make_timestamp", "make_timestamptz", "microsecond", "millisecond", "minute", "month",
        "monthname", "now", "quarter", "second", "strftime", "strptime", "time_bucket", "timezone", "to_days",
        "to_hours", "to_microseconds", "to_milliseconds", "to_minutes", "to_months", "to_seconds", "to_timestamp",
        "to_weeks", "to_years", "week", "weekofyear", "year",
        # texts
        "bit_length", "concat", "contains", "ends_with", "instr", "left", "length", "lower", "ltrim", "md5",
        "position", "prefix", "regexp_extract", "regexp_full_match", "regexp_matches", "right", "rtrim", "sha256",
        "split_part", "starts_with", "strlen", "strpos", "substr", "substring", "suffix", "trim", "upper",
        # JSON, lists, the rest
        "array_extract", "hash", "ifnull", "json_array_length", "json_exists", "json_extract", "json_extract_string",
        "json_keys", "json_type", "json_valid", "len", "list_contains", "list_extract", "list_value", "nullif",
        "struct_extract", "try_strptime", "typeof",
        # operators
        "+", "-", "*", "/", "//", "%", "**", "^", "||", "~~", "!~~", "~~*", "!~~*", "->", "->>", "~", "!~", "@>",
    }
)  # fmt: skip
_CONCATENATIONS = frozenset({"||", "concat"})


def parse_query(conn: duckdb.DuckDBPyConnection, sql: str) -> Node:
    """The parse tree of one SELECT that holds nothing outside the lists. Raises QueryRejected with the reason."""
    if len(sql) > MAX_SQL_CHARS:
        raise QueryRejected(f"the query has {len(sql)} characters, more than {MAX_SQL_CHARS}")
    if len(_OPENING.findall("".join(sql.split()))) > MAX_OPEN:
        raise QueryRejected(f"the query has more than {MAX_OPEN} opening brackets and signs")
    try:
        statements = parse_statements(conn, sql)
        if len(statements) != 1:
            raise QueryRejected(f"exactly one SELECT is expected, not {len(statements)} statements")
        _Guard().check(statements[0], TABLES)
    except RecursionError:
        raise QueryRejected("the query is nested too deeply") from None
    return statements[0]


def tables_of(node: Any) -> set[str]:
    """Which of our tables a checked statement asks."""
    if isinstance(node, list):
        return set().union(*map(tables_of, node))
    if not isinstance(node, dict):
        return set()
    named = {str(_only_name(_path(node)))} & TABLES if node.get("type") == "BASE_TABLE" else set()
    return named.union(*map(tables_of, node.values()))


def parse_statements(conn: duckdb.DuckDBPyConnection, sql: str) -> list[Node]:
    """DuckDB's parse trees. Raises QueryRejected for anything but SELECTs and for what does not parse.

    Also RecursionError: the trees of some hundred nested expressions are deeper than Python's stack.
    """
    if "\0" in sql:
        raise QueryRejected("the query has a NUL character")
    try:
        [[text]] = conn.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    except duckdb.Error as error:
        raise QueryRejected(str(error)) from error
    parsed = json.loads(text)
    if parsed["error"]:
        raise QueryRejected(_readable(parsed))
    statements: list[Node] = parsed["statements"]
    return statements


def _readable(parsed: Node) -> str:
    if parsed["error_type"] == "not implemented":
        return "only SELECT statements can be run"
    where = f" at character {parsed['position']}" if parsed.get("position") else ""
    return f"{parsed['error_message']}{where}"


class _Guard:
    """A walk over one statement that raises QueryRejected at the first thing that is not allowed."""

    def __init__(self) -> None:
        self._concatenations = 0

    def check(self, node: Any, tables: frozenset[str]) -> None:
        """tables: the names that FROM may use here: ours, and the CTEs in scope."""
        if isinstance(node, list):
            for item in node:
                self.check(item, tables)
        elif isinstance(node, dict):
            self._check_kind(node, tables)
            tables = self._check_ctes(node, tables)
            for key, value in node.items():
                if key != "cte_map":
                    self.check(value, tables)

    def _check_kind(self, node: Node, tables: frozenset[str]) -> None:
        if "class" in node:
            self._check_expression(node)
        elif "type" in node and node["type"] not in _NODES:
            raise QueryRejected(f"{_spoken(node['type'])} is not allowed")
        if node.get("type") == "BASE_TABLE":
            _check_table(node, tables)
        if node.get("sample") is not None:
            raise QueryRejected("SAMPLE is not allowed")

    def _check_expression(self, node: Node) -> None:
        kind = node["class"]
        if kind not in _EXPRESSIONS:
            raise QueryRejected(f"{_spoken(kind)} is not allowed")
        if kind in ("FUNCTION", "WINDOW"):
            self._check_function(_path(node))
        elif kind == "TYPE" and _only_name(_path(node)) not in _TYPES:
            raise QueryRejected(f"the type {'.'.join(_path(node))} is not allowed")

    def _check_function(self, path: list[str]) -> None:
        name = _only_name(path)
        if name not in _FUNCTIONS:
            raise QueryRejected(f"the function {'.'.join(path)} is not allowed")
        self._concatenations += name in _CONCATENATIONS
        if self._concatenations > MAX_CONCATENATIONS:
            raise QueryRejected(f"more than {MAX_CONCATENATIONS} concatenations")

    def _check_ctes(self, node: Node, tables: frozenset[str]) -> frozenset[str]:
        """Checks the node's CTEs, each of which sees the ones before it; returns the tables that its body sees."""
        for entry in node.get("cte_map", {}).get("map", []):
            name = entry["key"].lower()
            if name in TABLES:
                raise QueryRejected(f"a CTE may not be called {name}: that is a table's name")
            self.check(entry["value"], tables)
            tables |= {name}
        return tables


def _check_table(node: Node, tables: frozenset[str]) -> None:
    path = _path(node)
    if _only_name(path) not in tables:
        raise QueryRejected(f"there is no table {'.'.join(path)}; there are {', '.join(sorted(TABLES))}")
    if node.get("at_clause") is not None:
        raise QueryRejected("AT is not allowed")


def _path(node: Node) -> list[str]:
    path: list[str] = node["qualified_name"]["path"]
    return path


def _only_name(path: list[str]) -> str | None:
    """The name if nothing qualifies it: a schema in front would lead around the lists."""
    return path[0].lower() if len(path) == 1 else None


@cache
def _spoken(kind: str) -> str:
    """`TABLE_FUNCTION` as the user knows it: `table function`."""
    return kind.removesuffix("_NODE").removesuffix("_QUERY").removesuffix("_REF").replace("_", " ").lower()
