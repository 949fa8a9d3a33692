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
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

import uvloop

from bench.failed_calls import FailedCalls
from fencepost import FencepostClient, RunContext, Worker
from fencepostd.local import Local

SLOTS = 1_000


class Seen(NamedTuple):
    """lateness_ms: of each run, least first. failed: what the SDK was answered instead of a success, or within one."""

    lateness_ms: list[float]
    failed: list[str]


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


@contextmanager
def steady_worker(local: Local, queue: str) -> Iterator[SteadyWorker]:
    """Working meanwhile; drained at the end."""
    command = [sys.executable, "-m", "bench.steady_worker", local.url, local.token, queue, str(SLOTS)]
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

    async with FencepostClient(url, token, transport=FailedCalls(failed)) as client:
        worker = Worker(client, queue, handler, slots=slots)
        working = asyncio.create_task(worker.run())
        await tell()
        await worker.drain(30)
        await working


if __name__ == "__main__":
    url, token, queue, slots = sys.argv[1:]
    uvloop.run(work(url, token, queue, int(slots)))
