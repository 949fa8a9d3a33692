"""How late runs start: one-off jobs spread over some seconds, and many in one second, from due to the handler's start.

    python -m bench.lateness [--runs 200] [--seconds 20] [--spike 5000] [--rounds 3] [--peers all]

The clocks of the ledger and the worker are one here, so the figure needs no correction. The floor is a bare client
that sleeps to the point when the next run is due, and then leases what is due by primary key: the same transaction,
without hints, HTTP or worker.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import NamedTuple

from bench.benchmark import Benchmark, Stage
from bench.cluster import wait_until
from bench.compare import FLOOR, OURS, Contender, Figures, Lateness
from fencepost import CommandProducer, JobSpec, at
from fencepostd.local import LOCAL_TENANT, Local
from ledger.completions import Completion, complete_runs
from ledger.connection import Pool, ledger_pool, session
from ledger.fence import api_transaction
from ledger.leases import LeaseAsk, LeasedRun, lease_at_once

BATCH = 500
SLOT_S = 0.005


class Size(NamedTuple):
    """spike: runs due in one second; 0 for none. notice: seconds from the first command to the first due time."""

    runs: int = 200
    seconds: float = 20.0
    spike: int = 5_000
    notice: float = 6.0


def contenders(stage: Stage, size: Size) -> dict[str, Contender]:
    numbers = count()

    def ours() -> Figures:
        def one(runs: int, seconds: float) -> Lateness:
            queue = f"late-{next(numbers)}"
            schedule(stage.local, queue, runs, seconds, size.notice)
            return Lateness(runs, worked(stage.local, queue, runs, seconds))

        return both(size, one)

    def bare() -> Figures:
        def one(runs: int, seconds: float) -> Lateness:
            queue = f"late-floor-{next(numbers)}"
            schedule(stage.local, queue, runs, seconds, size.notice)
            return Lateness(runs, asyncio.run(bare_leases(stage.dsn, queue)))

        return both(size, one)

    peers: dict[str, Contender] = {peer.name: lambda peer=peer: both(size, peer.lateness_ms) for peer in stage.peers}  # type: ignore[misc]
    return {OURS: ours, FLOOR: bare, **peers}


def both(size: Size, lateness_ms: Callable[[int, float], Lateness]) -> Figures:
    """The figures of the spread runs, and of the spike. lateness_ms: of so many runs over so many seconds."""
    figures = figures_of("spread", lateness_ms(size.runs, size.seconds))
    return figures | (figures_of("spike", lateness_ms(size.spike, 1.0)) if size.spike else {})


def figures_of(name: str, found: Lateness) -> Figures:
    late = sorted(found.ms)
    return {
        f"{name} p50, ms": late[len(late) // 2],
        f"{name} p99, ms": late[int(len(late) * 0.99)],
        f"{name} max, ms": late[-1],
        f"{name} min, ms": late[0],
        f"{name} started, %": 100 * len(late) / found.runs,
        f"{name} of, runs": float(found.runs),
    }


def schedule(local: Local, queue: str, runs: int, seconds: float, notice_s: float) -> None:
    """One-offs spread evenly over so many seconds, from a moment on that leaves time to get ready."""
    begin = datetime.now(UTC) + timedelta(seconds=notice_s)
    with CommandProducer(local.stack.bootstrap, tenant=LOCAL_TENANT) as producer:
        for number in range(runs):
            producer.create_job(JobSpec(queue=queue, schedule=at(begin + timedelta(seconds=seconds * number / runs))))
    wait_until(local.stack.dsn, f"SELECT count(*) FROM runs WHERE queue = '{queue}'", runs)


def worked(local: Local, queue: str, runs: int, seconds: float) -> list[float]:
    """The lateness in ms of each run, as one worker process of the SDK sees it. seconds: in which they are due."""
    command = [sys.executable, "-m", "bench.noop_worker", local.url, local.token, queue, str(runs), "1000"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 120)
    lateness_ms: list[float] = json.loads(done.stdout)["lateness_ms"]
    return lateness_ms


async def bare_leases(dsn: str, queue: str) -> list[float]:
    """The lateness in ms of each of the queue's runs, by a client that knows them all beforehand."""
    async with ledger_pool(dsn, size=1) as pool:
        waiting = await _waiting(pool, queue)
        lateness_ms: list[float] = []
        leased: list[LeasedRun] = []
        while waiting:
            now = datetime.now(UTC)
            asks = [ask for due_at, ask in waiting[:BATCH] if due_at <= now]
            if not asks:
                # Nothing else runs here, and the loop's timers are exact to a millisecond only.
                time.sleep(min(SLOT_S, (waiting[0][0] - now).total_seconds()))  # noqa: ASYNC251
                continue
            got = await lease_at_once(pool, asks)
            told = datetime.now(UTC)
            lateness_ms += [(told - run.due_at).total_seconds() * 1000 for run in got]
            leased += got
            ids = {run.run_id for run in got}
            waiting = [each for each in waiting if each[1].run_id not in ids]
        for start in range(0, len(leased), BATCH):
            part = leased[start : start + BATCH]
            async with api_transaction(pool, [run.run_id for run in part]) as conn:
                await complete_runs(conn, [Completion(run.run_id, run.lease_token) for run in part])
        return lateness_ms


async def _waiting(pool: Pool, queue: str) -> list[tuple[datetime, LeaseAsk]]:
    async with session(pool) as conn:
        cursor = await conn.execute(
            "SELECT due_at, run_id, epoch FROM runs JOIN partitions USING (partition) WHERE queue = %s ORDER BY due_at",
            (queue,),
        )
        return [(due_at, LeaseAsk(run_id, epoch, "floor", 30)) for due_at, run_id, epoch in await cursor.fetchall()]


BENCH = Benchmark("lateness", "From due to the handler's start: spread, and in a spike.", Size(), contenders)

if __name__ == "__main__":
    BENCH.main()
