"""The bodies of SQL over the history.

The rules of schemas/http.py hold here too.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from schemas.http import Answer, Request


class Query(Request):
    """POST /v1/query."""

    sql: Annotated[str, Meta(examples=["SELECT state, count(*) FROM runs GROUP BY state"])]
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000


class QueryColumn(Answer):
    name: str
    type: str


class QueryAnswer(Answer):
    """truncated: there are more rows than the limit."""

    columns: list[QueryColumn]
    rows: list[list[Any]]
    truncated: bool
