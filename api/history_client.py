"""The history service as the API sees it: on loopback, behind the projector, and away now and then."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import httpx
import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from schemas.errors import TryAgain

# A query may take 10 s and wait 2 s for its turn; a look at one run must not hold up its caller.
QUERY_TIMEOUT_S = 15.0
RUN_TIMEOUT_S = 1.0
EXPLANATION_TIMEOUT_S = 5.0

T = TypeVar("T")


class HistoryAway(TryAgain):
    """The history service did not answer, or says that it cannot now."""


class KnownRun(Struct, rename="camel", kw_only=True):
    """The latest event of a run that the history has folded."""

    run_id: UUID
    job_id: UUID
    tenant: str
    queue: str
    lane: str
    state: str  # scheduled, held, leased, retrying, completed, dead, cancelled, skipped
    version: int
    attempt: int | None = None
    lease_token: int | None = None
    scheduled_for: datetime | None = None
    due_at: datetime | None = None
    worker_id: str | None = None
    reason: str | None = None
    result: Raw | UnsetType = UNSET


class KnownEvent(Struct, rename="camel", kw_only=True):
    """An event of a run. The history keeps each once, in the order of its version."""

    type: str
    at: datetime
    version: int
    tenant: str
    job_id: UUID
    queue: str
    due_at: datetime | None = None
    attempt: int | None = None
    worker_id: str | None = None
    reason: str | None = None
    scheduled_for: datetime | None = None


class KnownLease(Struct, rename="camel"):
    """A time in which a run was leased. until: None while it lasts, as far as is known."""

    run_id: UUID
    since: datetime
    until: datetime | None = None


class KnownJobEvent(Struct):
    """An event of a job itself. cursor: its next occurrence then; definition: as of then."""

    type: str
    at: datetime
    version: int
    cursor: datetime | None = None
    definition: str | None = None


class KnownRange(Struct):
    """Occurrences from the first to the last that made no run, decided at once."""

    at: datetime
    version: int
    first: datetime
    last: datetime
    count: int | None = None
    reason: str | None = None


class OccurrenceRun(Struct, rename="camel"):
    run_id: UUID
    state: str
    reason: str | None = None


class KnownOccurrence(Struct, rename="camel"):
    """What bears on a job's occurrence at some instant. version: the job's latest known."""

    runs: list[OccurrenceRun]
    ranges: list[KnownRange]
    job_events: list[KnownJobEvent]
    version: int


class _Events(Struct):
    events: list[KnownEvent]


class _Leases(Struct):
    leases: list[KnownLease]


class _Slice(Struct):
    number: int
    count: int


class _Slices(Struct):
    slices: list[_Slice]


class HistoryHealth(Struct):
    """kafka: whether its topic was ever reached. lag: how many records each partition is behind."""

    kafka: bool
    lag: dict[str, int]


class QueryReply(Struct):
    """An answer of the history to pass on as it is."""

    status: int
    body: bytes
    content_type: bytes
    retry_after: bytes | None


class HistoryClient:
    """url: None when there is no history service; then it is away.

    catches_up_s: how long an answer may wait for the history to hear of what has just happened.
    """

    def __init__(self, url: str | None, catches_up_s: float) -> None:
        self.catches_up_s = catches_up_s
        self._http = httpx.AsyncClient(base_url=url, timeout=RUN_TIMEOUT_S, trust_env=False) if url else None

    def deadline(self) -> float:
        """On the monotonic clock: until when what has just happened may be missing."""
        return time.monotonic() + self.catches_up_s

    async def run(self, run_id: UUID) -> KnownRun | None:
        """What the history knows of a run; None when it has not heard of it. Raises HistoryAway."""
        response = await self._call("GET", f"/runs/{run_id}", RUN_TIMEOUT_S)
        if response.status_code == 404:
            return None
        if response.status_code != 200:
            raise HistoryAway(f"the history answered {response.status_code}")
        return msgspec.json.decode(response.content, type=KnownRun)

    async def run_events(self, run_id: UUID) -> list[KnownEvent]:
        """All events of a run that the history knows, by version. Raises HistoryAway."""
        return (await self._get(f"/runs/{run_id}/events", _Events)).events

    async def job_leases(self, job_id: UUID, since: datetime, until: datetime) -> list[KnownLease]:
        """When runs of a job were leased in a time. Raises HistoryAway."""
        asked = {"since": since.isoformat(), "until": until.isoformat()}
        return (await self._get(f"/jobs/{job_id}/leases", _Leases, asked)).leases

    async def tenant_leases(
        self, tenant: str, since: datetime, until: datetime, slice_length: timedelta
    ) -> dict[int, int]:
        """How many leases a tenant had in each slice of a time, by its number. Raises HistoryAway."""
        asked = {
            "tenant": tenant,
            "since": since.isoformat(),
            "until": until.isoformat(),
            "sliceUs": str(slice_length // timedelta(microseconds=1)),
        }
        found = await self._get("/tenant-leases", _Slices, asked)
        return {each.number: each.count for each in found.slices}

    async def occurrence(self, job_id: UUID, at: datetime) -> KnownOccurrence:
        """What bears on a job's occurrence. Raises HistoryAway."""
        return await self._get(f"/jobs/{job_id}/occurrence", KnownOccurrence, {"at": at.isoformat()})

    async def health(self, timeout_s: float) -> HistoryHealth:
        """Raises HistoryAway."""
        return await self._get("/healthz", HistoryHealth, timeout_s=timeout_s)

    async def query(self, tenant: str, sql: str, limit: int) -> QueryReply:
        """The history's own answer to a query, confined to the tenant. Raises HistoryAway."""
        body = {"tenant": tenant, "sql": sql, "limit": limit}
        response = await self._call("POST", "/query", QUERY_TIMEOUT_S, json=body)
        if response.status_code not in (200, 422, 503):
            raise HistoryAway(f"the history answered {response.status_code}")
        headers = response.headers
        retry_after = headers.get("retry-after")
        content_type = headers.get("content-type", "application/json").encode()
        return QueryReply(response.status_code, response.content, content_type, retry_after and retry_after.encode())

    async def reachable(self, timeout_s: float) -> bool:
        try:
            return (await self._call("GET", "/healthz", timeout_s)).status_code == 200
        except HistoryAway:
            return False

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def _get(
        self, path: str, kind: type[T], asked: dict[str, str] | None = None, timeout_s: float = EXPLANATION_TIMEOUT_S
    ) -> T:
        response = await self._call("GET", path, timeout_s, params=asked)
        if response.status_code != 200:
            raise HistoryAway(f"the history answered {response.status_code}")
        return msgspec.json.decode(response.content, type=kind)

    async def _call(self, method: str, path: str, timeout_s: float, **options: Any) -> httpx.Response:
        if self._http is None:
            raise HistoryAway("there is no history service")
        try:
            return await self._http.request(method, path, timeout=timeout_s, **options)
        except httpx.HTTPError as error:
            raise HistoryAway(f"the history did not answer: {type(error).__name__}") from error
