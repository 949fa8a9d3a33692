"""The endpoints of outcomes: heartbeat, complete, fail, release and snooze, each for a single run and for a batch.

All of one kind that arrive together are written in one transaction. The hot path touches the ledger once; a run whose
lease is not there takes the miss path of ended_attempts. A call about a run whose partition is just moving to another
shard waits until it is there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar
from uuid import UUID

from msgspec import Struct

from api.ended_attempts import EndedAttempts
from api.endpoints import Call
from api.metrics import ApiMetrics
from api.outcome_kinds import Ask, Came, Kind, caller_of
from api.permits import Permits
from api.problems import Problem, invalid, not_found, problem_of
from ledger.connection import Pool
from ledger.fence import api_transaction
from ledger.group_commit import ShardCommits
from ledger.permits import SpentPermit
from ledger.shards import MOVES_WITHIN_S, Shards, write_here
from ledger.tokens import Identity
from schemas import http
from schemas.errors import NotOnThisShard, TryAgain
from schemas.ids import partition_of_run

A = TypeVar("A", bound=Ask)
R = TypeVar("R", bound=Came)


@dataclass(slots=True, eq=False)
class Asks(Generic[A]):
    """The asks of one call."""

    asks: Sequence[A]

    def row_ids(self) -> Sequence[UUID]:
        return [ask.run_id for ask in self.asks]


class Outcomes(Generic[A, R]):
    """Both endpoints of one kind."""

    def __init__(
        self, kind: Kind[Any, A, R], shards: Shards, ends: EndedAttempts, metrics: ApiMetrics, permits: Permits
    ) -> None:
        self.name, self.told_by = kind.name, kind.single
        self._kind = kind
        self._shards = shards
        self._ends = ends
        self._permits = permits
        self._commits: ShardCommits[Asks[A], R | NotOnThisShard] = ShardCommits(
            shards, self._write, observe=metrics.commit_batch_runs.labels(kind.name).observe
        )

    async def single(self, call: Call[Any]) -> Struct:
        """What `told_by` tells."""
        run_id = call.id("run")
        if not self._is_ours(run_id):
            raise not_found("run")
        ask = self._kind.ask(run_id, call.body, caller_of(call.identity))
        shard = self._shards.number_of(partition_of_run(run_id))
        came = (await self._commits.of(shard).write(Asks([ask]))).get(run_id)
        if isinstance(came, NotOnThisShard):
            came = (await self._write_parts([ask]))[0].get(run_id)
        if came is None:
            came = await self._kind.explain_miss(self._ends, call.identity, ask, self._ends.deadline())
        return self._kind.single(came)

    async def batch(self, call: Call[Any]) -> http.BatchAnswer:
        """The same of up to 1,000 runs in one call, answered in their order."""
        asks = self._asks(call)
        came, unknown = await self._write_parts(asks)
        misses = [ask for ask in asks if ask.run_id not in came and ask.run_id not in unknown]
        told = unknown | (await self._explain_misses(call.identity, misses) if misses else {})
        item = self._kind.item
        return http.BatchAnswer(
            [
                item(run.run_id, came[run.run_id]) if run.run_id in came else told.get(run.run_id, _lost(run.run_id))
                for run in call.body.runs
            ]
        )

    async def drain(self) -> None:
        await self._commits.drain()

    def _is_ours(self, run_id: UUID) -> bool:
        return partition_of_run(run_id) < self._shards.partitions

    def _asks(self, call: Call[Any]) -> list[A]:
        """The asks about runs that can exist. Raises Problem 422 naming the item's field."""
        caller, asks, seen = caller_of(call.identity), [], set[UUID]()
        for position, run in enumerate(call.body.runs):
            if run.run_id in seen:
                raise invalid(f"runs.{position}.runId", "the run is there twice")
            seen.add(run.run_id)
            if not self._is_ours(run.run_id):
                continue
            try:
                asks.append(self._kind.ask(run.run_id, run, caller))
            except Problem as problem:
                raise invalid(f"runs.{position}.{problem.field}", problem.detail) from None
        return asks

    async def _write_parts(self, asks: Sequence[A]) -> tuple[dict[UUID, R], dict[UUID, http.RunAnswer]]:
        """What came of the asks, and for those whose shard is away an answer that says so. Raises when all are away."""
        came: dict[UUID, R] = {}
        unknown: dict[UUID, http.RunAnswer] = {}
        until = time.monotonic() + MOVES_WITHIN_S
        for tries in count():
            answers, away = await self._write_once(asks)
            unknown |= away
            came |= {run_id: each for run_id, each in answers.items() if not isinstance(each, NotOnThisShard)}
            refusals = {run_id: each for run_id, each in answers.items() if isinstance(each, NotOnThisShard)}
            if not refusals:
                break
            asks, refusal = [ask for ask in asks if ask.run_id in refusals], next(iter(refusals.values()))
            if time.monotonic() >= until:
                if not came and not unknown:
                    raise refusal
                return came, unknown | {ask.run_id: _lost(ask.run_id, str(refusal), 503) for ask in asks}
            await self._shards.look_for(refusal.partitions, tries)
        return came, unknown

    async def _write_once(self, asks: Sequence[A]) -> tuple[dict[UUID, R | NotOnThisShard], dict[UUID, http.RunAnswer]]:
        """The same, by the map as it is known; of asks that their shard has refused, its refusal."""
        parts = self._shards.split(asks)
        writes = (self._commits.of(shard).write(Asks(part)) for shard, part in parts.items())
        answers = await asyncio.gather(*writes, return_exceptions=True)
        all_away = all(isinstance(answer, TryAgain) for answer in answers)
        came: dict[UUID, R | NotOnThisShard] = {}
        unknown: dict[UUID, http.RunAnswer] = {}
        for part, answer in zip(parts.values(), answers, strict=True):
            if not isinstance(answer, BaseException):
                came |= {ask.run_id: answer[ask.run_id] for ask in part if ask.run_id in answer}
            elif isinstance(answer, TryAgain) and not all_away:
                unknown |= {ask.run_id: _lost(ask.run_id, str(answer), 503) for ask in part}
            else:
                raise answer
        return came, unknown

    async def _write(self, pool: Pool, calls: Sequence[Asks[A]]) -> Mapping[UUID, R | NotOnThisShard]:
        return await write_here([ask for call in calls for ask in call.asks], partial(self._write_all, pool))

    async def _write_all(self, pool: Pool, asks: Sequence[A]) -> Mapping[UUID, R]:
        async with api_transaction(pool, [ask.run_id for ask in asks]) as conn:
            came = await self._kind.write(conn, asks)
        self._permits.give_back(SpentPermit(run_id, each.permit) for run_id, each in came.items() if each.permit)
        return came

    async def _explain_misses(self, identity: Identity, misses: Sequence[A]) -> dict[UUID, http.RunAnswer]:
        until = self._ends.deadline()
        answers = await asyncio.gather(*(self._explain(identity, ask, until) for ask in misses))
        return {answer.run_id: answer for answer in answers}

    async def _explain(self, identity: Identity, ask: A, until: float) -> http.RunAnswer:
        try:
            came = await self._kind.explain_miss(self._ends, identity, ask, until)
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                raise
            return _lost(ask.run_id, problem.detail, 503 if problem.status == 503 else 409)
        return self._kind.item(ask.run_id, came)


def _lost(run_id: UUID, detail: str = "no such run", status: int = 409) -> http.RunAnswer:
    return http.RunAnswer(run_id=run_id, status=status, detail=detail)
