"""How long it takes to own partitions with many timers, from the local state and from the ledger; what timers weigh.

    python -m bench.takeover [--timers 200000] [--rounds 3]

All 16 partitions by one process of its own, see bench/owner_process.py, on a database of its own; Kafka's part, which
is when the group notices, is not in it. The floor reads the same rows and keeps them in one heap in memory, which has
to be read anew at every start.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from functools import cache
from typing import Any, NamedTuple

from bench import commands
from bench.benchmark import Benchmark, Stage
from bench.catch_up import fill
from bench.cluster import say
from bench.compare import FLOOR, OURS, Contender, Figures
from ledger.connection import ledger_pool, session

MB = 1_000_000
DEADLINE_S = 600


class Size(NamedTuple):
    """timers: one-off jobs that wait, a run each."""

    timers: int = 200_000


def contenders(stage: Stage, size: Size) -> dict[str, Contender]:
    @cache
    def ledger(timers: int) -> str:
        say(f"takeover: making {timers:,} jobs")
        return asyncio.run(ledger_with(stage.dsn, timers))

    def ours() -> Figures:
        nothing = owned(ledger(0), 0)
        with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
            rebuilt, kept = (owned(ledger(size.timers), size.timers, folder) for _ in range(2))
        return {
            "from the ledger, s": rebuilt["seconds"],
            "from the local state, s": kept["seconds"],
            "CPU from the ledger, s": rebuilt["cpu_s"],
            "CPU from the local state, s": kept["cpu_s"],
            "with nothing, s": nothing["seconds"],
            "memory with nothing, MB": nothing["memory_bytes"] / 1e6,
            # Bytes a timer are megabytes a million of them.
            "memory after a rebuild, MB/million timers": grown(rebuilt, nothing, "memory_bytes"),
            "memory after a start, MB/million timers": grown(kept, nothing, "memory_bytes"),
            "memory when all are due soon, MB/million timers": grown(kept, nothing, "wheel_bytes"),
        }

    def grown(found: dict[str, Any], nothing: dict[str, Any], what: str) -> float:
        return float(found[what] - nothing[what]) / size.timers

    def bare() -> Figures:
        read = owned(ledger(size.timers), size.timers, "heap")
        memory = read["memory_bytes"] / size.timers
        return {
            "from the ledger, s": read["seconds"],
            "CPU from the ledger, s": read["cpu_s"],
            "memory after a rebuild, MB/million timers": memory,
            "memory when all are due soon, MB/million timers": memory,
        }

    return {OURS: ours, FLOOR: bare}


async def ledger_with(dsn: str, timers: int) -> str:
    """A ledger of its own with so many waiting one-offs."""
    ledger = await commands.new_ledger(dsn)
    async with ledger_pool(ledger, size=2) as pool:
        await fill(pool, [each for part in commands.commands(timers).values() for each in part])
        async with session(pool) as conn:
            await conn.execute("TRUNCATE outbox")  # as if a relay had published all: else no local state is trusted
    return ledger


def owned(dsn: str, timers: int, where: str | None = None) -> dict[str, Any]:
    """What bench/owner_process.py tells. where: the folder of its state, a new one unless given."""
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as new:
        command = [sys.executable, "-m", "bench.owner_process", dsn, where or new]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["timers"] == timers, found
    return found


BENCH = Benchmark(
    "takeover",
    "Owning partitions with many timers: the time until they are in memory, and what they weigh there.",
    Size(),
    contenders,
)

if __name__ == "__main__":
    BENCH.main()
