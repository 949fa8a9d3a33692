"""The commands that every peer's script has, and what its worker tells; runs in the peer's own environment.

    SCRIPT setup STORE                               make the tables
    SCRIPT enqueue STORE JOBS bulk|single AT SPREAD  create jobs; prints {"seconds"}
    SCRIPT work STORE JOBS LIMIT                     run them; prints {"seconds", "lateness_ms": [...]}

AT is when the first is due, in seconds since 1970, 0 for now; SPREAD the seconds to the last. A worker ends once it
has started JOBS jobs and none of them is left, or after LIMIT seconds; with 0 jobs it goes on until it is killed. Its
seconds run from the first handler's start, its lateness is from due to the handler's start. It ends without a
farewell: how long a peer takes to shut down is not what is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

LOOK_EVERY_S = 0.02
BATCH = 1_000

Started = Callable[[float], None]


class Script(ABC):
    """A peer's client and worker. Due times are seconds since 1970; None is now."""

    def __init__(self, store: str) -> None:
        self.store = store

    @abstractmethod
    async def setup(self) -> None:
        """Make the tables."""

    @abstractmethod
    async def add(self, dues: list[float | None]) -> None:
        """Create jobs, as many at once as the peer takes; at most BATCH are given."""

    @abstractmethod
    async def add_one(self, due: float | None) -> None:
        """Create a job."""

    @abstractmethod
    async def left(self) -> int:
        """How many jobs are not done."""

    @abstractmethod
    async def work(self, started: Started) -> None:
        """Work until killed; each job tells its due time first thing, 0 for none."""


class Tally:
    """What a worker has started."""

    def __init__(self) -> None:
        self.lateness_ms: list[float] = []
        self.first = 0.0

    def started(self, due: float) -> None:
        self.first = self.first or time.monotonic()
        self.lateness_ms.append((time.time() - due) * 1000)


async def enqueue(script: Script, jobs: int, how: str, at: float, spread_s: float) -> float:
    """Seconds that it took."""
    dues = [at + spread_s * number / jobs if at else None for number in range(jobs)]
    began = time.monotonic()
    if how == "bulk":
        for start in range(0, jobs, BATCH):
            await script.add(dues[start : start + BATCH])
    else:
        for due in dues:
            await script.add_one(due)
    return time.monotonic() - began


async def work(script: Script, jobs: int, limit_s: float) -> Tally:
    tally, until = Tally(), time.monotonic() + limit_s
    working = asyncio.create_task(script.work(tally.started))
    while not jobs or time.monotonic() < until:
        if working.done():
            working.result()
        if jobs and len(tally.lateness_ms) >= jobs and await script.left() == 0:
            break
        await asyncio.sleep(LOOK_EVERY_S)
    return tally


async def command(make: Callable[[str], Script], name: str, store: str, *options: str) -> dict[str, Any]:
    script = make(store)
    if name == "setup":
        await script.setup()
        return {}
    if name == "enqueue":
        jobs, how, at, spread_s = options
        return {"seconds": await enqueue(script, int(jobs), how, float(at), float(spread_s))}
    tally = await work(script, int(options[0]), float(options[1]))
    return {"seconds": time.monotonic() - tally.first, "lateness_ms": tally.lateness_ms}


def main(make: Callable[[str], Script]) -> None:
    """The command line of a script."""

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some greet on standard output

    async def run() -> None:
        print(json.dumps(await command(make, *sys.argv[1:])), file=answers, flush=True)
        os._exit(0)

    asyncio.run(run())
