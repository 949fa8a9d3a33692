"""How fast due runs drain: one worker process through HTTP, beside the same transactions by a bare client.

    python -m bench.drain [--runs 20000] [--batch 500] [--rounds 3] [--peers all]

In turn: through the API (fenced, with history on Kafka, by the SDK's worker), by a client that calls the ledger's own
functions over one session (the floor), and by each peer's own worker.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import count
from typing import NamedTuple

from bench.benchmark import Benchmark, Stage
from bench.cluster import cpu_seconds, say, wait_until, wal_bytes
from bench.compare import FLOOR, OURS, Contender, Figures
from bench.http_load import call
from fencepost import CommandProducer, JobSpec, at
from fencepostd.local import LOCAL_TENANT, Local
from ledger.completions import Completion, complete_runs
from ledger.connection import ledger_pool, session
from ledger.fence import api_transaction
from ledger.leases import LeaseAsk, lease_runs
from ledger.runs import find_due

HISTORY_DEADLINE_S = 120.0


class Size(NamedTuple):
    """batch: runs a transaction of the bare client."""

    runs: int = 20_000
    batch: int = 500


def contenders(stage: Stage, size: Size) -> dict[str, Contender]:
    numbers = count()

    def ours() -> Figures:
        return drained(stage.local, f"drain-{next(numbers)}", size.runs)

    def bare() -> Figures:
        queue = f"floor-{next(numbers)}"
        fill(stage.local, queue, size.runs)
        wal = wal_bytes(stage.dsn)
        seconds = asyncio.run(floor(stage.dsn, queue, size.runs, size.batch))
        figures = {"drained, runs/s": size.runs / seconds, "WAL, bytes/run": (wal_bytes(stage.dsn) - wal) / size.runs}
        wait_until(stage.dsn, "SELECT count(*) FROM outbox", 0)
        return figures

    peers: dict[str, Contender] = {peer.name: lambda peer=peer: peer.drain(size.runs) for peer in stage.peers}  # type: ignore[misc]
    return {OURS: ours, FLOOR: bare, **peers}


def drained(local: Local, queue: str, runs: int) -> Figures:
    """Of so many runs: from lease to history. The CPU time is that of each part, Postgres's included."""
    fill(local, queue, runs)
    wal, cpu = wal_bytes(local.stack.dsn), cpu_seconds(local)
    seconds = drain(local, queue, runs)
    lag_s = history_lag_s(local, queue, runs)
    wait_until(local.stack.dsn, "SELECT count(*) FROM outbox", 0)
    figures = {
        "drained, runs/s": runs / seconds,
        "WAL, bytes/run": (wal_bytes(local.stack.dsn) - wal) / runs,
        "history lag at the end, s": lag_s,
        "drained of, runs": float(runs),
    }
    for part, used in cpu_seconds(local).items():
        figures[f"CPU of {part}, µs/run"] = (used - cpu[part]) / runs * 1e6
    return figures


def fill(local: Local, queue: str, runs: int) -> None:
    """Make so many runs that are due, by commands on Kafka, and wait until the dust has settled."""
    started, now = time.monotonic(), datetime.now(UTC)
    with CommandProducer(local.stack.bootstrap, tenant=LOCAL_TENANT) as producer:
        for _ in range(runs):
            producer.create_job(JobSpec(queue=queue, schedule=at(now)))
    wait_until(local.stack.dsns, f"SELECT count(*) FROM runs WHERE queue = '{queue}'", runs)
    say(f"{queue}: {runs / (time.monotonic() - started):,.0f} jobs/s created")
    wait_until(local.stack.dsns, "SELECT count(*) FROM outbox", 0)


def drain(local: Local, queue: str, runs: int, url: str | None = None) -> float:
    """Seconds that one worker process takes. url: of one API among several."""
    command = [sys.executable, "-m", "bench.noop_worker", url or local.url, local.token, queue, str(runs), "1000"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return float(json.loads(done.stdout)["seconds"])


def history_lag_s(local: Local, queue: str, runs: int) -> float:
    """How much later than the worker the history has seen the last run's end."""
    began = time.monotonic()
    sql = f"SELECT count(*) FROM runs WHERE queue = '{queue}' AND state = 'completed'"
    while call(local.url, local.token, "/v1/query", {"sql": sql})["rows"] != [[runs]]:
        if time.monotonic() - began > HISTORY_DEADLINE_S:
            raise TimeoutError(f"the history has not seen all of {queue} after {HISTORY_DEADLINE_S:.0f} s")
        time.sleep(0.05)
    return time.monotonic() - began


async def floor(dsn: str, queue: str, runs: int, batch: int) -> float:
    """Seconds that a bare client takes for the same two fenced transactions a batch."""
    async with ledger_pool(dsn, size=1) as pool:
        async with session(pool) as conn:
            due = await find_due(conn, [(LOCAL_TENANT, queue)], runs)
        started = time.monotonic()
        for start in range(0, runs, batch):
            hints = due[start : start + batch]
            ids = [hint.run_id for hint in hints]
            async with api_transaction(pool, ids) as conn:
                leased = await lease_runs(conn, [LeaseAsk(hint.run_id, hint.epoch, "floor", 30) for hint in hints])
            async with api_transaction(pool, ids) as conn:
                done = await complete_runs(conn, [Completion(run.run_id, run.lease_token) for run in leased])
            assert len(done) == len(hints)
        return time.monotonic() - started


BENCH = Benchmark("drain", "Due runs through one worker process, to the history.", Size(), contenders)

if __name__ == "__main__":
    BENCH.main()
