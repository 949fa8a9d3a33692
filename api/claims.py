"""Claims: what a lease call has popped from the ready index becomes leases, in one group-committed transaction a shard.

The answer is the union of what the shards lease. One that is away or slow keeps nothing from the others: its runs are
put back, or found again by a look once it answers. A client that hangs up leaves no lease behind. Runs of a partition
is just moving to another shard are put back too, a moment later. Runs of queues with a limit of live runs need permits:
see api/permits.py; those that were not used are given back once that is known.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count as counting
from typing import Any, NamedTuple
from uuid import UUID

from api.metrics import ApiMetrics
from api.permits import Permits
from api.ready_index import Queue, ReadyIndex, ReadyRun
from api.ready_poll import ReadyPoll
from ledger.connection import Pool
from ledger.fence import api_transaction
from ledger.group_commit import Pending, ShardCommits
from ledger.leases import HeldLease, LeaseAsk, LeasedRun, lease_at_once, release_runs
from ledger.permits import Permit, SpentPermit
from ledger.shards import MOVES_WITHIN_S, Shards, write_here
from schemas import http
from schemas.commands import LANES
from schemas.errors import FencepostError, LedgerUnavailable, NotOnThisShard, TryAgain
from schemas.ids import partition_of_run

log = logging.getLogger(__name__)

COMPANY_S = 0.25  # how long the leases of one shard wait for those of the others
ASK_AGAIN_S = 0.05  # for runs of a partition that is moving; the call goes on waiting meanwhile

Watch = asyncio.Future[Any]  # done when the client has hung up


Popped = Mapping[Queue, Sequence[ReadyRun]]  # none is empty


class HungUp(Exception):
    """The client is gone: nobody waits for an answer."""


class Asked(NamedTuple):
    """A lease call. until: on the monotonic clock. remember_as: None without a request id."""

    queues: Sequence[Queue]
    body: http.LeaseRequest
    until: float
    remember_as: UUID | None

    @property
    def tenant(self) -> str:
        """Whose call it is: all of its queues are this tenant's."""
        return self.queues[0][0]


@dataclass(slots=True, eq=False)
class Claim:
    """Runs of one shard that one lease call wants leased."""

    asks: Sequence[LeaseAsk]

    def row_ids(self) -> Sequence[UUID]:
        return [ask.run_id for ask in self.asks]


class _Part(NamedTuple):
    """What a call popped of one shard, and the leases of it on their way."""

    shard: int
    popped: Popped
    pending: Pending[Claim, LeasedRun | NotOnThisShard]
    permits: Sequence[SpentPermit]  # that were taken for them

    def runs(self) -> list[ReadyRun]:
        return _runs(self.popped)

    def leased(self) -> list[LeasedRun]:
        """The call's own, in the order the runs were due. Raises what the transaction raised; it is over."""
        came = self.pending.done.result()
        found = (came.get(run.run_id) for run in self.runs())
        return [each for each in found if each is not None and not isinstance(each, NotOnThisShard)]

    def refused(self) -> Popped:
        """The call's own whose partitions are not on the shard. Raises as `leased`."""
        came = self.pending.done.result()
        refused = {
            queue: [run for run in runs if isinstance(came.get(run.run_id), NotOnThisShard)]
            for queue, runs in self.popped.items()
        }
        return {queue: runs for queue, runs in refused.items() if runs}

    def has_leases(self) -> bool:
        done = self.pending.done
        return done.done() and done.exception() is None and bool(self.leased())


class Claims:
    """Belongs to one event loop."""

    def __init__(
        self, shards: Shards, index: ReadyIndex, poll: ReadyPoll, metrics: ApiMetrics, permits: Permits
    ) -> None:
        self._shards = shards
        self._index = index
        self._poll = poll
        self._permits = permits
        self._metrics = metrics
        self._commits: ShardCommits[Claim, LeasedRun | NotOnThisShard] = ShardCommits(
            shards, self._lease, observe=metrics.commit_batch_runs.labels("lease").observe
        )
        self._undoing: set[asyncio.Task[None]] = set()
        self._lease_counts = [metrics.leases.labels(lane) for lane in LANES]

    async def lease(self, asked: Asked, popped: Popped, hung_up: Watch, *, at_once: bool) -> Sequence[LeasedRun]:
        """Lease what was popped. When the client hangs up meanwhile, nothing of it stays leased or gets lost.

        at_once: not behind the transactions of others that are under way.

        Raises HungUp, or what kept every shard that there is from leasing.
        """
        permits: Mapping[UUID, Permit] = {}
        if self._permits.are_wanted(popped):
            popped, permits = await self._permits.admit(popped)
        parts = self._submit(asked, popped, permits, at_once)
        try:
            await _answers(parts, hung_up)
        except asyncio.CancelledError:
            await asyncio.shield(self._undo_all(parts))
            raise
        if hung_up.done():
            await self._undo_all(parts)
            raise HungUp
        for late in [part for part in parts if not part.pending.done.done()]:
            parts.remove(late)
            self._undo_later(late)
        leased = self._settle_all(parts)
        if not leased:
            for queue in popped:
                self._poll.doubt(queue)
        return [leased[run.run_id] for run in _runs(popped) if run.run_id in leased]  # in the order the runs were due

    async def drain(self) -> None:
        """Return when nothing is under way."""
        await self._commits.drain()
        await asyncio.gather(*self._undoing)
        await self._permits.drain()

    def _submit(self, asked: Asked, popped: Popped, permits: Mapping[UUID, Permit], at_once: bool) -> list[_Part]:
        by_shard: dict[int, dict[Queue, list[ReadyRun]]] = {}
        for queue, runs in popped.items():
            for shard, own in self._shards.split(runs).items():
                by_shard.setdefault(shard, {})[queue] = own
        return [self._submit_part(asked, shard, own, permits, at_once) for shard, own in by_shard.items()]

    def _submit_part(
        self, asked: Asked, shard: int, popped: Popped, permits: Mapping[UUID, Permit], at_once: bool
    ) -> _Part:
        worker_id, visibility_s, remember_as = asked.body.worker_id, asked.body.visibility_seconds, asked.remember_as
        asks = [
            LeaseAsk(run.run_id, run.epoch, worker_id, visibility_s, remember_as, permits.get(run.run_id))
            for run in _runs(popped)
        ]
        taken = [SpentPermit(ask.run_id, ask.permit.number) for ask in asks if ask.permit] if permits else ()
        return _Part(shard, popped, self._commits.of(shard).submit(Claim(asks), at_once=at_once), taken)

    def _settle_all(self, parts: Sequence[_Part]) -> dict[UUID, LeasedRun]:
        """The leases of parts that have answered. Raises a shard's error only when there is no other to get runs of."""
        leased: dict[UUID, LeasedRun] = {}
        errors: list[Exception] = []
        for part in parts:
            try:
                own = self._settle(part)
            except Exception as error:
                errors.append(error)
            else:
                self._count(part.runs(), own)
                leased |= {run.run_id: run for run in own}
        for each in errors:
            is_away = isinstance(each, TryAgain)
            if not leased and (len(errors) == len(self._shards.pools) or not is_away):
                raise each
            log.warning("a shard leased nothing: %s", each, exc_info=None if is_away else each)
        return leased

    def _settle(self, part: _Part) -> list[LeasedRun]:
        """A part's leases; tells the index. Raises what the transaction raised."""
        try:
            leased = part.leased()
        except TryAgain:
            if len(self._shards.pools) > 1 and self._shards.pools[part.shard].is_away:
                # In the index they would come first again and again, before those of shards that answer.
                self._index.settle(part.runs())
            else:
                self._put_back(part.popped)
            raise
        except Exception:
            self._index.settle(part.runs())
            raise
        refused = part.refused()
        self._put_back_later(refused)
        gone = {run.run_id for run in _runs(refused)}
        self._index.settle([run for run in part.runs() if run.run_id not in gone])
        if part.permits:
            run_ids = {run.run_id for run in leased}
            self._permits.give_back(permit for permit in part.permits if permit.run_id not in run_ids)
        return leased

    async def _undo_all(self, parts: Sequence[_Part]) -> None:
        await asyncio.gather(*map(self._undo, parts))

    def _undo_later(self, part: _Part) -> None:
        """The others have leased something, and their worker is not kept waiting."""
        task = asyncio.create_task(self._undo(part))
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)

    async def _undo(self, part: _Part) -> None:
        """As if it had never been: what was leased is released, what was popped is in the index again."""
        if self._commits.of(part.shard).withdraw(part.pending):
            self._put_back(part.popped)
            self._permits.give_back(part.permits)
            return
        try:
            await asyncio.wait({part.pending.done})
            leased = self._settle(part)
            if leased:
                await self._give_back(leased)
        except FencepostError as error:
            log.warning("leases that nobody was told of stay until they expire: %s", error)
            return
        returned = {run.run_id for run in leased}
        self._permits.give_back(permit for permit in part.permits if permit.run_id in returned)
        popped = part.popped.items()
        self._put_back({queue: [run for run in runs if run.run_id in returned] for queue, runs in popped})

    def _put_back_later(self, popped: Popped) -> None:
        """They stay claimed until then: a look would find them, and have them refused at once."""
        if popped:
            asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._put_back, popped)

    def _put_back(self, popped: Popped) -> None:
        for queue, runs in popped.items():
            self._index.put_back(queue, runs)

    async def _give_back(self, leased: Sequence[LeasedRun]) -> None:
        until = time.monotonic() + MOVES_WITHIN_S
        for tries in counting():
            refusals: list[NotOnThisShard] = []
            for shard, own in self._shards.split(leased).items():
                came = await write_here(own, partial(_release, self._shards.pools[shard]))
                refusals += [each for each in came.values() if isinstance(each, NotOnThisShard)]
                self._metrics.leases_given_back.inc(sum(each is True for each in came.values()))
            if not refusals:
                return
            if time.monotonic() >= until:
                raise refusals[0]
            moving = frozenset().union(*(refusal.partitions for refusal in refusals))
            leased = [run for run in leased if partition_of_run(run.run_id) in moving]
            await self._shards.look_for(moving, tries)

    async def _lease(self, pool: Pool, claims: Sequence[Claim]) -> Mapping[UUID, LeasedRun | NotOnThisShard]:
        came = await write_here([ask for claim in claims for ask in claim.asks], partial(_lease, pool))
        if any(isinstance(each, NotOnThisShard) for each in came.values()):
            with suppress(LedgerUnavailable):
                await self._shards.look_again()
        return came

    def _count(self, popped: Sequence[ReadyRun], leased: Sequence[LeasedRun]) -> None:
        """Of one shard: the leases began at one instant of its clock."""
        self._metrics.wasted_claims.inc(len(popped) - len(leased))
        if not leased:
            return
        leased_at = leased[0].lease_expires_at - timedelta(seconds=leased[0].lease_s)
        for run in leased:
            self._metrics.lateness_ms.observe((leased_at - run.due_at).total_seconds() * 1000)
        run_ids = {run.run_id for run in leased}
        lanes = Counter(run.lane for run in popped if run.run_id in run_ids)
        for lane, count in lanes.items():
            self._lease_counts[lane].inc(count)


async def _lease(pool: Pool, asks: Sequence[LeaseAsk]) -> Mapping[UUID, LeasedRun]:
    return {run.run_id: run for run in await lease_at_once(pool, asks)}


async def _release(pool: Pool, leased: Sequence[LeasedRun]) -> Mapping[UUID, bool]:
    async with api_transaction(pool, [run.run_id for run in leased]) as conn:
        released = await release_runs(conn, [HeldLease(run.run_id, run.lease_token) for run in leased])
    return {run.run_id: True for run in released}


def _runs(popped: Popped) -> list[ReadyRun]:
    return [run for runs in popped.values() for run in runs]


async def _answers(parts: Sequence[_Part], hung_up: Watch) -> None:
    """Until every shard has answered or the client is gone; once one has leases the others have only a moment left."""
    waiting = {part.pending.done for part in parts}
    until: float | None = None
    while waiting and not hung_up.done():
        left_s = None if until is None else until - time.monotonic()
        done, _ = await asyncio.wait({*waiting, hung_up}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return
        waiting -= done
        if waiting and until is None and any(part.has_leases() for part in parts):
            until = time.monotonic() + COMPANY_S
