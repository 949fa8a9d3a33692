"""Leases runs of a queue, or of several, and executes a handler for each, within what the leases allow."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from fencepost.attempt_ends import completion, failure, outcome_of, release
from fencepost.backoff import wait_before_retry_s
from fencepost.client import FencepostClient
from fencepost.errors import ServerFault, TryAgain
from fencepost.handler_threads import HandlerThreads
from fencepost.heartbeats import Heartbeats
from fencepost.ids import new_id
from fencepost.leases import Lease, LeaseTerms, StopReason, elapsed_s
from fencepost.models import Failure, LeaseAnswer, LeasedRun
from fencepost.outcomes import Outcome, OutcomeReporter
from fencepost.run_context import RunContext
from fencepost.sealing import PayloadCodec, opened
from fencepost.shutdown import Shutdown
from fencepost.worker_stats import WorkerStats

log = logging.getLogger("fencepost.worker")

Handler = Callable[[RunContext], Any]

LEASE_MAX = 1000
WAIT_S = 50.0  # of a long-poll: proxies end what takes a minute, by their defaults


class Worker:
    """Executes runs of its queue until it is told to drain.

    queue: or up to 100 queues, which one poll waits on and which share the slots; `ctx.queue` tells whose run it is.
    handler: gets a RunContext. An `async` one runs on the loop and is cancelled when it must stop; a plain one runs in
    a thread and must look at `ctx.stopping`. What it returns (a JSON value of at most 64 KiB, or None) is the run's
    result; an exception fails the attempt, see PermanentFailure, RetryLater and Snooze.
    slots: handlers at once. At most twice as many runs are held: those running and those waiting to be reported.
    visibility_s: how long the server waits for a sign of life before it gives a run to another worker.
    drain_s: how long running handlers may go on after SIGTERM. stop_grace_s: and then, after being told to stop.
    payload_codec: opens payloads and seals results; a run whose payload it cannot open is dead, for another try later.
    clock: seconds that only grow; for tests.
    """

    def __init__(
        self,
        client: FencepostClient,
        queue: str | Sequence[str],
        handler: Handler,
        *,
        slots: int = 10,
        visibility_s: float = 30,
        worker_id: str | None = None,
        drain_s: float = 30,
        stop_grace_s: float = 5,
        payload_codec: PayloadCodec | None = None,
        clock: Callable[[], float] = elapsed_s,
    ) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.stats = WorkerStats()
        self.client = client
        self._queue = queue
        self._handler = handler
        self._threads = None if _is_async(handler) else HandlerThreads()
        self._slots = slots
        self._terms = LeaseTerms(visibility_s)
        self._stop_grace_s = stop_grace_s
        self._payload_codec = payload_codec
        self._clock = clock
        self._leases: set[Lease] = set()
        self._contexts: dict[Lease, RunContext] = {}  # of the handlers that run
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._shutdown = Shutdown(drain_s)
        self._heartbeats = Heartbeats(client, self._leases, self._terms, self._stop, clock)
        self._outcomes = OutcomeReporter(client, self._terms, self.stats, self._forget, clock)

    async def run(self) -> None:
        """Work until drained. In the main thread SIGTERM and SIGINT drain; a second one stops the handlers at once.

        Raises what the server refuses a poll with (Unauthorized, for instance), after draining.
        """
        polls = asyncio.create_task(self._poll_forever())
        beats = asyncio.create_task(self._heartbeats.run())
        with self._shutdown.on_signals():
            try:
                asked = asyncio.create_task(self._shutdown.asked.wait())
                await asyncio.wait({polls, beats, asked}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                self._shutdown.ask(0)
                raise
            finally:
                await _cancelled(polls, asked)
                await self._wind_down()
                await _cancelled(beats)
                self._shutdown.ended.set()
        for task in (polls, beats):
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def drain(self, deadline_s: float | None = None) -> None:
        """End `run`: poll no more, give running handlers deadline_s (drain_s unless given), then stop them.

        A handler that was stopped fails its attempt, to be retried at once; a run that never started is released; one
        whose thread does not end is left to its lease, as another worker must not start it beside.
        """
        self._shutdown.ask(deadline_s)
        await self._shutdown.ended.wait()

    async def _poll_forever(self) -> None:
        while True:
            room = await self._wait_for_room()
            ask = _Ask(new_id(), min(room, LEASE_MAX), self._clock())
            answer = await self._lease(ask)
            await self._start(answer.runs, ask.first_sent_at + answer.waited_seconds)
            await asyncio.sleep(0)  # handlers begin, and only then the next call is put together

    async def _wait_for_room(self) -> int:
        while (room := min(self._slots - len(self._contexts), 2 * self._slots - len(self._leases))) < 1:
            self._room.clear()
            await self._room.wait()
        return room

    async def _lease(self, ask: _Ask) -> LeaseAnswer:
        """The runs for an ask. One whose answer was lost is repeated under its request id while its leases can live."""
        repetition = 0
        while self._clock() < ask.first_sent_at + WAIT_S + self._terms.visibility_s:
            try:
                return await self.client.poll(
                    self._queue,
                    self.worker_id,
                    max_runs=ask.max_runs,
                    visibility_s=self._terms.visibility_s,
                    wait_s=WAIT_S,
                    request_id=ask.request_id,
                    retry_for_s=0,
                )
            except (TryAgain, ServerFault) as error:
                retry_after_s = error.retry_after_s if isinstance(error, TryAgain) else None
                wait_s = wait_before_retry_s(repetition, retry_after_s)
                log.warning("no runs of %s for %.1f s: %s", self._queue, wait_s, error)
                await asyncio.sleep(wait_s)
                repetition += 1
        return LeaseAnswer([])

    async def _start(self, runs: list[LeasedRun], leased_at: float) -> None:
        """leased_at: the leases began then or later."""
        leases = [Lease(run, leased_at) for run in runs]
        self._leases.update(leases)
        self.stats.leased += len(leases)
        age_s = self._clock() - leased_at
        if old := [lease for lease in leases if age_s > min(self._terms.visibility_s, lease.lasts_s) / 2]:
            await self._confirm(old)
        for lease in leases:
            if self._shutdown.asked.is_set():  # the answer crossed with the wish to drain
                self._report(lease, release(lease))
            else:
                self._start_handler(lease)

    async def _confirm(self, leases: list[Lease]) -> None:
        """Of an answer that needed repetitions, or whose attempts are short: how much of the leases is left?

        Nothing may start on one that is lost.
        """
        try:
            await self._heartbeats.beat(leases)
        except asyncio.CancelledError:  # draining
            for lease in leases:
                self._report(lease, release(lease))
            raise

    def _start_handler(self, lease: Lease) -> None:
        context = RunContext(lease, self._terms, self._clock)
        self._contexts[lease] = context
        self._idle.clear()
        lease.task = asyncio.create_task(self._attempt(lease, context))

    async def _attempt(self, lease: Lease, context: RunContext) -> None:
        """One attempt, from the handler's start to the decision what is reported."""
        outcome: Outcome
        size_bytes = 0
        if lease.stop_reason is not None:  # stopped before it began
            outcome = release(lease)
        else:
            lease.started = True
            try:
                context.payload = opened(lease.run.payload, self._payload_codec)
                result = await self._call_handler(context)
                outcome, size_bytes = completion(lease, result, self._payload_codec)
            except asyncio.CancelledError:
                if self._is_cancelled_by_others(lease):
                    self._end(lease)
                    raise
                outcome = failure(lease, "the handler was cancelled")
            except (Exception, SystemExit) as error:
                outcome = outcome_of(lease, error)
                size_bytes = len(outcome.error) if isinstance(outcome, Failure) else 0
        self._end(lease)
        self._report(lease, outcome, size_bytes)

    def _is_cancelled_by_others(self, lease: Lease) -> bool:
        """Whether the program ends, and not only this handler, or something that it awaited."""
        task = asyncio.current_task()
        ours = int(lease.stop_reason is not None and self._threads is None)
        return task is not None and task.cancelling() > ours

    async def _call_handler(self, context: RunContext) -> Any:
        if self._threads is None:
            return await self._handler(context)
        return await self._threads.call(self._handler, context)

    def _end(self, lease: Lease) -> None:
        lease.handled = True
        del self._contexts[lease]
        self._room.set()
        if not self._contexts:
            self._idle.set()

    def _report(self, lease: Lease, outcome: Outcome, size_bytes: int = 0) -> None:
        """Hand an outcome on. Once the handler was told to stop its own word does not count."""
        if lease.given_up:
            self.stats.abandoned += 1
            self._forget(lease)
            return
        if lease.stop_reason is StopReason.CANCELLED:
            outcome = failure(lease, StopReason.CANCELLED.value, permanent=True)
        elif lease.stop_reason is StopReason.DRAINING and lease.started:
            outcome = failure(lease, StopReason.DRAINING.value, retry_after_s=0)
        self._outcomes.report(lease, outcome, size_bytes)

    def _forget(self, lease: Lease) -> None:
        self._leases.discard(lease)
        self._room.set()

    def _stop(self, lease: Lease, reason: StopReason) -> None:
        """Tell a handler to stop. A later reason overrides an earlier one only where it forbids to report."""
        if lease.handled or lease.given_up:
            return
        first = lease.stop_reason is None
        if not first and reason in (StopReason.CANCELLED, StopReason.DRAINING):
            return
        lease.stop_reason = reason
        log.warning("run %s attempt %d: told to stop: %s", lease.run.run_id, lease.run.attempt, reason.value)
        if (context := self._contexts.get(lease)) is not None:
            context.stopping.set()
        # A task that is cancelled before its first step never runs a line; `_attempt` looks for itself then.
        if first and lease.started and lease.task is not None and self._threads is None:
            lease.task.cancel()

    async def _wind_down(self) -> None:
        """Let running handlers end, then make them; then let the outcomes out."""
        await self._shutdown.wait_for_idle(self._idle_now)
        for lease in list(self._contexts):
            self._stop(lease, StopReason.DRAINING)
        await self._idle_within(self._stop_grace_s)
        for context in self._contexts.values():
            log.error("%r does not stop; its lease will run out", context)
        await self._outcomes.idle()
        if self._threads is not None:
            self._threads.close()

    async def _idle_now(self) -> None:
        if self._contexts:
            await self._idle.wait()

    async def _idle_within(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle_now()
        except TimeoutError:
            pass


class _Ask(NamedTuple):
    """A poll and its repetitions."""

    request_id: UUID
    max_runs: int
    first_sent_at: float


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    """When the tasks have ended, cancelled unless they had before."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
