"""How a worker ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import httpx
import pytest

from fencepost import FencepostClient, RunContext, StopReason, SyncWorker, Worker
from fencepost.leases import elapsed_s
from tests.connectors.client.lease_server import LeaseServer
from tests.connectors.client.worker_bench import Bench


def leased(server: LeaseServer) -> bool:
    return "leased" in server.states()


async def test_drain_ends_the_poll_and_lets_running_handlers_finish(bench: Bench) -> None:
    bench.server.add(1, 2)
    finish = asyncio.Event()

    async def work(_: RunContext) -> None:
        await finish.wait()

    async with bench.working(work, slots=5) as worker:
        await bench.server.until(lambda: leased(bench.server))
        draining = asyncio.create_task(worker.drain(deadline_s=10))
        await asyncio.sleep(0)
        bench.server.add(3)  # comes too late for this worker
        await bench.server.tell()
        finish.set()
        await draining
    assert bench.server.states() == ["completed", "completed", "pending"]


async def test_handler_that_outlasts_the_deadline_is_stopped_and_its_attempt_fails_for_an_immediate_retry(
    bench: Bench,
) -> None:
    """Case shd-002 has the attempt not counted. Here it is, for the handler may have done half its work; and one that
    takes longer than every deadline would be started for ever, with each deployment, and never be a dead letter."""
    [run_id] = bench.server.add(None)
    reasons: list[Any] = []

    async def endless(ctx: RunContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(ctx.stop_reason)

    async with bench.working(endless) as worker:
        await bench.server.until(lambda: leased(bench.server))
        await worker.drain(deadline_s=0.05)
    run = bench.server.runs[run_id]
    assert reasons == [StopReason.DRAINING]
    assert (run.state, run.retry_after_s) == ("pending", 0)
    assert run.errors == ["the worker shut down before the handler had finished"]


async def test_thread_that_does_not_stop_keeps_its_lease_and_not_the_worker(bench: Bench) -> None:
    [run_id] = bench.server.add(None)
    release = threading.Event()

    async with bench.working(lambda _: release.wait(30), stop_grace_s=0.05) as worker:
        await bench.server.until(lambda: leased(bench.server))
        await worker.drain(deadline_s=0.05)
        assert bench.server.runs[run_id].state == "leased"
        assert bench.server.runs[run_id].errors == []
    release.set()


async def test_run_that_never_started_is_released_and_its_attempt_is_not_charged(bench: Bench) -> None:
    """The worker drains while it asks whether the leases of an old answer still hold."""
    [run_id] = bench.server.add(None)
    clock_skew_s = 0.0
    confirming, started = asyncio.Event(), False

    async def fault(request: httpx.Request, pass_on: Any) -> httpx.Response:
        nonlocal clock_skew_s
        if request.url.path.endswith("/heartbeat"):
            confirming.set()
            await asyncio.Event().wait()
        response: httpx.Response = await pass_on()
        clock_skew_s = 20.0
        return response

    async def note(_: RunContext) -> None:
        nonlocal started
        started = True

    bench.wire.fault = fault
    async with bench.working(note, clock=lambda: elapsed_s() + clock_skew_s) as worker:
        await confirming.wait()
        await worker.drain()
    assert not started
    assert (bench.server.runs[run_id].state, bench.server.runs[run_id].attempt) == ("pending", 0)
    assert worker.stats.released == 1


async def test_cancelled_run_stops_handlers_at_once_and_reports_them(bench: Bench) -> None:
    [run_id] = bench.server.add(None)
    started = asyncio.Event()

    async def endless(_: RunContext) -> None:
        started.set()
        await asyncio.sleep(60)

    async with FencepostClient("http://server.test", "fp_test", transport=bench.wire) as client:
        running = asyncio.create_task(Worker(client, "q", endless).run())
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert bench.server.runs[run_id].state == "pending"


async def test_sigterm_drains_and_a_second_one_stops_the_handlers(bench: Bench) -> None:
    [run_id] = bench.server.add(None)
    before = signal.getsignal(signal.SIGTERM)
    started, stopped_after_s = asyncio.Event(), 0.0

    async def endless(_: RunContext) -> None:
        started.set()
        await asyncio.sleep(60)

    async with FencepostClient("http://server.test", "fp_test", transport=bench.wire) as client:
        running = asyncio.create_task(Worker(client, "q", endless, drain_s=60).run())
        await started.wait()
        since = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        assert not running.done(), "the handler may go on for drain_s"
        os.kill(os.getpid(), signal.SIGTERM)
        await running
        stopped_after_s = time.monotonic() - since
    assert stopped_after_s < 30  # of the 60 that the handler would take
    assert bench.server.runs[run_id].errors == ["the worker shut down before the handler had finished"]
    assert signal.getsignal(signal.SIGTERM) is before


async def test_drain_waits_for_outcomes_that_the_server_does_not_take_yet(bench: Bench) -> None:
    bench.server.add(*range(3))
    bench.wire.cut("/complete")
    done = asyncio.Event()

    async def work(_: RunContext) -> None:
        done.set()

    async with bench.working(work) as worker:
        await done.wait()
        draining = asyncio.create_task(worker.drain(deadline_s=0))
        await asyncio.sleep(0.05)
        bench.wire.fault = None
        await draining
    assert bench.server.states() == ["completed"] * 3


async def test_drain_ends_when_outcomes_can_no_longer_be_reported(bench: Bench) -> None:
    bench.server.add(None)
    done = asyncio.Event()

    async def work(_: RunContext) -> None:
        done.set()

    async with bench.working(work, visibility_s=1) as worker:
        await done.wait()
        bench.wire.cut("")
        async with asyncio.timeout(30):
            await worker.drain(deadline_s=0)
    assert worker.stats.abandoned + worker.stats.completed == 1


async def test_sync_worker_works_in_the_background_of_a_blocking_program(bench: Bench) -> None:
    bench.server.add(*range(20))

    def blocking_program() -> int:
        with SyncWorker("http://server.test", "fp_test", "q", lambda ctx: ctx.payload, transport=bench.wire) as worker:
            while worker.stats.completed < 20:
                time.sleep(0.005)
            return worker.stats.completed

    assert await asyncio.to_thread(blocking_program) == 20
    assert sorted(run.result for run in bench.server.runs.values()) == list(range(20))
