"""What a worker does with runs, handlers and their outcomes."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from fencepost import (
    FencepostClient,
    PermanentFailure,
    RetryLater,
    RunContext,
    Unauthorized,
    Worker,
)
from tests.connectors.client.lease_server import LeaseServer
from tests.connectors.client.wire import json_answer
from tests.connectors.client.worker_bench import Bench


def completed(server: LeaseServer) -> bool:
    return all(run.state == "completed" for run in server.runs.values())


async def test_worker_completes_every_run_with_what_its_handler_returned(bench: Bench) -> None:
    bench.server.add(*range(25))

    async def double(ctx: RunContext) -> dict[str, int]:
        return {"doubled": ctx.payload * 2}

    async with bench.working(double, slots=4) as worker:
        await bench.server.until(lambda: completed(bench.server))
    assert [run.result["doubled"] for run in bench.server.runs.values()] == [2 * n for n in range(25)]
    assert (worker.stats.leased, worker.stats.completed) == (25, 25)


async def test_handler_sees_the_run_it_executes(bench: Bench) -> None:
    [run_id] = bench.server.add({"to": "ops"})
    seen: list[Any] = []

    async def look(ctx: RunContext) -> None:
        seen.extend([ctx.run_id, ctx.payload, ctx.attempt, ctx.lease_token, ctx.idempotency_key])
        seen.append(0 < ctx.remaining_s() <= 25)

    async with bench.working(look):
        await bench.server.until(lambda: completed(bench.server))
    assert seen == [run_id, {"to": "ops"}, 1, 1, str(run_id), True]


@pytest.mark.parametrize("blocking", [False, True])
async def test_exception_of_a_handler_fails_the_attempt_and_the_next_one_may_complete(
    bench: Bench, blocking: bool
) -> None:
    [run_id] = bench.server.add(None)

    def flaky(ctx: RunContext) -> int:
        if ctx.attempt == 1:
            raise ZeroDivisionError("by zero")
        return ctx.attempt

    async def flaky_async(ctx: RunContext) -> int:
        return flaky(ctx)

    async with bench.working(flaky if blocking else flaky_async):
        await bench.server.until(lambda: completed(bench.server))
    assert bench.server.runs[run_id].errors == ["ZeroDivisionError: by zero"]
    assert bench.server.runs[run_id].result == 2


async def test_permanent_failure_buries_the_run_at_its_first_attempt(bench: Bench) -> None:
    [run_id] = bench.server.add(None)

    async def refuse(_: RunContext) -> None:
        raise PermanentFailure("no such customer")

    async with bench.working(refuse):
        await bench.server.until(lambda: bench.server.states() == ["dead"])
    assert (bench.server.runs[run_id].errors, bench.server.runs[run_id].attempt) == (["no such customer"], 1)


async def test_retry_later_says_when_the_next_attempt_comes(bench: Bench) -> None:
    [run_id] = bench.server.add(None)

    async def wait(_: RunContext) -> None:
        raise RetryLater(90, "rate limit")

    async with bench.working(wait):
        await bench.server.until(lambda: bench.server.runs[run_id].errors == ["rate limit"])
    assert bench.server.runs[run_id].retry_after_s == 90


async def test_reason_that_is_too_long_for_the_server_ends_early_and_says_so(bench: Bench) -> None:
    [run_id] = bench.server.add(None)

    async def wordy(_: RunContext) -> None:
        raise PermanentFailure("x" * 5_000_000)

    async with bench.working(wordy):
        await bench.server.until(lambda: bench.server.runs[run_id].state == "dead")
    [error] = bench.server.runs[run_id].errors
    assert (len(error), error[-24:]) == (4_000, "… (5,000,000 characters)")


DEEP = json.loads("[" * 129 + "]" * 129)


@pytest.mark.parametrize(
    ("result", "reason"), [(object(), "no JSON"), ("x" * 70_000, "more than 65536"), (DEEP, "deeper than 128 levels")]
)
async def test_result_that_the_server_would_refuse_fails_the_run_for_good(
    bench: Bench, result: object, reason: str
) -> None:
    [run_id] = bench.server.add(None)

    async def wrong(_: RunContext) -> object:
        return result

    async with bench.working(wrong):
        await bench.server.until(lambda: bench.server.states() == ["dead"])
    assert reason in bench.server.runs[run_id].errors[0]


async def test_worker_never_runs_or_asks_for_more_than_it_has_slots(bench: Bench) -> None:
    bench.server.add(*range(40))
    running, most = 0, 0

    async def count(_: RunContext) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    async with bench.working(count, slots=3):
        await bench.server.until(lambda: completed(bench.server))
    assert most == 3
    assert max(ask["max"] for ask in bench.server.asks) == 3


async def test_handlers_begin_before_the_next_poll_is_made(bench: Bench) -> None:
    bench.server.add(*range(3))
    polls: list[int] = []

    async def look(_: RunContext) -> None:
        polls.append(len(bench.server.asks))

    async with bench.working(look, slots=100):
        await bench.server.until(lambda: completed(bench.server))
    assert polls == [1, 1, 1]


async def test_worker_with_full_slots_does_not_poll(bench: Bench) -> None:
    bench.server.add(1, 2, 3)
    release = asyncio.Event()

    async def hold(_: RunContext) -> None:
        await release.wait()

    async with bench.working(hold, slots=2):
        await bench.server.until(lambda: bench.server.states().count("leased") == 2)
        await asyncio.sleep(0.05)  # time enough for a poll that must not come
        assert len(bench.server.asks) == 1
        release.set()
        await bench.server.until(lambda: completed(bench.server))


async def test_poll_whose_answer_was_lost_is_repeated_and_leases_nothing_twice(bench: Bench) -> None:
    run_ids = bench.server.add(*range(5))
    bench.wire.lose_answers("/lease", times=2)

    async def nothing(_: RunContext) -> None: ...

    async with bench.working(nothing, slots=5):
        await bench.server.until(lambda: completed(bench.server))
    first, second, third = (ask["requestId"] for ask in bench.server.asks[:3])
    assert first == second == third
    assert [bench.server.runs[run_id].attempt for run_id in run_ids] == [1] * 5


async def test_outcome_whose_answer_was_lost_is_repeated_and_counted_once(bench: Bench) -> None:
    bench.server.add(*range(5))
    bench.wire.lose_answers("/complete", times=2)

    async def nothing(_: RunContext) -> None: ...

    async with bench.working(nothing) as worker:
        await bench.server.until(lambda: len(bench.server.calls) >= 3)
    assert (worker.stats.completed, worker.stats.conflicts) == (5, 0)


async def test_outcomes_travel_together_while_a_call_is_under_way(bench: Bench) -> None:
    bench.server.add(*range(1500))

    async def nothing(_: RunContext) -> None: ...

    async with bench.working(nothing, slots=1000):
        await bench.server.until(lambda: completed(bench.server))
    assert [size for verb, size in bench.server.calls if verb == "complete"] == [1000, 500]


async def test_conflict_is_counted_and_does_not_disturb_the_others(bench: Bench) -> None:
    stolen, _ = bench.server.add("stolen", "ours")

    async def lose_one(ctx: RunContext) -> None:
        if ctx.payload == "stolen":
            bench.server.runs[stolen].lease_token += 1  # another worker's attempt

    async with bench.working(lose_one) as worker:
        await bench.server.until(lambda: "completed" in bench.server.states())
    assert (worker.stats.completed, worker.stats.conflicts) == (1, 1)


async def test_outcome_that_the_server_will_not_have_does_not_hold_up_the_others(bench: Bench) -> None:
    run_ids = bench.server.add(*range(64))
    bad = str(run_ids[37])
    bench.server.poison = lambda item: item["runId"] == bad

    async def nothing(_: RunContext) -> None: ...

    async with bench.working(nothing, slots=64) as worker:
        await bench.server.until(lambda: bench.server.states().count("completed") == 63)
    assert (worker.stats.completed, worker.stats.refused) == (63, 1)


async def test_worker_goes_on_when_the_server_was_away(bench: Bench) -> None:
    bench.server.add(*range(3))
    away = 3

    async def fault(request: httpx.Request, pass_on: Any) -> httpx.Response:
        nonlocal away
        away -= 1
        if away == 2:
            raise httpx.ConnectError("refused", request=request)
        if away >= 0:
            return json_answer(503, {"detail": "the ledger is away"}, {"Retry-After": "0"})
        response: httpx.Response = await pass_on()
        return response

    bench.wire.fault = fault

    async def nothing(_: RunContext) -> None: ...

    async with bench.working(nothing):
        await bench.server.until(lambda: completed(bench.server))


async def test_refused_token_ends_the_worker_with_the_reason(bench: Bench) -> None:
    async def refuse(_: httpx.Request, __: Any) -> httpx.Response:
        return json_answer(401, {"title": "Unauthorized", "status": 401, "detail": "the token was revoked"})

    bench.wire.fault = refuse

    async def nothing(_: RunContext) -> None: ...

    async with FencepostClient("http://server.test", "fp_test", transport=bench.wire) as client:
        with pytest.raises(Unauthorized, match="revoked"):
            await Worker(client, "q", nothing).run()


async def test_blocking_handlers_run_side_by_side_in_threads(bench: Bench) -> None:
    bench.server.add(*range(4))
    together = threading.Barrier(4, timeout=10)

    def meet(_: RunContext) -> str:
        together.wait()
        return threading.current_thread().name

    async with bench.working(meet, slots=4):
        await bench.server.until(lambda: completed(bench.server))
    assert len({run.result for run in bench.server.runs.values()}) == 4


async def test_object_with_an_async_call_is_an_async_handler(bench: Bench) -> None:
    bench.server.add(None)

    class Greeter:
        async def __call__(self, _: RunContext) -> str:
            return threading.current_thread().name

    async with bench.working(Greeter()):
        await bench.server.until(lambda: completed(bench.server))
    assert [run.result for run in bench.server.runs.values()] == [threading.main_thread().name]


async def test_handler_that_calls_exit_fails_its_run_and_not_the_worker(bench: Bench) -> None:
    bench.server.add("exit", "work")

    def script(ctx: RunContext) -> None:
        if ctx.payload == "exit":
            raise SystemExit(3)

    async with bench.working(script, slots=1):
        await bench.server.until(lambda: "completed" in bench.server.states())
    errors = [error for run in bench.server.runs.values() for error in run.errors]
    assert "SystemExit: 3" in errors


async def test_outcome_of_which_the_server_does_not_know_yet_is_sent_again(bench: Bench) -> None:
    run_ids = bench.server.add(*range(3))
    bench.server.undecided = {str(run_ids[1])}

    async def nothing(_: RunContext) -> None: ...

    async with bench.working(nothing) as worker:
        await bench.server.until(lambda: completed(bench.server))
    assert [size for _, size in bench.server.calls] == [3, 1]
    assert (worker.stats.completed, worker.stats.conflicts) == (3, 0)


async def test_fault_of_the_server_in_a_poll_does_not_end_the_worker(bench: Bench) -> None:
    bench.server.add(None)
    faults = 2

    async def fault(_: httpx.Request, pass_on: Any) -> httpx.Response:
        nonlocal faults
        faults -= 1
        if faults >= 0:
            return json_answer(500, {"detail": "a bug"})
        response: httpx.Response = await pass_on()
        return response

    bench.wire.fault = fault

    async def nothing(_: RunContext) -> None: ...

    async with bench.working(nothing):
        await bench.server.until(lambda: completed(bench.server))


async def test_error_text_that_is_no_unicode_is_reported_all_the_same(bench: Bench) -> None:
    [run_id] = bench.server.add(None)

    async def fail(_: RunContext) -> None:
        raise PermanentFailure("file \udcff is missing")

    async with bench.working(fail):
        await bench.server.until(lambda: bench.server.states() == ["dead"])
    assert bench.server.runs[run_id].errors == ["file ? is missing"]


@pytest.mark.parametrize("seconds", [-1, float("nan"), 10**9])
def test_retry_that_no_server_would_keep_is_refused_where_it_is_raised(seconds: float) -> None:
    with pytest.raises(ValueError, match="the next attempt"):
        RetryLater(seconds)
