"""Permits for runs of queues with a limit of live runs: taken at home before such runs are leased, given back after.

Which queues have one is read now and then. A process that does not know yet of a new limit leases nothing of its queue:
the shards refuse it. See ledger/permits.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from api.full_scopes import FullScopes, Scope
from api.ready_index import Queue, ReadyIndex, ReadyRun
from ledger.connection import session
from ledger.live_limits import LiveLimit, read_live_limits
from ledger.permits import (
    FreedPermit,
    Permit,
    Refusal,
    SpentPermit,
    Wish,
    free_permits,
    read_wishes,
    take_permits,
)
from ledger.queue_settings import QueueName
from ledger.shards import Shards
from schemas.errors import FencepostError, LedgerUnavailable

log = logging.getLogger(__name__)

PERIOD_S = 1.0
WITHOUT_LIMITS_S = 2.0

Popped = Mapping[Queue, Sequence[ReadyRun]]


class Admitted(NamedTuple):
    """popped: what may be leased. permits: of those of limited queues, by run."""

    popped: Popped
    permits: Mapping[UUID, Permit]


class Permits:
    """Belongs to one event loop. doubt: gets a queue of which a run was refused that may be there to be leased soon."""

    def __init__(self, shards: Shards, index: ReadyIndex, full: FullScopes, doubt: Callable[[Queue], object]) -> None:
        self._shards = shards
        self._index = index
        self._full = full
        self._doubt = doubt
        self.limits: Mapping[QueueName, LiveLimit] = {}
        self._freeing: set[asyncio.Task[None]] = set()

    async def follow(self) -> None:
        """Go by what is set, until cancelled. When home is away all stays as it is."""
        while True:
            try:
                await self.look()
            except LedgerUnavailable as error:
                log.warning("limits of live runs cannot be read: %s", error)
            await asyncio.sleep(PERIOD_S if self.limits else WITHOUT_LIMITS_S)

    async def look(self) -> None:
        """Read what is set. Raises LedgerUnavailable."""
        async with session(self._shards.home) as conn:
            self.limits = await read_live_limits(conn)

    def are_wanted(self, queues: Iterable[Queue]) -> bool:
        """Whether runs of any of these need permits, as far as is known."""
        return bool(self.limits) and any(queue in self.limits for queue in queues)

    async def admit(self, popped: Popped) -> Admitted:
        """Permits for what was popped, as far as there are. What gets none is the index's again, now or in a moment.

        Raises what kept permits from being taken, such as LedgerUnavailable, when nothing is admitted.
        """
        task = asyncio.create_task(self._admit(popped))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._take_back)
            raise

    def give_back(self, spent: Iterable[SpentPermit]) -> None:
        """Permits whose leases have ended, or were not given. Returns at once; what fails is found later."""
        if spent := list(spent):
            task = asyncio.create_task(self._give_back(spent))
            self._freeing.add(task)
            task.add_done_callback(self._freeing.discard)

    def freed(self, permits: Iterable[FreedPermit]) -> None:
        """Places are free: who waits here for one goes on."""
        for queue, concurrency_key in permits:
            self._full.free((queue.tenant, queue.queue), concurrency_key)

    async def drain(self) -> None:
        """Return when nothing is on its way back."""
        await asyncio.gather(*self._freeing)

    async def _admit(self, popped: Popped) -> Admitted:
        admitted = {queue: runs for queue, runs in popped.items() if queue not in self.limits}
        permits: dict[UUID, Permit] = {}
        errors: list[Exception] = []
        for queue in popped.keys() - admitted.keys():
            try:
                runs, its_permits = await self._admit_queue(QueueName(*queue), popped[queue])
            except Exception as error:
                log.warning("no permits for runs of queue %s: %s", queue[1], error)
                errors.append(error)
            else:
                permits.update(its_permits)
                if runs:
                    admitted[queue] = runs
        if errors and not admitted:
            raise errors[0]
        in_order = {queue: admitted[queue] for queue in popped if queue in admitted}
        return Admitted(in_order, permits)

    async def _admit_queue(
        self, queue: QueueName, runs: Sequence[ReadyRun]
    ) -> tuple[Sequence[ReadyRun], Mapping[UUID, Permit]]:
        may_ask = self._full.may_ask(Scope(queue), len(runs))
        if runs[may_ask:]:
            self._full.put_aside(Scope(queue), runs[may_ask:])
        asked = runs[:may_ask]
        try:
            wishes = await self._wishes(asked)
            asked = self._asking(queue, asked, wishes)
            taken = await take_permits(self._shards.home, queue, [wishes[run.run_id] for run in asked])
        except Exception:
            self._full.put_aside(Scope(queue), asked)
            raise
        if taken is None:  # it has no limit any more
            self.limits = {name: limit for name, limit in self.limits.items() if name != queue}
            return asked, {}
        for run in asked:
            if refusal := taken.refused.get(run.run_id):
                self._refuse(queue, wishes[run.run_id], run, refusal)
        return [run for run in asked if run.run_id in taken.permits], taken.permits

    def _asking(self, queue: QueueName, runs: Sequence[ReadyRun], wishes: Mapping[UUID, Wish]) -> Sequence[ReadyRun]:
        """Those that wait, but for those of full keys."""
        asking, gone = [], []
        for run in runs:
            wish = wishes.get(run.run_id)
            if wish is None:
                gone.append(run)
            elif wish.concurrency_key is None or self._full.may_ask(Scope(queue, wish.concurrency_key)):
                asking.append(run)
            else:
                self._full.put_aside(Scope(queue, wish.concurrency_key), [run])
        self._index.settle(gone)
        return asking

    def _refuse(self, queue: QueueName, wish: Wish, run: ReadyRun, refusal: Refusal) -> None:
        if refusal == "has_one":  # it is leased, or was until just now
            self._index.settle([run])
            self._doubt(queue)
        else:
            key = wish.concurrency_key if refusal == "key_full" else None
            self._full.put_aside(Scope(queue, key), [run])

    async def _wishes(self, runs: Sequence[ReadyRun]) -> dict[UUID, Wish]:
        """What those of the runs want that wait, on shards that answer. Raises LedgerUnavailable when none does."""
        wishes: dict[UUID, Wish] = {}
        errors: list[LedgerUnavailable] = []
        for shard, own in self._shards.split(runs).items():
            try:
                async with session(self._shards.pools[shard]) as conn:
                    wishes |= {wish.run_id: wish for wish in await read_wishes(conn, [run.run_id for run in own])}
            except LedgerUnavailable as error:
                errors.append(error)
        if errors and not wishes:
            raise errors[0]
        return wishes

    def _take_back(self, admitting: asyncio.Task[Admitted]) -> None:
        """Whoever asked is gone."""
        if admitting.cancelled() or admitting.exception():
            return
        admitted = admitting.result()
        self.give_back(SpentPermit(permit.run_id, permit.number) for permit in admitted.permits.values())
        for queue, runs in admitted.popped.items():
            self._index.put_back(queue, runs)

    async def _give_back(self, spent: Sequence[SpentPermit]) -> None:
        try:
            async with session(self._shards.home) as conn:
                self.freed(await free_permits(conn, spent))
        except FencepostError as error:
            log.warning("%d permits are given back later: %s", len(spent), error)
