"""The API: its parts wired together, and its routes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from api.access_log import NO_ACCESS_LOG, AccessLog
from api.auth import Authenticator
from api.backfills import Backfills
from api.budgets import Budget, Budgets, ShedAt
from api.command_calls import APPLIED_WITHIN_S, CommandCalls
from api.command_outcomes import CommandOutcomes
from api.command_producer import CommandProducer
from api.dead_letters import DeadLetters
from api.declared_jobs import DeclaredJobs
from api.doctor import Doctor
from api.ended_attempts import EndedAttempts
from api.endpoints import (
    BATCH_BODY,
    RUN_BODY,
    SMALL_BODY,
    Endpoint,
    EndpointsFirst,
    Handler,
    OpenEndpoint,
    QueueScope,
)
from api.full_scopes import FullScopes
from api.health import Health
from api.history_client import HistoryClient
from api.issuer import Issuer, IssuerSettings
from api.jobs import Jobs
from api.lease_quotas import LeaseQuotas
from api.leases import Leases
from api.live_schedules import LiveSchedules
from api.metrics import ApiMetrics
from api.openapi import Document
from api.outcome_kinds import Complete, Fail, Heartbeat, Release, Snoozing
from api.outcomes import Outcomes
from api.permit_upkeep import PermitUpkeep
from api.permits import Permits
from api.problems import Problem
from api.query import Queries
from api.queues import Queues
from api.ready_hints import ReadyHints
from api.ready_index import Queue, ReadyIndex
from api.ready_poll import ReadyPoll
from api.run_commands import RunCommands
from api.runs import Runs
from api.schedules import preview_schedule
from api.slow_clients import Patience
from api.tenant_lines import TenantLines
from api.token_uses import TokenUses
from api.tokens import Tokens
from api.watchdogs import Watchdogs
from api.whoami import whoami
from api.why import Why
from ledger.clock import LedgerClock
from ledger.connection import Pool
from ledger.news import News, follow_news
from ledger.shard_map import HOME
from ledger.shards import Shards
from ledger.tokens import Role
from schemas import http, http_declarations, http_explanations, http_operations, http_queries, http_tokens
from schemas.codec import Codec

PRODUCER: tuple[Role, ...] = ("producer",)
WORKER: tuple[Role, ...] = ("worker",)
OPERATOR: tuple[Role, ...] = ("operator",)
ADMIN: tuple[Role, ...] = ("admin",)
STEERING: tuple[Role, ...] = (*PRODUCER, *OPERATOR)
EVERYONE: tuple[Role, ...] = (*PRODUCER, *WORKER, *OPERATOR)

# So long may a tenant's first quota go unnoticed.
HOME_NEWS_S, NEWS_S = 2.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """What the composition root tells the API.

    history_url: None when there is no history service. issuer: whose tokens are believed beside the ledger's own.
    applied_within_s: how long a caller waits to see the effect of a command before the answer is 202.
    history_catches_up_s: how long an answer waits for the history to hear of what has just happened.
    look_every_s: how often a queue that is waited on is looked at for what no hint told, drawn from this range.
    idle_s: how long the threads that hear of Kafka wait for nothing at a time; a stop may take as long. Its client
    wakes every 200 ms anyway: a multiple of that.
    shed_at: how much must be in hand for calls of each class to be shed.
    hints_within_s: for how long after its start the process may be not ready since it does not hear hints yet.
    notice_s: how long the process goes on serving once it was told to stop, and says that it is not ready any more.
    patience: with clients that are slow.
    """

    bootstrap: str
    commands_topic: str
    ready_topic: str
    codec: Codec
    history_url: str | None = None
    kafka_config: Mapping[str, Any] | None = None
    issuer: IssuerSettings | None = None
    applied_within_s: float = APPLIED_WITHIN_S
    history_catches_up_s: float = 2.0
    look_every_s: tuple[float, float] = (1.0, 2.0)
    idle_s: float = 0.6
    shed_at: ShedAt = field(default_factory=ShedAt)
    hints_within_s: float = 5.0
    notice_s: float = 0.0
    patience: Patience = field(default_factory=Patience)
    access_log: AccessLog = NO_ACCESS_LOG


class Api:
    """Everything behind the routes, for one ledger. Belongs to one event loop; `running` brings it to life."""

    def __init__(self, shards: Shards, settings: ApiSettings) -> None:
        bootstrap, codec, kafka, idle_s = settings.bootstrap, settings.codec, settings.kafka_config, settings.idle_s
        self._shards = shards
        self._leaving, self._access_log = asyncio.Event(), settings.access_log
        self.metrics = ApiMetrics()
        self.budgets = Budgets(settings.shed_at, self.metrics)
        self.index = ReadyIndex(on_drop=self._dropped, on_low=self._ran_low)
        self.clocks = {number: LedgerClock() for number in shards.pools}
        self.hints = ReadyHints(
            bootstrap, settings.ready_topic, codec, self.index, self.metrics, self._locally_us,
            kafka_config=kafka, idle_s=idle_s,
        )  # fmt: skip
        self.full = FullScopes(self.index, self._left_out)
        self.poll = ReadyPoll(
            shards, self.index, self.metrics, self.full,
            interval_s=settings.look_every_s, are_hints_read=self.hints.are_read,
        )  # fmt: skip
        self.history = HistoryClient(settings.history_url, settings.history_catches_up_s)
        self.producer = CommandProducer(bootstrap, settings.commands_topic, codec, idle_s=idle_s, kafka_config=kafka)
        self.command_outcomes = {number: CommandOutcomes(pool) for number, pool in shards.pools.items()}
        self._watches: set[asyncio.Task[None]] = set()
        shards.on_added(self._add_shard)
        self.token_uses = TokenUses(shards.home)
        issuer = Issuer(settings.issuer) if settings.issuer else None
        self.authenticator = Authenticator(shards.home, issuer, on_use=self.token_uses.add)
        self.lines = TenantLines(self.metrics)
        self.quotas = LeaseQuotas(shards.home)
        self.metrics.lease_quota_part.set_function(lambda: self.quotas.part)
        self.permits = Permits(shards, self.index, self.full, self.poll.doubt)
        self.permit_upkeep = PermitUpkeep(shards, self.permits, self.metrics)
        self.leases = Leases(
            shards, self.index, self.poll, self.metrics, self.budgets.leases, self.quotas, self.permits, self.lines
        )
        ends = EndedAttempts(shards, self.history)
        self.outcomes = [
            (Outcomes(kind, shards, ends, self.metrics, self.permits), single, batch)
            for kind, single, batch in (
                (Complete(), http.Complete, http.CompleteBatch),
                (Heartbeat(), http.Beat, http.BeatBatch),
                (Fail(), http.Fail, http.FailBatch),
                (Release(), http.Release, http.ReleaseBatch),
                (Snoozing(), http.Snooze, http.SnoozeBatch),
            )
        ]
        self.commands = CommandCalls(
            shards, self.producer, self.command_outcomes, settings.applied_within_s, self.budgets.creates
        )
        self.jobs = Jobs(shards, self.commands)
        self.declared_jobs = DeclaredJobs(shards)
        self.live_schedules = LiveSchedules(shards)
        self.backfills = Backfills(self.jobs, self.commands)
        self.runs = Runs(shards, self.history)
        self.run_commands = RunCommands(shards, self.runs, self.commands)
        self.dead_letters = DeadLetters(shards, self.commands)
        self.queues = Queues(shards, self.poll, self.permit_upkeep)
        self.tokens = Tokens(shards.home)
        self.why = Why(shards, self.history, self.jobs)
        self.doctor = Doctor(shards, self.producer, self.history, self.clocks)
        self.queries = Queries(self.history)
        self.document = Document(self.routes)
        self.watchdogs = Watchdogs(shards, self.history, self.clocks, self.hints.are_read, self.metrics)
        self.health = Health(
            shards, self.producer, self.history, self.index, self.metrics, self.watchdogs,
            hears_hints=self.hints.positioned.is_set, hints_within_s=settings.hints_within_s,
            is_leaving=self._leaving.is_set,
        )  # fmt: skip

    async def _add_shard(self, number: int, pool: Pool) -> None:
        """What is there for each shard, for one that is added while the API runs."""
        self.clocks[number], self.command_outcomes[number] = LedgerClock(), CommandOutcomes(pool)
        self._watch_shard(number, pool)

    def _watch_shard(self, number: int, pool: Pool) -> None:
        self._watch(self.command_outcomes[number].run())
        hear, period_s = (self._hear, HOME_NEWS_S) if number == HOME else (_nothing_else, NEWS_S)
        self._watch(follow_news(pool, self.clocks[number], hear, period_s, to_the_point=True))

    def _hear(self, news: News) -> None:
        """What has changed at home, where a tenant's limits are read."""
        self.quotas.hear(news.limits)
        self.lines.weigh({tenant: each.weight for tenant, each in news.limits.items() if each.weight})

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        self._watches.add(asyncio.create_task(work))

    def _locally_us(self, partition: int, due_us: int) -> int | None:
        return self.clocks[self._shards.number_of(partition)].locally_us(due_us)

    def _dropped(self, queue: Queue, count: int) -> None:
        """Runs that the index had no room for."""
        self.metrics.ready_index_dropped.inc(count)
        self.poll.doubt(queue)

    def _ran_low(self, queue: Queue) -> None:
        """Lanes of which the index has only a part."""
        self.poll.refill(queue)

    def _left_out(self, queue: Queue) -> None:
        """Runs that waited for a place, and were not kept, when there is one."""
        self.poll.doubt(queue)

    def leave(self) -> None:
        """Say that the process will stop: /readyz answers 503, and every answer closes its connection."""
        self._leaving.set()

    def app(self) -> ASGIApp:
        """The ASGI application."""
        routes = self.routes()
        others = Starlette(routes=routes, exception_handlers={HTTPException: _http_problem})
        return EndpointsFirst(routes, others, self._access_log)

    def routes(self) -> list[Route]:
        """All that it answers, in the order in which they are tried."""
        return list(self._routes())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reads hints, polls and watches outcomes inside; on the way out everything under way is finished first."""
        self.hints.start()
        self._watch(self.poll.run())
        self._watch(self.quotas.follow())
        self._watch(self.token_uses.follow())
        self._watch(self.permits.follow())
        self._watch(self.permit_upkeep.run())
        for number, pool in self._shards.pools.items():
            self._watch_shard(number, pool)
        try:
            yield
        finally:
            self.leases.close()
            await self.leases.drain()
            for outcomes, _, _ in self.outcomes:
                await outcomes.drain()
            await self.permits.drain()
            for task in self._watches:
                task.cancel()
            await asyncio.gather(*self._watches, return_exceptions=True)
            await asyncio.gather(self.hints.stop(), self.producer.stop(), self.history.close())

    def _routes(self) -> Iterator[Route]:
        """The busiest first: the router tries them in order.

        What is said of a route here, and by its handler's return type and docstring, is what /openapi.json tells.
        """
        yield from self._dispatch()
        yield from self._commands()
        yield self._get("/v1/jobs", self.declared_jobs.list, STEERING, http_declarations.DeclaredQuery, "filtered")
        yield self._get("/v1/jobs/{id}", self.jobs.show, STEERING)
        yield self._get("/v1/runs/{id}", self.runs.show, EVERYONE)
        yield from self._operations()
        yield from self._token_calls()
        yield self._get("/v1/whoami", whoami, EVERYONE, queue_scope="none")
        yield self._get("/v1/schedules", self.live_schedules.list, STEERING, http_declarations.LiveQuery, "filtered")
        reads = self.budgets.reads
        yield self._post(
            "/v1/schedules/preview", preview_schedule, http.PreviewRequest, EVERYONE, reads, queue_scope="none"
        )
        yield self._post("/v1/query", self.queries.query, http_queries.Query, OPERATOR, reads, queue_scope="whole")
        for path, handler in (
            ("/healthz", self.health.healthz),
            ("/readyz", self.health.readyz),
            ("/metrics", self.health.metrics),
            ("/openapi.json", self.document.show),
        ):
            yield Route(path, OpenEndpoint(handler), methods=["GET"])

    def _commands(self) -> Iterator[Route]:
        """What goes to Kafka, and heeds an idempotency key."""

        def command(path: str, handler: Handler[Any], body: type[http.Request] = http.NoBody) -> Route:
            return self._post(path, handler, body, STEERING, keyed=True)

        yield self._post("/v1/jobs", self.jobs.create, http.NewJob, PRODUCER, keyed=True)
        yield self._route("PUT", "/v1/jobs/{id}", self.jobs.update, http.JobUpdate, STEERING, keyed=True)
        yield self._route("DELETE", "/v1/jobs/{id}", self.jobs.delete, http.JobDeletion, STEERING, keyed=True)
        yield command("/v1/jobs/{id}/pause", self.jobs.pause)
        yield command("/v1/jobs/{id}/resume", self.jobs.resume)
        yield command("/v1/jobs/{id}/trigger", self.jobs.trigger, http.Trigger)
        yield command("/v1/jobs/{id}/backfill", self.backfills.backfill, http_operations.Backfill)
        yield command("/v1/runs/{id}/cancel", self.run_commands.cancel)
        yield command("/v1/runs/{id}/replay", self.run_commands.replay)

    def _dispatch(self) -> Iterator[Route]:
        """What workers do."""
        of = self.budgets.leases
        yield self._post("/v1/queues/{queue}/lease", self.leases.lease, http.LeaseRequest, WORKER, of, SMALL_BODY)
        yield self._post("/v1/lease", self.leases.lease_of_any, http.QueuesLease, WORKER, of, SMALL_BODY)
        of = self.budgets.outcomes
        for outcomes, single, batch in self.outcomes:
            yield self._post(f"/v1/runs/{outcomes.name}", outcomes.batch, batch, WORKER, of, BATCH_BODY)
            path, told_by = f"/v1/runs/{{id}}/{outcomes.name}", outcomes.told_by
            yield self._post(path, outcomes.single, single, WORKER, of, told_by=told_by)

    def _operations(self) -> Iterator[Route]:
        """What only operators do."""
        yield self._get("/v1/doctor", self.doctor.diagnose, OPERATOR, queue_scope="whole")
        yield self._get("/v1/runs/{id}/why", self.why.run, STEERING)
        yield self._get("/v1/jobs/{id}/why", self.why.occurrence, STEERING, http_explanations.OccurrenceQuery)
        yield self._get("/v1/dead", self.dead_letters.list, OPERATOR, http_operations.DeadQuery, "filtered")
        replay, body = self.dead_letters.replay, http_operations.DeadReplay
        yield self._post("/v1/dead/replay", replay, body, OPERATOR, queue_scope="filtered", keyed=True)
        queues, nothing = self.queues, http.NoBody
        first_aid = self.budgets.outcomes  # a pause may be what ends the stress
        yield self._get("/v1/queues/{queue}", queues.show, OPERATOR)
        yield self._post("/v1/queues/{queue}/pause", queues.pause, nothing, OPERATOR, first_aid)
        yield self._post("/v1/queues/{queue}/resume", queues.resume, nothing, OPERATOR, first_aid)
        yield self._get("/v1/tenant", queues.show_tenant, OPERATOR, queue_scope="filtered")
        yield self._post("/v1/tenant/pause", queues.pause_tenant, nothing, OPERATOR, first_aid, queue_scope="whole")
        yield self._post("/v1/tenant/resume", queues.resume_tenant, nothing, OPERATOR, first_aid, queue_scope="whole")
        yield self._route("PATCH", "/v1/queues/{queue}", self.queues.change, http_operations.QueueSettings, OPERATOR)
        yield self._route(
            "PATCH", "/v1/tenant", queues.change_tenant, http_operations.TenantSettings, ADMIN, queue_scope="whole"
        )

    def _token_calls(self) -> Iterator[Route]:
        """What only administrators do: it goes to home alone."""
        tokens = self.tokens
        yield self._get("/v1/tokens", tokens.list, ADMIN, http_tokens.TokenQuery, "filtered")
        yield self._post("/v1/tokens", tokens.create, http_tokens.NewToken, ADMIN, limit=SMALL_BODY)
        yield self._post("/v1/tokens/{id}/rotate", tokens.rotate, http_tokens.TokenRotation, ADMIN, limit=SMALL_BODY)
        yield self._route("DELETE", "/v1/tokens/{id}", tokens.revoke, http.NoBody, ADMIN)

    def _get(
        self,
        path: str,
        handler: Handler[Any],
        roles: Collection[Role],
        query: type[http.Request] = http.NoBody,
        queue_scope: QueueScope = "named",
    ) -> Route:
        return self._route("GET", path, handler, query, roles, self.budgets.reads, queue_scope=queue_scope)

    def _post(
        self,
        path: str,
        handler: Handler[Any],
        body: type[http.Request],
        roles: Collection[Role],
        budget: Budget | None = None,
        limit: int = RUN_BODY,
        **told: Any,
    ) -> Route:
        return self._route("POST", path, handler, body, roles, budget, limit, **told)

    def _route(
        self,
        method: str,
        path: str,
        handler: Handler[Any],
        body: type[http.Request],
        roles: Collection[Role],
        budget: Budget | None = None,
        limit: int = RUN_BODY,
        **told: Any,
    ) -> Route:
        """budget: creates, unless it says otherwise. told: as Endpoint has them."""
        endpoint = Endpoint(
            f"{method} {path}",
            handler,
            body,
            roles=roles,
            authenticator=self.authenticator,
            metrics=self.metrics,
            budget=budget or self.budgets.creates,
            is_leaving=self._leaving.is_set,
            access_log=self._access_log,
            body_limit=limit,
            from_query=method in ("GET", "DELETE") and body is not http.NoBody,
            **told,
        )
        return Route(path, endpoint, methods=[method])


def _nothing_else(_: News) -> None:
    """Of a shard that is not home the clock alone is followed."""


async def _http_problem(_: Request, error: Exception) -> Response:
    """The router's own errors, 404 and 405, as problem documents."""
    assert isinstance(error, HTTPException)
    problem = Problem(error.status_code, f"{error.detail}")
    headers = {name.decode(): value.decode() for name, value in problem.all_headers()} | dict(error.headers or {})
    return Response(problem.body(), error.status_code, headers)
