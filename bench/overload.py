"""More calls than an API process takes on, of each class in turn: what is shed, and how late runs start meanwhile.

    python -m bench.overload [--reads 256] [--creates 1024] [--outcomes 2048] [--leases 4096] [--seconds 10] [--pause 1]

A crowd calls over so many connections, each with one call after the other. Who is shed comes again after the pause, as
a client that heeds Retry-After does; with --pause 0 at once. Beside the crowd one caller of each other class calls ten
times a second, and a worker of the SDK executes one-offs that are due evenly over the time: how late their handlers
start is what no crowd may spoil. The first column is all of that without one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import NamedTuple
from uuid import uuid4

import msgspec
import uvloop

from bench.benchmark import Benchmark, Stage
from bench.compare import OURS, Contender, Figures, Lateness
from bench.drain import fill
from bench.enqueue import FAR
from bench.heartbeats import VISIBILITY_S, Lease, leased
from bench.http_load import answer, call, connection, wire
from bench.lateness import figures_of, schedule, worked
from fencepostd.local import Local

CLASSES = ("reads", "creates", "outcomes", "leases")  # in the order in which they are shed
CONNECTING_AT_ONCE = 100
PROBE_EVERY_S = 0.1
HELD = 100  # leases that the outcomes are heartbeats of
SMALL_STOCK = 1_000  # for one caller
SHED = b"too much is under way"  # in the answer of api/budgets.py
AT_ONCE = 500


class Size(NamedTuple):
    """reads … leases: the crowd of each class, four times what may be in hand.

    pause: how many seconds a caller who was shed stays away. rate: one-offs a second.
    stock: runs for the crowd to lease. notice: as of bench.lateness.
    """

    reads: int = 256
    creates: int = 1_024
    outcomes: int = 2_048
    leases: int = 4_096
    seconds: float = 10.0
    pause: float = 1.0
    rate: float = 50.0
    stock: int = 20_000
    notice: float = 6.0


class Leased(msgspec.Struct):
    """Of a lease call's answer, what is needed to complete its runs."""

    runs: list[Lease]


@dataclass
class Tally:
    """What calls came to. ms: of each that was served, how long it took."""

    calls: int = 0
    shed: int = 0
    ms: list[float] = field(default_factory=list)

    def note(self, status: int, body: bytes, ms: float) -> None:
        self.calls += 1
        if 200 <= status < 300:
            self.ms.append(ms)
        elif SHED in body:
            self.shed += 1

    def figures(self, name: str, seconds: float) -> Figures:
        ms = sorted(self.ms) or [float("inf")]
        return {
            f"{name} offered, calls/s": self.calls / seconds,
            f"{name} served, calls/s": len(self.ms) / seconds,
            f"{name} shed, %": 100 * self.shed / max(1, self.calls),
            f"{name} served p50, ms": ms[len(ms) // 2],
            f"{name} served p99, ms": ms[int(0.99 * len(ms))],
        }


def contenders(stage: Stage, size: Size) -> dict[str, Contender]:
    crowds: dict[str, Contender] = {
        f"{crowd} overrun": lambda crowd=crowd: beside(stage.local, size, crowd)  # type: ignore[misc]
        for crowd in CLASSES
    }
    return {OURS: lambda: beside(stage.local, size, None), **crowds}


def beside(local: Local, size: Size, crowd: str | None) -> Figures:
    """What one-offs and calls of all classes come to beside a crowd of one class, or none."""
    queue = f"overload-{uuid4().hex[:8]}"
    stock, runs = f"{queue}-stock", max(1, int(size.rate * size.seconds))
    fill(local, stock, size.stock if crowd == "leases" else SMALL_STOCK)
    held = leased(local, f"{queue}-held", HELD)
    schedule(local, queue, runs, size.seconds, size.notice)
    late, tallies, more = uvloop.run(called(local, size, crowd, requests_of(local, stock, held), queue, runs))
    complete(local, held + more)
    while more := leased_at_once(local, stock):  # what is due would be beside what is measured next
        complete(local, more)
    figures = figures_of("lateness", Lateness(runs, late))
    for kind, tally in tallies.items():
        figures |= tally.figures(kind, size.notice + size.seconds)
    return figures


def requests_of(local: Local, stock: str, held: Sequence[Lease]) -> Mapping[str, Iterator[bytes]]:
    """What is asked for, without end: jobs and pages of schedules; new jobs; heartbeats; a run each."""
    token, job = local.token, {"queue": "created", "schedule": {"runAt": FAR.isoformat()}}
    known = call(local.url, token, "/v1/jobs", job)["jobId"]
    beats = [(each, {"leaseToken": each.lease_token, "visibilitySeconds": VISIBILITY_S}) for each in held]
    return {
        "reads": cycle([wire(token, path, method="GET") for path in (f"/v1/jobs/{known}", "/v1/schedules?limit=1000")]),
        "creates": (wire(token, "/v1/jobs", job, f"idempotency-key: {uuid4().hex}\r\n") for _ in count()),
        "outcomes": cycle([wire(token, f"/v1/runs/{each.run_id}/heartbeat", beat) for each, beat in beats]),
        "leases": cycle([wire(token, f"/v1/queues/{stock}/lease", {"workerId": "crowd", "max": 1})]),
    }


async def called(
    local: Local, size: Size, crowd: str | None, requests: Mapping[str, Iterator[bytes]], queue: str, runs: int
) -> tuple[list[float], dict[str, Tally], list[Lease]]:
    """The lateness of each one-off, what calls came to, by class, and what they have leased."""
    until, turns = time.monotonic() + size.notice + size.seconds, asyncio.Semaphore(CONNECTING_AT_ONCE)
    tallies, held = {kind: Tally() for kind in CLASSES}, list[Lease]()

    async def caller(kind: str, every_s: float) -> None:
        async with AsyncExitStack() as stack:
            async with turns:
                reader, writer = await stack.enter_async_context(connection(local.url))
            while (began := time.monotonic()) < until:
                status, body = await answer(reader, writer, next(requests[kind]))
                tallies[kind].note(status, body, (time.monotonic() - began) * 1000)
                if kind == "leases" and status == 200:
                    held.extend(msgspec.json.decode(body, type=Leased).runs)
                await asyncio.sleep(size.pause if status == 503 else every_s)

    work = asyncio.create_task(asyncio.to_thread(worked, local, queue, runs, size.notice + size.seconds))
    few = [caller(kind, PROBE_EVERY_S) for kind in CLASSES if kind != crowd]
    many = [caller(crowd, 0.0) for _ in range(getattr(size, crowd))] if crowd else []
    await asyncio.gather(*few, *many)
    return await work, tallies, held


def leased_at_once(local: Local, queue: str) -> list[Lease]:
    body = {"workerId": "crowd", "max": AT_ONCE}
    return msgspec.convert(call(local.url, local.token, f"/v1/queues/{queue}/lease", body)["runs"], list[Lease])


def complete(local: Local, held: Sequence[Lease]) -> None:
    for start in range(0, len(held), AT_ONCE):
        runs = [{"runId": each.run_id, "leaseToken": each.lease_token} for each in held[start : start + AT_ONCE]]
        call(local.url, local.token, "/v1/runs/complete", {"runs": runs})


BENCH = Benchmark("overload", "More calls than the API takes on, of each class in turn.", Size(), contenders, rounds=1)

if __name__ == "__main__":
    BENCH.main()
