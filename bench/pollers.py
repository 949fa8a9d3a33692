"""Pollers of one queue in a process of its own, who lease and complete until its input ends, and tell what they saw.

    python -m bench.pollers URL TOKEN QUEUE POLLERS MAX

For each line on standard input it prints one JSON line of what has been since the last one: {"lateness_ms": [...],
"others": 12}, of the runs whose payload is MARK, from due to the lease's answer, and how many others were leased.
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

import msgspec
import uvloop

from bench.http_load import answer, connection, wire
from fencepostd.local import Local

MARK = "on time"
WAIT_S = 5.0


class Run(msgspec.Struct, rename="camel"):
    run_id: str
    lease_token: int
    due_at: datetime
    payload: object = None


class Leased(msgspec.Struct):
    runs: list[Run]


class Seen(NamedTuple):
    """lateness_ms: of each run with the mark, least first. others: how many runs without it were leased."""

    lateness_ms: list[float]
    others: int


class Pollers:
    """The process, as seen from the benchmark."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._ask, self._answer = process.stdin, process.stdout

    def look(self) -> Seen:
        """What has been since the last look."""
        print(file=self._ask, flush=True)
        told = json.loads(self._answer.readline())
        return Seen(sorted(told["lateness_ms"]), told["others"])


@contextmanager
def pollers(local: Local, token: str, queue: str, count: int, most: int) -> Iterator[Pollers]:
    """So many at work meanwhile, each with up to `most` runs at a time."""
    command = [sys.executable, "-m", "bench.pollers", local.url, token, queue, str(count), str(most)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Pollers(process)  # leaving closes its input


async def poll(url: str, token: str, queue: str, count: int, most: int) -> None:
    lateness_ms: list[float] = []
    others = 0
    over = asyncio.Event()
    ask = wire(token, f"/v1/queues/{queue}/lease", {"workerId": "poller", "max": most, "waitSeconds": WAIT_S})

    async def poller() -> None:
        nonlocal others
        async with connection(url) as (reader, writer):
            while not over.is_set():
                status, body = await answer(reader, writer, ask)
                if status != 200:
                    await asyncio.sleep(1)
                    continue
                now, runs = datetime.now(UTC), msgspec.json.decode(body, type=Leased).runs
                marked = [(now - run.due_at).total_seconds() * 1000 for run in runs if run.payload == MARK]
                lateness_ms.extend(marked)
                others += len(runs) - len(marked)
                if runs:
                    done = [{"runId": run.run_id, "leaseToken": run.lease_token} for run in runs]
                    await answer(reader, writer, wire(token, "/v1/runs/complete", {"runs": done}))

    async def tell() -> None:
        nonlocal others
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps({"lateness_ms": lateness_ms, "others": others}), flush=True)
            lateness_ms.clear()
            others = 0
        over.set()

    await asyncio.gather(tell(), *(poller() for _ in range(count)))


if __name__ == "__main__":
    url, token, queue, count, most = sys.argv[1:]
    uvloop.run(poll(url, token, queue, int(count), int(most)))
