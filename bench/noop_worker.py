"""One worker process that executes no-op runs of a queue until it has completed so many, and tells what it saw.

    python -m bench.noop_worker URL TOKEN QUEUE COUNT SLOTS

Prints one JSON line: {"seconds": from the first handler's start to the last accepted outcome, "lateness_ms": [...]}.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import UTC, datetime

import uvloop

from fencepost import FencepostClient, RunContext, Worker


async def work(url: str, token: str, queue: str, count: int, slots: int) -> None:
    lateness_ms: list[float] = []
    first: list[float] = []
    all_started = asyncio.Event()

    async def handler(run: RunContext) -> None:
        if not first:
            first.append(time.monotonic())
        lateness_ms.append((datetime.now(UTC) - run.due_at).total_seconds() * 1000)
        if len(lateness_ms) == count:
            all_started.set()

    async with FencepostClient(url, token) as client:
        worker = Worker(client, queue, handler, slots=slots)
        working = asyncio.create_task(worker.run())
        await all_started.wait()
        await worker.drain(30)  # ends once every outcome was answered
        seconds = time.monotonic() - first[0]
        await working
    if worker.stats.completed != count:
        raise SystemExit(f"{worker.stats.completed} of {count} runs were completed")
    print(json.dumps({"seconds": seconds, "lateness_ms": lateness_ms}))


if __name__ == "__main__":
    url, token, queue, count, slots = sys.argv[1:]
    uvloop.run(work(url, token, queue, int(count), int(slots)))
