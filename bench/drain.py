"""How fast due runs drain: one worker process through HTTP, beside the same transactions by a bare client.

    python -m bench.drain [--runs 20000] [--rounds 3] [--batch 500]

Each round drains the same number of runs twice, in turn: through the API (fenced, with history on Kafka, by the SDK's
worker), and by a client that calls the ledger's own functions over one session (the floor). Medians, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

from bench.cluster import cluster, cpu_seconds, report, say, wait_until, wal_bytes
from fencepost import CommandProducer, JobSpec, at
from fencepostd.local import LOCAL_TENANT, Local
from ledger.completions import Completion, complete_runs
from ledger.connection import ledger_pool, session
from ledger.fence import api_transaction
from ledger.leases import LeaseAsk, lease_runs
from ledger.runs import find_due


def main() -> None:
    options = parse()
    with cluster() as local:
        rounds = [one_round(local, number, options.runs, options.batch) for number in range(options.rounds)]
    figures: dict[str, Any] = {"runs": options.runs, "rounds": options.rounds}
    for key in rounds[0]:
        figures[key] = statistics.median(each[key] for each in rounds)
    figures["ratio to the floor"] = figures["drain, runs/s"] / figures["floor, runs/s"]
    report("drain", figures)


def one_round(local: Local, number: int, runs: int, batch: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    queue = f"drain-{number}"
    fill(local, queue, runs)
    wal, cpu = wal_bytes(local.stack.dsn), cpu_seconds(local)
    drained = drain(local, queue, runs)
    wait_until(local.stack.dsn, "SELECT count(*) FROM outbox", 0)
    figures["drain, runs/s"] = runs / drained
    figures["WAL, bytes/run (lease to history)"] = (wal_bytes(local.stack.dsn) - wal) / runs
    for part, seconds in cpu_seconds(local).items():
        figures[f"CPU, µs/run: {part}"] = (seconds - cpu[part]) / runs * 1e6
    fill(local, f"floor-{number}", runs)
    figures["floor, runs/s"] = runs / asyncio.run(floor(local.stack.dsn, f"floor-{number}", runs, batch))
    wait_until(local.stack.dsn, "SELECT count(*) FROM outbox", 0)
    say(f"round {number + 1}: " + ", ".join(f"{key} {value:,.0f}" for key, value in figures.items()))
    return figures


def fill(local: Local, queue: str, runs: int) -> None:
    """Make so many runs that are due, by commands on Kafka, and wait until the dust has settled."""
    started, now = time.monotonic(), datetime.now(UTC)
    with CommandProducer(local.stack.bootstrap, tenant=LOCAL_TENANT) as producer:
        for _ in range(runs):
            producer.create_job(JobSpec(queue=queue, schedule=at(now)))
    wait_until(local.stack.dsn, f"SELECT count(*) FROM runs WHERE queue = '{queue}'", runs)
    say(f"{queue}: {runs / (time.monotonic() - started):,.0f} jobs/s created")
    wait_until(local.stack.dsn, "SELECT count(*) FROM outbox", 0)


def drain(local: Local, queue: str, runs: int) -> float:
    """Seconds that one worker process takes."""
    command = [sys.executable, "-m", "bench.noop_worker", local.url, local.token, queue, str(runs), "1000"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return float(json.loads(done.stdout)["seconds"])


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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=500, help="runs a transaction of the bare client")
    return parser.parse_args()


if __name__ == "__main__":
    main()
