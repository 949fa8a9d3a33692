"""A worker process whose runs last as long as its input does: how many of their leases are good at the end?

    python -m bench.lasting_worker URL TOKEN QUEUE COUNT

It prints a line once it has so many runs in hand. When its input ends its handlers end too, and it prints as JSON
{"kept": N, "failed": [...]}: the runs that were completed in their first attempt, and the calls that failed.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import uvloop

from bench.cluster import say
from bench.compare import Figures
from bench.failed_calls import FailedCalls
from fencepost import CommandProducer, FencepostClient, JobSpec, RunContext, Worker, at
from fencepostd.local import LOCAL_TENANT, Local

QUEUE = "lasting"
VISIBILITY_S = 5.0


class LastingRuns:
    """The process, as seen from the benchmark."""

    def __init__(self, process: subprocess.Popen[str], count: int) -> None:
        self._process, self._count = process, count

    def end(self) -> Figures:
        """Let them end: how many leases have lasted, and how many calls have failed."""
        told, _ = self._process.communicate()
        ended = json.loads(told)
        for failure in ended["failed"]:
            say(f"lasting runs: {failure}")
        return {
            "lasting: leases, runs": float(self._count),
            "lasting: kept, runs": float(ended["kept"]),
            "lasting: failed, calls": float(len(ended["failed"])),
        }


@contextmanager
def lasting_runs(local: Local, count: int, url: str) -> Iterator[LastingRuns]:
    """So many runs, which are executed from now on until they are told to end."""
    with CommandProducer(local.stack.bootstrap, tenant=LOCAL_TENANT) as producer:
        for _ in range(count):
            producer.create_job(JobSpec(queue=QUEUE, schedule=at(datetime.now(UTC))))
    command = [sys.executable, "-m", "bench.lasting_worker", url, local.token, QUEUE, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield LastingRuns(process, count)


async def work(url: str, token: str, queue: str, count: int) -> None:
    failed: list[str] = []
    retried = held = 0
    all_held, over = asyncio.Event(), asyncio.Event()

    async def handler(run: RunContext) -> None:
        nonlocal held, retried
        held, retried = held + 1, retried + (run.attempt > 1)
        if held == count:
            all_held.set()
        await over.wait()

    async with FencepostClient(url, token, transport=FailedCalls(failed.append)) as client:
        worker = Worker(client, queue, handler, slots=count, visibility_s=VISIBILITY_S)
        working = asyncio.create_task(worker.run())
        await all_held.wait()
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        over.set()
        await worker.drain(30)
        await working
    print(json.dumps({"kept": worker.stats.completed - retried, "failed": failed}), flush=True)


if __name__ == "__main__":
    url, token, queue, count = sys.argv[1:]
    uvloop.run(work(url, token, queue, int(count)))
