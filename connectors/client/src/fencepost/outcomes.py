"""Reports how attempts ended, in batches: what comes while a call is under way goes with the next one.

No timer: an outcome that finds no call under way leaves at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from fencepost.backoff import wait_before_retry_s
from fencepost.client import FencepostClient
from fencepost.errors import FencepostError, TryAgain, Unauthorized
from fencepost.leases import Lease, LeaseTerms
from fencepost.models import Completion, Failure, OutcomeAnswer, Release, Snoozing
from fencepost.worker_stats import WorkerStats

log = logging.getLogger("fencepost.worker")

BATCH_MAX = 1000
BATCH_MAX_BYTES = 1024 * 1024

Outcome = Completion | Failure | Release | Snoozing


class _Send(Protocol):
    def __call__(
        self, outcomes: Sequence[Any], /, *, timeout_s: float | None, retry_for_s: float | None
    ) -> Awaitable[list[OutcomeAnswer]]: ...


class _Report(NamedTuple):
    lease: Lease
    outcome: Outcome
    size_bytes: int


class OutcomeReporter:
    """settled: called once for every lease that was reported, or on which nothing may be reported any more."""

    def __init__(
        self,
        client: FencepostClient,
        terms: LeaseTerms,
        stats: WorkerStats,
        settled: Callable[[Lease], None],
        clock: Callable[[], float],
    ) -> None:
        self._lines: dict[type[Outcome], _Line] = {
            Completion: _Line(client.complete_many, "completed", terms, stats, settled, clock),
            Failure: _Line(client.fail_many, "failed", terms, stats, settled, clock),
            Release: _Line(client.release_many, "released", terms, stats, settled, clock),
            Snoozing: _Line(client.snooze_many, "snoozed", terms, stats, settled, clock),
        }

    def report(self, lease: Lease, outcome: Outcome, size_bytes: int = 0) -> None:
        """Send an outcome soon. size_bytes: of its result or error."""
        self._lines[type(outcome)].add(_Report(lease, outcome, size_bytes))

    async def idle(self) -> None:
        """When every outcome was answered, or given up as its lease could have ended."""
        while calls := [line.call for line in self._lines.values() if line.call is not None]:
            await asyncio.wait(calls)


class _Line:
    """The outcomes of one kind; one call at a time."""

    def __init__(
        self,
        send: _Send,
        counter: str,
        terms: LeaseTerms,
        stats: WorkerStats,
        settled: Callable[[Lease], None],
        clock: Callable[[], float],
    ) -> None:
        self._send = send
        self._counter = counter
        self._terms = terms
        self._stats = stats
        self._settled = settled
        self._clock = clock
        self._waiting: deque[_Report] = deque()
        self._batch_max = BATCH_MAX
        self.call: asyncio.Task[None] | None = None

    def add(self, report: _Report) -> None:
        self._waiting.append(report)
        if self.call is None:
            self.call = asyncio.create_task(self._empty())

    async def _empty(self) -> None:
        repetition = 0
        try:
            while batch := self._next_batch():
                try:
                    again, retry_after_s = await self._report(batch), None
                except TryAgain as error:
                    log.warning("%d outcomes wait: %s", len(batch), error)
                    again, retry_after_s = batch, error.retry_after_s
                if again:
                    self._waiting.extendleft(reversed(again))
                    await asyncio.sleep(wait_before_retry_s(repetition, retry_after_s))
                repetition = repetition + 1 if again else 0
        finally:
            self.call = None

    def _next_batch(self) -> list[_Report]:
        now = self._clock()
        batch: list[_Report] = []
        size_bytes = 0
        while self._waiting and len(batch) < self._batch_max:
            report = self._waiting[0]
            if batch and size_bytes + report.size_bytes > BATCH_MAX_BYTES:
                break
            self._waiting.popleft()
            if report.lease.may_report(now, self._terms):
                size_bytes += report.size_bytes
                batch.append(report)
            else:
                self._stats.abandoned += 1
                self._settled(report.lease)
        return batch

    async def _report(self, batch: list[_Report]) -> list[_Report]:
        """Send a batch; returns what must be sent again later. Raises TryAgain when that is all of it."""
        try:
            answers = await self._send([report.outcome for report in batch], timeout_s=None, retry_for_s=0)
        except TryAgain:
            raise
        except FencepostError as error:
            if len(batch) == 1 or isinstance(error, Unauthorized):
                self._refuse(batch, error)
            else:
                # Halve until the outcome that the server will not have is alone: the others must not suffer for it.
                self._batch_max = len(batch) // 2
                self._waiting.extendleft(reversed(batch))
            return []
        self._batch_max = min(BATCH_MAX, self._batch_max * 2)
        return self._note(batch, answers)

    def _refuse(self, batch: list[_Report], error: FencepostError) -> None:
        log.error("the server refused %d outcomes, from run %s on: %s", len(batch), batch[0].outcome.run_id, error)
        self._stats.refused += len(batch)
        for report in batch:
            self._settled(report.lease)

    def _note(self, batch: list[_Report], answers: list[OutcomeAnswer]) -> list[_Report]:
        """Count and settle what was decided; returns the reports of which the server does not know yet."""
        accepted = 0
        undecided = []
        for report, answer in zip(batch, answers, strict=True):
            if answer.status == 503:
                undecided.append(report)
                continue
            if answer.outcome == "cancelled":
                self._stats.cancelled += 1
            elif answer.status == 200:
                accepted += 1
            else:
                self._stats.conflicts += 1
                log.warning("run %s: %s came after the lease was lost", answer.run_id, self._counter)
            self._settled(report.lease)
        setattr(self._stats, self._counter, getattr(self._stats, self._counter) + accepted)
        return undecided
