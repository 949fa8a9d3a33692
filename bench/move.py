"""Partitions move to a new shard while runs are executed: how late these start meanwhile, and what fails.

    python -m bench.move [--rate 1000] [--moves 3] [--period 60] [--watch 60]

The load is jobs that fire every minute, spread evenly over it, executed by one worker process of the SDK. After a while
to get going it is watched; then a shard is added, a Postgres of its own, and partitions are moved to it one after the
other; then it is watched once more. What must hold: no call fails, and of the runs that start while partitions move 99
in 100 are no later than 2 s.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from bench.cluster import cluster, report, say, wait_until
from bench.compare import Figures
from bench.soak import QUEUE, Load
from bench.steady_worker import steady_worker
from connectors.stack import PostgresServer, default_cache_dir
from fencepostd.local import Local

OVERDUE = f"SELECT count(*) FROM runs WHERE queue = '{QUEUE}' AND due_at < now() - interval '10 seconds'"
STOOD_STILL = re.compile(r"it stood still for ([\d.]+) s")


def measure(local: Local, new_dsn: str, rate: float, moves: int, period_s: int, watch_s: float) -> Figures:
    """new_dsn: an empty database, which becomes shard 1. moves: of the first so many partitions."""
    load = Load(local, period_s)
    with steady_worker(local, QUEUE) as worker:
        load.raise_to(rate)
        worker.watch("warm-up", time.monotonic() + watch_s)
        before = worker.watch("before", time.monotonic() + watch_s)
        began = time.monotonic()
        shard(local, "add", new_dsn)
        stood_still_s = [moved(local, partition) for partition in range(moves)]
        meanwhile = worker.watch("meanwhile", time.monotonic(), began)
        after = worker.watch("after", time.monotonic() + watch_s)
        wait_until([local.stack.dsn, new_dsn], OVERDUE, 0)
    return {
        "asked for, runs/s": rate,
        **before,
        **meanwhile,
        **after,
        "moved, partitions": float(moves),
        "stood still max, s": max(stood_still_s),
    }


def moved(local: Local, partition: int) -> float:
    """Move it, as people do; for how many seconds nobody had it."""
    said = shard(local, "move-partition", str(partition), "--to", "1")
    found = STOOD_STILL.search(said)
    if found is None:
        raise click.ClickException(said)
    return float(found[1])


def shard(local: Local, *arguments: str) -> str:
    """`fencepostd shard`; its output, which is told, too."""
    command = [sys.executable, "-m", "fencepostd", "shard", *arguments, "--postgres", local.stack.dsn]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    say(said.rstrip())
    if done.returncode != 0:
        raise click.ClickException(said)
    return said


@contextmanager
def another_postgres() -> Iterator[str]:
    """A server of its own; the DSN of its database."""
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        server = PostgresServer(Path(folder), default_cache_dir(), name="new-shard", say=say)
        server.start()
        try:
            yield server.dsn
        finally:
            server.stop()


@click.command(help=__doc__)
@click.option("--rate", default=1_000.0, show_default=True, help="runs a second")
@click.option("--moves", default=3, show_default=True, help="partitions that are moved, one after the other")
@click.option("--period", "period_s", default=60, show_default=True, help="seconds after which each job fires again")
@click.option("--watch", "watch_s", default=60.0, show_default=True, help="seconds, before and after")
def main(rate: float, moves: int, period_s: int, watch_s: float) -> None:
    with another_postgres() as new_dsn, cluster() as local:
        report("move", measure(local, new_dsn, rate, moves, period_s, watch_s))


if __name__ == "__main__":
    main()
