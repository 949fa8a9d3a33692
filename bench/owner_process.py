"""One process that takes over every partition of a ledger, and tells how long that took and what it weighs.

    python -m bench.owner_process DSN FOLDER    with the state in FOLDER, if the epoch before wrote it
    python -m bench.owner_process DSN heap      a bare client instead: the same statements, the timers in one heap

Prints one JSON line: {"seconds", "cpu_s": of this process alone, "timers", "memory_bytes": of the timers as a new owner
has them, "wheel_bytes": of the same when all of them are due within half a minute}. There is no Kafka here: what is
measured needs none.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import psutil
import uvloop

from ledger.clock import LedgerClock
from ledger.connection import Pool, ledger_pool, session
from ledger.fence import take_over
from ledger.jobs import read_partition_jobs
from ledger.partitions import list_partitions
from ledger.runs import read_partition_runs
from schemas.codec import Codec
from streams.command_inbox import CommandInbox
from streams.partition_owner import PartitionOwner
from streams.surroundings import Surroundings
from streams.timers import to_us
from streams.timing_state import scan_key

DUE_US = to_us(datetime(2100, 1, 1, tzinfo=UTC))  # of bench.commands.SPEC, without importing what that needs
SHORTLY_BEFORE_US = 10_000_000
PAGE = 10_000


async def owners(dsn: str, folder: Path) -> dict[str, Any]:
    async with ledger_pool(dsn, size=4) as pool:
        around = surroundings(pool, folder)
        await around.begin()
        async with session(pool) as conn:
            partitions = [each.partition for each in await list_partitions(conn)]
        before, began, used = resident_bytes(), time.monotonic(), time.process_time()
        owned = [await owner(pool, partition, around) for partition in partitions]
        seconds, cpu_s = time.monotonic() - began, time.process_time() - used
        opened = resident_bytes()
        for each in owned:
            while each.tick(DUE_US - SHORTLY_BEFORE_US) == DUE_US - SHORTLY_BEFORE_US:
                pass  # a call loads some of what is due soon, until enough is loaded
        loaded = resident_bytes()
        timers = sum(map(known_timers, owned))
        for each in owned:
            await each._stamp()  # what an owner does first once it works
            await each.close(release=True)
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "timers": timers,
        "memory_bytes": opened - before,
        "wheel_bytes": loaded - before,
    }


async def owner(pool: Pool, partition: int, around: Surroundings) -> PartitionOwner:
    """Opened, not started: it does nothing by itself."""
    takeover = await take_over(pool, partition, "bench")
    inbox = CommandInbox(takeover.consumed_offset, lambda: None, lambda _: None, lambda _: "", {}, lambda *_: None)
    opened = PartitionOwner(takeover, around, inbox, lambda _: None)
    await opened.open()
    return opened


def known_timers(owner: PartitionOwner) -> int:
    """Runs that wait, as its timing state has them."""
    state, edge, count = owner._memory.state, scan_key(0), 0
    while page := state.due(edge, 2 * DUE_US, PAGE):
        count, edge = count + len(page), scan_key(*page[-1])
    return count


def surroundings(pool: Pool, folder: Path) -> Surroundings:
    """Those of a process without Kafka: nothing is due, so nothing is hinted, and no command comes."""

    async def end_offset(_: int) -> int:
        return 0

    def crash(error: Exception) -> None:
        raise error

    nobody = cast(Any, None)
    return Surroundings(
        pool, Codec(), nobody, nobody, LedgerClock(), 0, folder, nobody, lambda _: None, end_offset, crash
    )  # fmt: skip


async def heap(dsn: str) -> dict[str, Any]:
    """The floor of both: to read everything, and to keep of it no more than the instant and the id."""
    timers: list[tuple[int, bytes]] = []
    async with ledger_pool(dsn, size=1) as pool, session(pool) as conn:
        partitions = [each.partition for each in await list_partitions(conn)]
        before, began, used = resident_bytes(), time.monotonic(), time.process_time()
        for partition in partitions:
            async for _ in read_partition_jobs(conn, partition):
                pass
            async for runs in read_partition_runs(conn, partition):
                timers += [(to_us(run.due_at), run.run_id.bytes) for run in runs]
        heapq.heapify(timers)
        seconds, cpu_s = time.monotonic() - began, time.process_time() - used
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "timers": len(timers),
        "memory_bytes": resident_bytes() - before,
    }


def resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


async def main(dsn: str, where: str) -> None:
    print(json.dumps(await (heap(dsn) if where == "heap" else owners(dsn, Path(where)))))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
