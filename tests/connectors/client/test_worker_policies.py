"""What a worker does with the policies of a run: snoozes, notes on progress, the end of an attempt's time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fencepost import RunContext, Snooze, StopReason
from tests.connectors.client.lease_server import LeaseServer, ServedRun
from tests.connectors.client.worker_bench import Bench, eventually

VISIBILITY_S = 1.5


def only(server: LeaseServer) -> ServedRun:
    [run] = server.runs.values()
    return run


@pytest.mark.parametrize("blocking", [False, True])
async def test_snooze_gives_the_run_back_until_later_and_charges_no_attempt(bench: Bench, blocking: bool) -> None:
    bench.server.add(None)
    seen: list[int] = []

    def twice(ctx: RunContext) -> str:
        seen.append(ctx.attempt)
        if len(seen) == 1:
            raise Snooze(60)
        return "done"

    async def twice_async(ctx: RunContext) -> str:
        return twice(ctx)

    async with bench.working(twice if blocking else twice_async) as worker:
        await bench.server.until(lambda: only(bench.server).due_at > bench.server.clock() + 50)
        assert only(bench.server).state == "pending"
        only(bench.server).due_at = 0
        await bench.server.tell()
        await bench.server.until(lambda: only(bench.server).state == "completed")
    assert (seen, only(bench.server).errors, only(bench.server).result) == ([1, 1], [], "done")
    await eventually(lambda: worker.stats.completed)
    assert (worker.stats.snoozed, worker.stats.failed, worker.stats.completed) == (1, 0, 1)


@pytest.mark.parametrize("seconds", [-1, float("nan"), 367 * 86_400])
def test_snooze_takes_no_time_that_the_server_would_not_have(seconds: float) -> None:
    with pytest.raises(ValueError, match="snoozed for 0 to"):
        Snooze(seconds)


async def test_the_latest_note_goes_with_the_next_heartbeat_and_only_once(bench: Bench) -> None:
    bench.server.add(None)
    enough = asyncio.Event()

    async def report(ctx: RunContext) -> None:
        ctx.progress("10 of 20")
        ctx.progress("12 of 20 \udcff" + "x" * 2000)
        await enough.wait()

    def beats() -> int:
        return sum(verb == "heartbeat" for verb, _ in bench.server.calls)

    async with bench.working(report, visibility_s=VISIBILITY_S):
        await bench.server.until(lambda: beats() >= 2)
        enough.set()
    [note] = only(bench.server).notes
    assert note.startswith("12 of 20 ?xxx")
    assert len(note) == 1000


async def test_a_note_whose_heartbeat_got_no_answer_goes_with_the_next(bench: Bench) -> None:
    bench.server.add(None)
    bench.wire.lose_answers("/heartbeat", times=1)
    enough = asyncio.Event()

    async def report(ctx: RunContext) -> None:
        ctx.progress("half")
        await enough.wait()

    async with bench.working(report, visibility_s=VISIBILITY_S):
        await bench.server.until(lambda: len(only(bench.server).notes) == 2)
        enough.set()
    assert only(bench.server).notes == ["half", "half"]


@pytest.mark.parametrize("blocking", [False, True])
async def test_an_attempt_that_takes_too_long_is_stopped_before_its_lease_ends_and_not_reported(
    bench: Bench, blocking: bool
) -> None:
    """Heartbeats go through all the while; the attempt's own end is what stops it."""
    [run_id] = bench.server.add(None)
    bench.server.runs[run_id].timeout_s = 1.2
    stopped: list[Any] = []

    def wait_in_thread(ctx: RunContext) -> None:
        ctx.stopping.wait(30)
        stopped.append((ctx.stop_reason, bench.server.runs[run_id].attempt_ends_at - bench.server.clock()))

    async def wait(ctx: RunContext) -> None:
        await asyncio.to_thread(wait_in_thread, ctx)

    handler = wait_in_thread if blocking else wait
    async with bench.working(handler, visibility_s=VISIBILITY_S, worker_id="w") as worker:
        await eventually(lambda: stopped)
        await eventually(lambda: worker.stats.abandoned)
    [(reason, left_s)] = stopped[:1]
    assert reason is StopReason.TIMED_OUT
    assert left_s > 0
    assert only(bench.server).errors == []


async def test_a_cancelled_lease_is_trusted_only_as_long_as_the_server_lets_it_last(bench: Bench) -> None:
    """Once a run is to be cancelled its lease is not extended, so a handler that goes on must not be reported."""
    bench.server.add(None)
    release = threading.Event()

    def ignore(_: RunContext) -> str:
        release.wait(30)
        return "too late"

    async with bench.working(ignore, visibility_s=VISIBILITY_S) as worker:
        await bench.server.until(lambda: only(bench.server).state == "leased")
        only(bench.server).cancel = True
        await eventually(lambda: only(bench.server).expires_at < bench.server.clock())
        release.set()
        await eventually(lambda: worker.stats.abandoned)
    assert (only(bench.server).errors, only(bench.server).result) == ([], None)
