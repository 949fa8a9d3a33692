"""One process that takes over every partition of a ledger, and tells how long that took and what it weighs.

    python -m bench.owner_process DSN FOLDER    with the state in FOLDER, if the epoch before wrote it
    python -m bench.owner_process DSN heap      a bare client instead: the same statements, the timers in one heap

Prints one JSON line: {"seconds", "timers", "memory_bytes": of the timers as a new owner has them, "wheel_bytes": of the
same when all of them are due within half a minute}. There is no Kafka here: what is measured needs none.
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

from ledger.connection import Pool, ledger_pool, session
from ledger.fence import take_over
from ledger.jobs import read_partition_jobs
from ledger.partitions import list_partitions
from ledger.runs import read_partition_runs
from schemas.codec import Codec
from streams.command_inbox import CommandInbox
from streams.ledger_clock import LedgerClock
from streams.partition_owner import PartitionOwner
from streams.surroundings import Surroundings
from streams.timing_state import to_us

DUE_US = to_us(datetime(2100, 1, 1, tzinfo=UTC))  # of bench.commands.SPEC, without importing what that needs
SHORTLY_BEFORE_US = 10_000_000


async def owners(dsn: str, folder: Path) -> dict[str, Any]:
    async with ledger_pool(dsn, size=4) as pool:
        around = surroundings(pool, folder)
        async with session(pool) as conn:
            partitions = [each.partition for each in await list_partitions(conn)]
        before, began = resident_bytes(), time.monotonic()
        owned = [await owner(pool, partition, around) for partition in partitions]
        seconds, opened = time.monotonic() - began, resident_bytes()
        for each in owned:
            while each.tick(DUE_US - SHORTLY_BEFORE_US) == DUE_US - SHORTLY_BEFORE_US:
                pass  # a call loads some of what is due soon
        timers, loaded = sum(each.timers() for each in owned), resident_bytes()
        for each in owned:
            await each.close(release=True)
    return {
        "seconds": seconds,
        "timers": timers,
        "memory_bytes": opened - before,
        "wheel_bytes": loaded - before,
    }


async def owner(pool: Pool, partition: int, around: Surroundings) -> PartitionOwner:
    """Opened, not started: it does nothing by itself."""
    takeover = await take_over(pool, partition, "bench")
    inbox = CommandInbox(takeover.consumed_offset, lambda: None, lambda _: None)
    opened = PartitionOwner(takeover, around, inbox, lambda _: None)
    await opened.open()
    return opened


def surroundings(pool: Pool, folder: Path) -> Surroundings:
    """Those of a process without Kafka: nothing is due, so nothing is hinted, and no command comes."""

    async def end_offset(_: int) -> int:
        return 0

    def crash(error: Exception) -> None:
        raise error

    nobody = cast(Any, None)
    return Surroundings(
        pool, Codec(), nobody, nobody, LedgerClock(), 0, folder, lambda: None, end_offset, crash
    )  # fmt: skip


async def heap(dsn: str) -> dict[str, Any]:
    """The floor of both: to read everything, and to keep of it no more than the instant and the id."""
    timers: list[tuple[int, bytes]] = []
    async with ledger_pool(dsn, size=1) as pool, session(pool) as conn:
        partitions = [each.partition for each in await list_partitions(conn)]
        before, began = resident_bytes(), time.monotonic()
        for partition in partitions:
            await read_partition_jobs(conn, partition)
            async for run in read_partition_runs(conn, partition):
                timers.append((to_us(run.due_at), run.run_id.bytes))
        heapq.heapify(timers)
        seconds = time.monotonic() - began
    return {"seconds": seconds, "timers": len(timers), "memory_bytes": resident_bytes() - before}


def resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


async def main(dsn: str, where: str) -> None:
    print(json.dumps(await (heap(dsn) if where == "heap" else owners(dsn, Path(where)))))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
