"""What the history knows of one run's or one occurrence's past, for the API that explains it (api/why.py).

Internal reads, whoever's the run is: the API checks that. Instants are RFC 3339, names camelCase as everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any
from uuid import UUID

import duckdb
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streams.history_queries import json_ready
from streams.history_store import HistoryStore
from streams.history_tables import SCHEMA

MOST_ROWS = 10_000

# Unsorted: to have DuckDB sort a handful of rows costs as much as to find them. Days that are over are sorted by job.
READ_RUN_EVENTS = f"""
SELECT type, happened_at AS "at", due_at AS "dueAt", attempt, worker_id AS "workerId", reason, version, tenant,
       job_id AS "jobId", queue, scheduled_for AS "scheduledFor"
FROM {SCHEMA}.run_events
WHERE run_id = $run_id AND job_id = (SELECT job_id FROM {SCHEMA}.runs WHERE run_id = $run_id) LIMIT {MOST_ROWS}
"""

# A lease lasts until the run's next event, except a cancel that is only asked for.
READ_JOB_LEASES = f"""
WITH moves AS (
    SELECT run_id, type, happened_at, lead(happened_at) OVER (PARTITION BY run_id ORDER BY version) AS until
    FROM {SCHEMA}.run_events
    WHERE job_id = $job_id AND run_id IS NOT NULL AND type <> 'run_cancel_requested' AND happened_at < $until
)
SELECT run_id AS "runId", happened_at AS "since", until FROM moves
WHERE type = 'run_leased' AND (until IS NULL OR until > $since) ORDER BY happened_at LIMIT {MOST_ROWS}
"""

COUNT_TENANT_LEASES = f"""
SELECT (epoch_us(happened_at) - epoch_us($since::TIMESTAMPTZ)) // $slice_us AS number, count(*) AS count
FROM {SCHEMA}.run_events
WHERE tenant = $tenant AND type = 'run_leased' AND happened_at >= $since AND happened_at < $until GROUP BY number
"""

READ_JOB_EVENTS = f"""
SELECT type, happened_at AS "at", version, due_at AS "cursor", definition FROM {SCHEMA}.run_events
WHERE job_id = $job_id AND run_id IS NULL AND type <> 'occurrences_skipped' ORDER BY version LIMIT {MOST_ROWS}
"""

READ_SKIPPED_RANGES = f"""
SELECT happened_at AS "at", version, reason, scheduled_for AS "first", due_at AS "last", "count"
FROM {SCHEMA}.run_events
WHERE job_id = $job_id AND run_id IS NULL AND type = 'occurrences_skipped'
  AND scheduled_for <= $at AND due_at >= $at
ORDER BY version DESC LIMIT {MOST_ROWS}
"""

READ_RUNS_OF_OCCURRENCE = f"""
SELECT run_id AS "runId", state, reason FROM {SCHEMA}.runs
WHERE job_id = $job_id AND scheduled_for = $at ORDER BY updated_at LIMIT {MOST_ROWS}
"""

READ_JOB_VERSION = f"SELECT version FROM {SCHEMA}.jobs WHERE job_id = $job_id"


Question = tuple[str, dict[str, Any]]  # SQL and its parameters


class HistoryExplanations:
    """The routes of these reads over one store."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store

    def routes(self) -> Sequence[Route]:
        return [
            Route("/runs/{run_id}/events", self.run_events, methods=["GET"]),
            Route("/jobs/{job_id}/leases", self.job_leases, methods=["GET"]),
            Route("/tenant-leases", self.tenant_leases, methods=["GET"]),
            Route("/jobs/{job_id}/occurrence", self.occurrence, methods=["GET"]),
        ]

    async def run_events(self, request: Request) -> Response:
        """{events}: all of a run, by version; none of one that the history has not heard of."""
        body = await self._read({"events": (READ_RUN_EVENTS, {"run_id": _id(request, "run_id")})})
        body["events"].sort(key=itemgetter("version"))
        return _json(body)

    async def job_leases(self, request: Request) -> Response:
        """{leases: [{runId, since, until}]}: when runs of a job were leased, those that reach into ?since= to ?until=.

        until: null of a lease that lasts, as far as is known.
        """
        span = {"since": _instant(request, "since"), "until": _instant(request, "until")}
        return _json(await self._read({"leases": (READ_JOB_LEASES, {"job_id": _id(request, "job_id")} | span)}))

    async def tenant_leases(self, request: Request) -> Response:
        """{slices: [{number, count}]}: how many leases ?tenant= had in each ?sliceUs= from ?since= to ?until= on."""
        asked = {
            "tenant": request.query_params["tenant"],
            "slice_us": int(request.query_params["sliceUs"]),
            "since": _instant(request, "since"),
            "until": _instant(request, "until"),
        }
        return _json(await self._read({"slices": (COUNT_TENANT_LEASES, asked)}))

    async def occurrence(self, request: Request) -> Response:
        """{runs, ranges, jobEvents, version}: what bears on the occurrence of a job at ?at=.

        runs: of that nominal time. ranges: skipped occurrences, from the first to the last, that it may be among, the
        latest decision first. jobEvents: the job's own life, with its definitions. version: the job's latest known.
        """
        job = {"job_id": _id(request, "job_id")}
        occurrence = job | {"at": _instant(request, "at")}
        body = await self._read(
            {
                "runs": (READ_RUNS_OF_OCCURRENCE, occurrence),
                "ranges": (READ_SKIPPED_RANGES, occurrence),
                "jobEvents": (READ_JOB_EVENTS, job),
                "versions": (READ_JOB_VERSION, job),
            }
        )
        [version] = body.pop("versions") or [{"version": 0}]
        return _json(body | version)

    async def _read(self, questions: Mapping[str, Question]) -> dict[str, Any]:
        """The rows of each, all as of one instant: the version tells how much the others know."""
        return await asyncio.to_thread(self._read_now, questions)

    def _read_now(self, questions: Mapping[str, Question]) -> dict[str, Any]:
        with self._store.cursor() as reader:
            reader.begin()
            found = {name: _rows(reader.execute(*question)) for name, question in questions.items()}
            reader.commit()
            return found


def _rows(answer: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    columns = [column[0] for column in answer.description or ()]
    return [dict(zip(columns, map(json_ready, row), strict=True)) for row in answer.fetchall()]


def _id(request: Request, name: str) -> str:
    return str(UUID(request.path_params[name]))


def _instant(request: Request, name: str) -> datetime:
    return datetime.fromisoformat(request.query_params[name])


def _json(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
