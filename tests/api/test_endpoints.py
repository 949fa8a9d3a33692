"""How an endpoint reads what a client sends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import ValidationError

from api.endpoints import read_body, read_query
from api.problems import Problem
from schemas.http import JobDeletion
from schemas.http_operations import DeadQuery

HANGS_UP: dict[str, Any] = {"type": "http.disconnect"}


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def read(messages: Sequence[dict[str, Any]], limit: int = 10) -> bytes:
    coming = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(coming)

    return await read_body(receive, {b"content-type": b"application/json"}, limit)


async def test_a_body_in_parts_is_read_as_a_whole() -> None:
    assert await read([part(b"{")]) == b"{"
    assert await read([part(b"{", more=True), part(b""), HANGS_UP]) == b"{"
    assert await read([part(b"[1", more=True), part(b",2", more=True), part(b"]")]) == b"[1,2]"


@pytest.mark.parametrize("before", [[], [part(b"{", more=True)]])
async def test_a_body_that_was_cut_off_is_never_taken_for_a_whole_one(before: list[dict[str, Any]]) -> None:
    """A body may be left out: of a client that hangs up, what it had asked for would be done without its fields."""
    with pytest.raises(Problem) as refused:
        await read([*before, HANGS_UP])
    assert refused.value.status == 400


async def test_a_body_that_is_too_large_is_not_read_to_its_end() -> None:
    with pytest.raises(Problem) as refused:
        await read([part(b"123456", more=True), part(b"78901", more=True)])
    assert refused.value.status == 413


@pytest.mark.parametrize("text", ["null", "NULL", "Null"])
def test_null_in_a_query_string_is_no_condition_that_is_left_out(text: str) -> None:
    """A job would be deleted at whatever version, and every dead run listed."""
    for kind, field in ((JobDeletion, "ifVersion"), (DeadQuery, "until"), (DeadQuery, "jobId")):
        with pytest.raises((Problem, ValidationError)) as refused:
            read_query(f"{field}={text}".encode(), kind)
        assert field in str(refused.value)


def test_a_queue_may_be_called_null() -> None:
    assert read_query(b"queue=null", DeadQuery).queue == "null"


def test_an_instant_in_a_query_string_is_no_number() -> None:
    for text in (b"0", b"1764633600", b"1.5"):
        with pytest.raises(Problem) as refused:
            read_query(b"until=" + text, DeadQuery)
        assert refused.value.field == "until"
    assert read_query(b"until=2026-01-01T00:00:00Z", DeadQuery).until == datetime(2026, 1, 1, tzinfo=UTC)
