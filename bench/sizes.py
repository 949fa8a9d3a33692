"""What things weigh: a run in the history, a live recurring job in the ledger, a run in the wheels of its owner.

    python -m bench.sizes [--count 50000]

A Postgres and a DuckDB file of their own. The figures are those of connectors/client/src/fencepost/capacity, with which
`fencepost capacity` counts.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import click

from bench.catch_up import count as number
from bench.catch_up import create, fill
from bench.cluster import report
from bench.commands import new_ledger
from connectors.stack import PostgresServer, default_cache_dir
from ledger.connection import ledger_pool
from schemas.commands import JobSpec
from schemas.ids import new_id, run_id_for
from streams.history_store import HistoryStore
from streams.history_tables import RUN_EVENT_COLUMNS, EventRow
from streams.timing_wheel import TimingWheel

START = datetime(2026, 3, 1, tzinfo=UTC)
A_BATCH = 5_000
RUNS_A_JOB = 10
SPEC = JobSpec(queue="bench", schedule={"cron": "H H * * *"}, payload='{"to":"somebody"}')


def history_bytes(runs: int) -> float:
    """Of a run that was scheduled, leased and completed, without a result: the file's growth a run."""
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        path = Path(folder, "history.duckdb")
        store = HistoryStore(path)
        for first in range(0, runs, A_BATCH):
            rows = [row for n in range(first, min(first + A_BATCH, runs)) for row in life(n)]
            store.append(rows, {0: 3 * (first + A_BATCH)})
        store.close()  # checkpoints
        return path.stat().st_size / runs


def life(n: int) -> list[EventRow]:
    """Three events in the order of their versions. A job has ten runs, and hints go out by the second."""
    due = START + timedelta(seconds=n // 100)
    job_id = UUID(int=random.Random(n // RUNS_A_JOB).getrandbits(128))
    run_id = run_id_for(job_id, due, n % 16)
    happened = (
        due - timedelta(hours=1),
        *(due + timedelta(milliseconds=random.Random(n).uniform(1, 90) + s) for s in (0, 5)),
    )
    leased = {"attempt": 1, "lease_token": 1, "worker_id": f"worker-{n % 20}"}
    told = ({"due_at": due}, leased | {"due_at": due, "lease_expires_at": due + timedelta(seconds=30)}, leased)
    return [
        event(n * 3 + i, i + 1, kind, happened[i], job_id=str(job_id), run_id=str(run_id), scheduled_for=due, **told[i])
        for i, kind in enumerate(("run_scheduled", "run_leased", "run_completed"))
    ]


def event(offset: int, version: int, kind: str, happened_at: datetime, **fields: object) -> EventRow:
    known = {
        "event_id": f"0-{offset // 500}-{offset % 500}",
        "type": kind,
        "happened_at": happened_at,
        "version": version,
    }
    known |= {"tenant": "bench", "queue": "bench", "lane": "normal", "partition": 0, "topic_offset": offset, **fields}
    values = (known.get(name) for name in RUN_EVENT_COLUMNS)
    return tuple(_micros(value) if isinstance(value, datetime) else value for value in values)


def _micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def wheel_bytes(runs: int) -> float:
    """Of a run that is due within the next 30 s, in its owner's memory: its own timer and that of its job's cursor."""
    due_us = [int((START + timedelta(seconds=30 * n / runs)).timestamp() * 1e6) for n in range(runs)]
    tracemalloc.start()
    of_runs, of_jobs = TimingWheel[bytes](), TimingWheel[bytes]()
    for at_us in due_us:
        of_runs.add(new_id().bytes, at_us)
        of_jobs.add(new_id().bytes, at_us)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / runs


async def ledger_bytes(dsn: str, jobs: int) -> float:
    """Of a recurring job and its pending run, indexes included."""
    async with ledger_pool(await new_ledger(dsn), size=1) as pool:
        tables = "SELECT pg_total_relation_size('jobs') + pg_total_relation_size('runs')"
        before = await number(pool, tables)
        await fill(pool, [create(SPEC, START) for _ in range(jobs)])
        return (await number(pool, tables) - before) / jobs


@click.command()
@click.option("--count", default=50_000, show_default=True)
def main(count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as folder:
        Path(folder).chmod(0o755)  # Postgres runs as a user of its own
        postgres = PostgresServer(Path(folder), default_cache_dir())
        postgres.start()
        try:
            ledger = asyncio.run(ledger_bytes(postgres.dsn, count))
        finally:
            postgres.stop()
    figures = {"live job, bytes": ledger, "history, bytes/run": history_bytes(count)}
    report("sizes", figures | {"look-ahead, bytes/run": wheel_bytes(count)})


if __name__ == "__main__":
    main()
