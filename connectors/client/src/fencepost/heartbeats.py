"""Keeps a worker's leases alive, and says in time which cannot be trusted any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from fencepost.client import FencepostClient
from fencepost.errors import FencepostError
from fencepost.leases import Lease, LeaseTerms, StopReason
from fencepost.models import Beat

log = logging.getLogger("fencepost.worker")

BATCH_MAX = 1000


class Heartbeats:
    """One loop for all leases. It never waits for a call: deadlines are kept while the server is silent.

    leases: those held now, read at every tick. stop: told which handler must stop and why.
    """

    def __init__(
        self,
        client: FencepostClient,
        leases: Collection[Lease],
        terms: LeaseTerms,
        stop: Callable[[Lease, StopReason], None],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._leases = leases
        self._terms = terms
        self._stop = stop
        self._clock = clock
        self._call: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                planned_s = self._look()
                slept_from = self._clock()
                await asyncio.sleep(planned_s)
                self._warn_if_late(self._clock() - slept_from - planned_s)
        finally:
            if self._call is not None:
                self._call.cancel()

    def _look(self) -> float:
        """Stop what must stop, send the heartbeats that are due; returns the seconds until the next look."""
        now = self._clock()
        wake_at = now + self._terms.tick_s
        due = []
        for lease in list(self._leases):
            if lease.given_up:
                continue
            stop_at = lease.stop_at(self._terms)
            if now >= stop_at:
                cut_short = lease.is_cut_short(self._terms)
                self._stop(lease, StopReason.TIMED_OUT if cut_short else StopReason.LEASE_ENDING)
                continue
            wake_at = min(wake_at, stop_at)
            if now >= lease.confirmed_at + self._terms.beat_after_s:
                due.append(lease)
        if due and (self._call is None or self._call.done()):
            self._call = asyncio.create_task(self._beat_all(due))
        return wake_at - now

    async def _beat_all(self, leases: list[Lease]) -> None:
        await asyncio.gather(
            *(self.beat(leases[start : start + BATCH_MAX]) for start in range(0, len(leases), BATCH_MAX))
        )

    async def beat(self, leases: list[Lease]) -> None:
        """One call for at most 1,000 leases. Without an answer nothing changes: the next look tries again."""
        sent_at = self._clock()
        visibility_s = self._terms.visibility_s
        beats = [Beat(lease.run.run_id, lease.run.lease_token, visibility_s, lease.progress) for lease in leases]
        try:
            answers = await self._client.heartbeat_many(beats, timeout_s=self._terms.beat_timeout_s, retry_for_s=0)
        except FencepostError as error:
            log.warning("%d heartbeats were not confirmed: %s", len(beats), error)
            return
        for lease, beat, answer in zip(leases, beats, answers, strict=True):
            if answer.status == 200:
                lease.confirm(sent_at, answer.lease_seconds)
                if lease.progress is beat.progress:
                    lease.progress = None
                if answer.cancel:
                    self._stop(lease, StopReason.CANCELLED)
            elif (
                answer.status == 409 and not lease.handled
            ):  # of a handled one the outcome's own answer tells, which may have overtaken us
                self._stop(lease, StopReason.LEASE_LOST)

    def _warn_if_late(self, late_s: float) -> None:
        if late_s > self._terms.tick_s:
            log.warning(
                "the event loop stood still for %.1f s, and heartbeats with it: is a handler that blocks `async`?",
                late_s,
            )
