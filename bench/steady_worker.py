"""One worker process that executes no-op runs of a queue until its input ends, and tells how late they were.

    python -m bench.steady_worker URL TOKEN QUEUE SLOTS

For each line on standard input it prints one JSON line of what has been since the last one: {"lateness_ms": [...],
"failed": [...]}, of the runs that have started, and of the calls that failed.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

import uvloop

from bench.cluster import say
from bench.compare import Figures
from bench.failed_calls import FailedCalls
from fencepost import FencepostClient, RunContext, Worker
from fencepostd.local import Local

SLOTS = 1_000


class Seen(NamedTuple):
    """lateness_ms: of each run, least first. failed: what the SDK was answered instead of a success, or within one."""

    lateness_ms: list[float]
    failed: list[str]

    def figures(self, when: str, seconds: float) -> Figures:
        """Of what was seen in so many seconds; what failed is told, too."""
        for failure in self.failed:
            say(f"{when}: {failure}")
        late = self.lateness_ms or [float("nan")]
        return {
            f"{when}: seconds, s": seconds,
            f"{when}: started, runs/s": len(self.lateness_ms) / seconds,
            **{
                f"{when}: lateness {name}, ms": late[int(at * (len(late) - 1))]
                for name, at in (("min", 0.0), ("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            },
            f"{when}: failed, calls": float(len(self.failed)),
        }


def together(parts: Iterable[Seen]) -> Seen:
    """What was seen one after the other."""
    parts = list(parts)
    return Seen(
        sorted(ms for part in parts for ms in part.lateness_ms), [each for part in parts for each in part.failed]
    )


class SteadyWorker:
    """The process, as seen from the benchmark."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._ask, self._answer, self.pid = process.stdin, process.stdout, process.pid

    def lateness_ms(self) -> list[float]:
        """Of the runs that have started since the last look, least first."""
        return self.look().lateness_ms

    def look(self) -> Seen:
        """What has been since the last look."""
        print(file=self._ask, flush=True)
        told = json.loads(self._answer.readline())
        return Seen(sorted(told["lateness_ms"]), told["failed"])

    def watch(self, when: str, until: float, since: float | None = None) -> Figures:
        """What is seen until an instant of the monotonic clock; since: of the last look, now unless told."""
        since = since or time.monotonic()
        time.sleep(max(0.0, until - time.monotonic()))
        seen, now = self.look(), time.monotonic()
        return seen.figures(when, now - since)


@contextmanager
def steady_worker(local: Local, queue: str, url: str | None = None) -> Iterator[SteadyWorker]:
    """Working meanwhile; drained at the end. url: the API's, unless it is the local one."""
    command = [sys.executable, "-m", "bench.steady_worker", url or local.url, local.token, queue, str(SLOTS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield SteadyWorker(process)  # leaving closes its input


async def work(url: str, token: str, queue: str, slots: int) -> None:
    lateness_ms: list[float] = []
    failed: list[str] = []

    async def handler(run: RunContext) -> None:
        lateness_ms.append((datetime.now(UTC) - run.due_at).total_seconds() * 1000)

    async def tell() -> None:
        while await asyncio.to_thread(sys.stdin.readline):
            told = json.dumps({"lateness_ms": lateness_ms, "failed": failed})
            lateness_ms.clear()
            failed.clear()
            print(told, flush=True)

    async with FencepostClient(url, token, transport=FailedCalls(failed.append)) as client:
        worker = Worker(client, queue, handler, slots=slots)
        working = asyncio.create_task(worker.run())
        await tell()
        await worker.drain(30)
        await working


if __name__ == "__main__":
    url, token, queue, slots = sys.argv[1:]
    uvloop.run(work(url, token, queue, int(slots)))
