"""How a worker keeps its leases, and lets go of them in time."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest

from fencepost import RunContext, StopReason
from fencepost.ids import new_id
from fencepost.leases import Lease, LeaseTerms, elapsed_s
from fencepost.models import LeasedRun
from tests.connectors.client.lease_server import EPOCH, LeaseServer
from tests.connectors.client.worker_bench import Bench, eventually

VISIBILITY_S = 1.0


class SkewedClock:
    """A clock that can jump, as it does for a process that was frozen."""

    def __init__(self) -> None:
        self.skew_s = 0.0

    def __call__(self) -> float:
        return elapsed_s() + self.skew_s


def only(server: LeaseServer) -> Any:
    [run] = server.runs.values()
    return run


@pytest.mark.parametrize(("visibility_s", "margin_s"), [(3600, 5), (30, 5), (15, 5), (6, 2), (1, 1 / 3)])
def test_handler_is_told_to_stop_well_before_the_lease_could_end(visibility_s: float, margin_s: float) -> None:
    terms = LeaseTerms(visibility_s)
    assert margin_s <= visibility_s - terms.stop_after_s <= margin_s + 0.11
    assert terms.beat_after_s + terms.tick_s == pytest.approx(visibility_s / 3)
    # Two heartbeats may be lost before the handler has to stop.
    assert terms.beat_after_s + terms.tick_s + terms.beat_timeout_s < terms.stop_after_s


@pytest.mark.parametrize("visibility_s", [0, 0.5, 3601, float("nan")])
def test_visibility_that_the_server_would_refuse_is_refused_at_once(visibility_s: float) -> None:
    with pytest.raises(ValueError, match="visibility_s"):
        LeaseTerms(visibility_s)


def test_outcome_may_be_reported_only_while_the_lease_is_surely_ours() -> None:
    terms = LeaseTerms(30)
    run = LeasedRun(
        run_id=new_id(),
        job_id=new_id(),
        attempt=1,
        lease_token=1,
        lease_expires_at=EPOCH,
        scheduled_for=EPOCH,
        due_at=EPOCH,
        queue="q",
    )
    lease = Lease(run, confirmed_at=100)
    assert lease.may_report(124.8, terms)
    assert not lease.may_report(125, terms)
    lease.stop_reason = StopReason.LEASE_LOST
    assert not lease.may_report(101, terms)


async def test_heartbeats_keep_a_run_that_takes_longer_than_its_visibility(bench: Bench) -> None:
    bench.server.add(*range(8))
    calls_until_the_end: list[int] = []  # of each handler; from the first one's on there are fewer runs to extend

    async def slow(_: RunContext) -> None:
        await asyncio.sleep(2.2 * VISIBILITY_S)
        calls_until_the_end.append(len(bench.server.calls))

    async with bench.working(slow, visibility_s=VISIBILITY_S) as worker:
        await bench.server.until(lambda: bench.server.states() == ["completed"] * 8)
    beats = [size for verb, size in bench.server.calls[: calls_until_the_end[0]] if verb == "heartbeat"]
    assert set(beats) == {8}, "the heartbeats of all runs travel together"
    assert len(beats) >= 4  # every third of the visibility, on a machine that may be late for it
    assert worker.stats.conflicts == worker.stats.abandoned == 0


async def test_blocking_handlers_that_burn_the_processor_do_not_starve_heartbeats(bench: Bench) -> None:
    bench.server.add(*range(4))

    def burn(_: RunContext) -> None:
        end = time.monotonic() + 2.2 * VISIBILITY_S
        while time.monotonic() < end:
            sum(range(1000))

    async with bench.working(burn, visibility_s=VISIBILITY_S, slots=4) as worker:
        await bench.server.until(lambda: bench.server.states() == ["completed"] * 4)
    assert worker.stats.completed == 4


@pytest.mark.parametrize("blocking", [False, True])
async def test_handler_is_stopped_in_time_when_heartbeats_do_not_get_through(bench: Bench, blocking: bool) -> None:
    bench.server.add(None)
    bench.wire.cut("/heartbeat")
    stopped: list[tuple[float, Any]] = []

    async def wait(ctx: RunContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append((only(bench.server).expires_at - time.monotonic(), ctx.stop_reason))

    def wait_in_thread(ctx: RunContext) -> None:
        ctx.stopping.wait(60)
        stopped.append((only(bench.server).expires_at - time.monotonic(), ctx.stop_reason))

    handler = wait_in_thread if blocking else wait
    async with bench.working(handler, visibility_s=VISIBILITY_S, slots=1) as worker:
        await eventually(lambda: worker.stats.abandoned)
    [(left_s, reason)] = stopped
    assert reason is StopReason.LEASE_ENDING
    assert left_s > 0
    assert only(bench.server).state == "leased", "nothing was reported of it"


async def test_silent_server_does_not_keep_a_handler_from_being_stopped(bench: Bench) -> None:
    bench.server.add(None)
    silence = asyncio.Event()

    async def fault(request: httpx.Request, pass_on: Any) -> httpx.Response:
        if request.url.path.endswith("/heartbeat"):
            await silence.wait()
        response: httpx.Response = await pass_on()
        return response

    bench.wire.fault = fault

    async def wait(_: RunContext) -> None:
        await asyncio.sleep(60)

    async with bench.working(wait, visibility_s=VISIBILITY_S) as worker:
        await eventually(lambda: worker.stats.abandoned)
        silence.set()


async def test_worker_that_was_frozen_past_its_lease_reports_nothing(bench: Bench) -> None:
    bench.server.add(None)
    clock = SkewedClock()

    async def freeze(_: RunContext) -> str:
        clock.skew_s += 60
        return "late"

    async with bench.working(freeze, clock=clock) as worker:
        await bench.server.until(lambda: bool(bench.server.states().count("leased")))
        await eventually(lambda: worker.stats.abandoned)
    assert [verb for verb, _ in bench.server.calls if verb != "heartbeat"] == []


async def test_frozen_worker_stops_its_handlers_when_it_wakes(bench: Bench) -> None:
    bench.server.add(None)
    clock = SkewedClock()
    reasons: list[Any] = []

    async def long(ctx: RunContext) -> None:
        clock.skew_s += 60
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(ctx.stop_reason)

    async with bench.working(long, visibility_s=VISIBILITY_S, clock=clock):
        await eventually(lambda: reasons)
        assert reasons == [StopReason.LEASE_ENDING]


@pytest.mark.parametrize("blocking", [False, True])
async def test_cancel_in_a_heartbeat_stops_the_handler_and_the_run_ends_as_cancelled(
    bench: Bench, blocking: bool
) -> None:
    bench.server.add(None)
    started = threading.Event()

    async def wait(_: RunContext) -> None:
        started.set()
        await asyncio.sleep(60)

    def wait_in_thread(ctx: RunContext) -> str:
        started.set()
        ctx.stopping.wait(60)
        return "what a stopped handler returns is no result"

    async with bench.working(wait_in_thread if blocking else wait, visibility_s=VISIBILITY_S) as worker:
        await asyncio.to_thread(started.wait, 20)
        only(bench.server).cancel = True
        await bench.server.until(lambda: bench.server.states() == ["cancelled"])
    assert only(bench.server).errors == ["the server cancelled the run"]
    assert (worker.stats.cancelled, worker.stats.failed, worker.stats.completed) == (1, 0, 0)


async def test_lost_lease_stops_the_handler_and_nothing_is_reported(bench: Bench) -> None:
    bench.server.add(None)
    reasons: list[Any] = []

    async def wait(ctx: RunContext) -> None:
        only(bench.server).lease_token += 1  # another worker's attempt
        try:
            await asyncio.sleep(60)
        finally:
            reasons.append(ctx.stop_reason)

    async with bench.working(wait, visibility_s=VISIBILITY_S) as worker:
        await eventually(lambda: worker.stats.abandoned)
    assert reasons == [StopReason.LEASE_LOST]
    assert {verb for verb, _ in bench.server.calls} == {"heartbeat"}


async def test_runs_of_an_old_answer_start_only_after_their_leases_were_confirmed(bench: Bench) -> None:
    """The answer is lost, and comes on repetition when most of the visibility has passed."""
    lost, kept = bench.server.add("lost", "kept")
    clock = SkewedClock()
    first = True

    async def fault(request: httpx.Request, pass_on: Any) -> httpx.Response:
        nonlocal first
        response: httpx.Response = await pass_on()
        if first and request.url.path.endswith("/lease"):
            first = False
            clock.skew_s += 20
            raise httpx.ReadError("the answer was lost", request=request)
        if request.url.path.endswith("/lease"):
            bench.server.runs[lost].lease_token += 1  # goes to another worker just now
        return response

    bench.wire.fault = fault
    executed: list[Any] = []

    async def note(ctx: RunContext) -> None:
        executed.append(ctx.payload)

    async with bench.working(note, clock=clock, slots=2) as worker:
        await bench.server.until(lambda: bench.server.runs[kept].state == "completed")
    assert executed == ["kept"]
    assert worker.stats.abandoned == 1


async def test_a_run_that_comes_after_a_long_wait_starts_at_once(bench: Bench) -> None:
    """The poll was sent longer ago than the lease lasts; that the server waited for it is no part of the lease."""
    clock = bench.server.clock = SkewedClock()

    async def work(_: RunContext) -> None:
        assert bench.server.calls == []  # no heartbeat had to confirm the lease

    async with bench.working(work, clock=clock):
        await eventually(lambda: bench.server.asks)
        clock.skew_s += 40
        bench.server.add(None)
        await bench.server.tell()
        await bench.server.until(lambda: bench.server.states() == ["completed"])
    assert bench.server.asks[0]["waitSeconds"] > 40 > bench.server.asks[0]["visibilitySeconds"]


async def test_event_loop_that_stood_still_is_warned_about(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.server.add(None)

    async def block(_: RunContext) -> None:
        await asyncio.sleep(0.05)  # until the heartbeat loop sleeps
        time.sleep(0.4)  # noqa: ASYNC251 - what the warning is about

    async with bench.working(block, visibility_s=VISIBILITY_S):
        await bench.server.until(lambda: bench.server.states() == ["completed"])
    assert "the event loop stood still" in caplog.text
