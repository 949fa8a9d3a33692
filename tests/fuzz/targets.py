"""The parsers that are fuzzed: whatever comes in from tenants, each with the errors that refuse an input."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import duckdb
import msgspec
from hypothesis.strategies import SearchStrategy

from api.auth import Authenticator
from api.problems import Problem, problem_of
from fencepost.declarations.job_file import parse_job_file
from fencepost.errors import InvalidInput
from fencepost.webhook.destinations import AllowList, DestinationRefused, read_allowed_host, read_destination
from schemas import http
from schemas.codec import Codec
from schemas.commands import CreateJob, UpdateJob, command_record, decode_commands, schedule_of
from schemas.cron import cron_expression
from schemas.errors import CommandRejected, InvalidSchedule, QueryRejected, Undecodable
from schemas.http_queries import Query
from schemas.schedule import due_at, first_fire, next_fire, parse_schedule, previous_fire, to_json
from schemas.zone_rule import next_instant, previous_instant
from streams.history_queries import confine
from tests.fuzz import inputs

JOB_ID = "0197a5f0-0000-7000-8000-000000000001"
NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)
NOW_S = int(NOW.timestamp())


class Target(NamedTuple):
    """feed: gives the parser one input. refusals: how it may decline one; any other exception is a finding."""

    inputs: SearchStrategy[Any]
    feed: Callable[[Any], object]
    refusals: tuple[type[Exception], ...]


def read_commands(wire: bytes) -> None:
    """As a partition's owner reads a record: what one command has wrong is its own rejection."""
    for command in decode_commands(Codec(), wire):
        if isinstance(command, CommandRejected):
            continue
        if isinstance(command, CreateJob | UpdateJob):
            with contextlib.suppress(InvalidSchedule):
                schedule_of(command)
        command_record(command)


def read_cron(line: str) -> None:
    """Compile it, and look for fires where clocks change."""
    cron = cron_expression(line, JOB_ID)
    for zone in ("UTC", "Europe/Berlin"):
        fire = next_instant(cron, zone, NOW_S)
        assert fire is None or fire > NOW_S
        before = previous_instant(cron, zone, NOW_S)
        assert before is None or before <= NOW_S


def read_schedule(form: Any) -> None:
    """All that is asked of a schedule when its job is created and whenever it fires."""
    schedule = parse_schedule(form, job_id=JOB_ID)
    assert parse_schedule(to_json(schedule), job_id=JOB_ID) == schedule
    if (first := first_fire(schedule, job_id=JOB_ID, created_at=NOW)) is not None:
        assert due_at(schedule, first, job_id=JOB_ID) >= first
    following = next_fire(schedule, NOW, job_id=JOB_ID, created_at=NOW)
    assert following is None or following > NOW
    previous = previous_fire(schedule, NOW, job_id=JOB_ID, created_at=NOW)
    assert previous is None or previous < NOW


def read_job_file(text: str) -> None:
    parse_job_file(text, file="jobs.yaml", tenant="acme")


class _EmptyLedger:
    """A pool of sessions with a ledger that knows no token."""

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        yield self

    async def execute(self, *_: Any) -> Any:
        async def none() -> None:
            return None

        return SimpleNamespace(fetchone=none)


@cache
def _loop() -> tuple[asyncio.Runner, Authenticator]:
    return asyncio.Runner(), Authenticator(_EmptyLedger())  # type: ignore[arg-type]


def read_authorization(header: bytes | None) -> None:
    """None of them is a token that somebody was given."""
    runner, authenticator = _loop()
    raise AssertionError(runner.run(authenticator.identify(header)))


@cache
def _history() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def read_query(sql: str) -> None:
    confine(_history(), sql)


_ALLOWED = AllowList([read_allowed_host("hooks.example.com"), read_allowed_host("*.example.org:8443")])


def read_webhook_url(url: str) -> None:
    """As a payload's URL, as a redirect, and as what an operator allows."""
    for read in (
        lambda: _ALLOWED.check(read_destination(url)),
        lambda: read_destination("https://hooks.example.com/a/b?c").redirected(url),
        lambda: read_allowed_host(url),
    ):
        with contextlib.suppress(DestinationRefused):
            read()


_BODIES = (http.NewJob, http.JobUpdate, http.Trigger, http.LeaseRequest, http.CompleteBatch, http.FailBatch, Query)
_DECODERS = [msgspec.json.Decoder(kind) for kind in (*_BODIES, http.BeatBatch, http.PreviewRequest)]


def read_body(wire: bytes) -> None:
    """Each call's body, of what it holds a job's schedule: what is wrong is the caller's fault, by its field."""
    for decoder in _DECODERS:
        try:
            body = decoder.decode(wire)
            if isinstance(body, http.NewJob | http.PreviewRequest):
                parse_schedule(body.schedule, job_id=None)
        except InvalidSchedule:
            pass
        except Exception as error:
            problem = problem_of(error)
            if problem is None or problem.status not in (400, 422):
                raise
            problem.body()


TARGETS = {
    "commands": Target(inputs.command_records, read_commands, (Undecodable,)),
    "cron": Target(inputs.cron_lines, read_cron, (InvalidSchedule,)),
    "schedules": Target(inputs.schedules, read_schedule, (InvalidSchedule,)),
    "job-files": Target(inputs.job_files, read_job_file, (InvalidInput,)),
    "tokens": Target(inputs.tokens, read_authorization, (Problem,)),
    "bodies": Target(inputs.bodies, read_body, ()),
    "queries": Target(inputs.queries, read_query, (QueryRejected, duckdb.Error)),  # HistoryQueries makes both one
    "webhook-urls": Target(inputs.urls, read_webhook_url, ()),
}
