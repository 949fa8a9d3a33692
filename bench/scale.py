"""Twenty million recurring schedules: loading them, owning them, and what a run costs beside so many.

    python -m bench.scale [--schedules 20000000] [--lively 20000] [--seconds 60] [--partitions 16] [--many 256]

Three Fenceposts, one after the other: with only the lively schedules, which fire every minute; with these on many
partitions; and with all the others beside them (bench/schedule_load.py), which do not fire meanwhile. Of each run that
is executed the CPU time is told, of all roles and Postgres. Of the last one also how long its two owners take to own
everything, from the ledger and from their local state, and what they weigh. After each start a sample of the jobs is
compared with what the rules of time say.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import httpx
import msgspec
import psutil
import psycopg

from bench.cluster import cluster, cpu_seconds, report, say
from bench.compare import Figures
from bench.schedule_load import QUEUE, Load, load
from fencepostd.local import LOCAL_TENANT, Local
from schemas.ids import run_id_for
from schemas.schedule import due_at, next_fire, parse_schedule

SLOTS = 1_000
SAMPLE = 1_000
OWNED_DEADLINE_S = 3_600.0
SETTLE_S, SETTLED_MS, SETTLE_DEADLINE_S = 5.0, 1_000.0, 300.0
JUST_NOW = timedelta(seconds=10)  # what has come since may not be decided yet

SAMPLE_JOBS = "SELECT job_id FROM jobs TABLESAMPLE SYSTEM (%s) WHERE queue = %s"
READ_JOBS = "SELECT job_id, partition, created_at, next_fire_at, definition, now() FROM jobs WHERE job_id = ANY(%s)"
DUE_TIMES = "SELECT run_id, due_at FROM runs WHERE run_id = ANY(%s)"


def measure(schedules: int, lively: int, seconds: float, partitions: int, many: int) -> Figures:
    with cluster(partitions=partitions) as local:
        few = alone(local, lively, seconds, partitions)
    with cluster(partitions=many) as local:
        spread = alone(local, lively, seconds, many)
    with cluster(partitions=partitions) as local:
        all_of = beside(local, schedules, lively, seconds, partitions)
    cost = "CPU, µs/run"
    return {
        **{f"{lively:,} on {partitions}: {name}": value for name, value in few.items()},
        **{f"{lively:,} on {many}: {name}": value for name, value in spread.items()},
        **{f"{schedules:,} on {partitions}: {name}": value for name, value in all_of.items()},
        f"CPU a run, {many} partitions to {partitions}": spread[cost] / few[cost],
        f"CPU a run, {schedules:,} schedules to {lively:,}": all_of[cost] / few[cost],
    }


def alone(local: Local, lively: int, seconds: float, partitions: int) -> Figures:
    """Only the schedules that fire."""
    stop_owners(local)
    write(local, lively, lively, partitions)
    start_owners(local, partitions)
    return executed(local, seconds)


def beside(local: Local, schedules: int, lively: int, seconds: float, partitions: int) -> Figures:
    """All schedules, from the load on."""
    empty = resident_bytes(local)
    stop_owners(local)
    figures = write(local, schedules, lively, partitions)
    figures["owned from the ledger, s"] = start_owners(local, partitions)
    figures["memory from the ledger, bytes/schedule"] = (resident_bytes(local) - empty) / schedules
    figures["next fires wrong after that, jobs"] = wrong_fires(local)
    stop_owners(local)
    figures["owned from the local state, s"] = start_owners(local, partitions)
    figures["memory from the local state, bytes/schedule"] = (resident_bytes(local) - empty) / schedules
    figures |= executed(local, seconds)
    figures["memory at work, bytes/schedule"] = (resident_bytes(local) - empty) / schedules
    figures["next fires wrong at the end, jobs"] = wrong_fires(local)
    figures["timing state, GB"] = sum(folder_bytes(local.state / owner) for owner in owners(local)) / 1e9
    return figures


def write(local: Local, schedules: int, lively: int, partitions: int) -> Figures:
    """Load the ledger, and let Postgres do at once what it would do over the next hours."""
    dsn = local.stack.dsn
    load_s = load(Load(dsn, LOCAL_TENANT, partitions, schedules, lively, datetime.now(UTC)))
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda table: vacuum(dsn, table), ("jobs", "runs")))
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CHECKPOINT")
        row = conn.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    say(f"scale: vacuumed in {time.monotonic() - began:.0f} s")
    return {"loaded, schedules/s": schedules / load_s, "ledger, GB": row[0] / 1e9}


def vacuum(dsn: str, table: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"VACUUM (ANALYZE) {table}".encode())


# --- owners ---


def owners(local: Local) -> list[str]:
    return [part.name for part in local.stack.status() if part.name.startswith("streams-")]


def stop_owners(local: Local) -> None:
    """SIGTERM, as in a deployment: they release what they own and close their state."""
    for owner in owners(local):
        local.stack.signal_part(owner, signal.SIGTERM)
    while any(part.pid for part in local.stack.status() if part.name.startswith("streams-")):
        time.sleep(0.1)


def start_owners(local: Local, partitions: int) -> float:
    """Seconds from the start of the processes until they own every partition."""
    began = told = time.monotonic()
    names = owners(local)
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(local.stack.start_part, names))
    while (owned := sum(len(owned_by(local, name)) for name in names)) < partitions:
        if time.monotonic() - began > OWNED_DEADLINE_S:
            raise TimeoutError(f"only {owned} of {partitions} partitions are owned")
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say(f"scale: {owned} of {partitions} partitions are owned after {told - began:.0f} s")
        time.sleep(0.1)
    say(f"scale: all {partitions} partitions are owned after {time.monotonic() - began:.1f} s")
    return time.monotonic() - began


def owned_by(local: Local, owner: str) -> list[int]:
    try:
        answer = httpx.get(f"http://127.0.0.1:{local.stack.port_for(owner)}/healthz", timeout=30)
    except httpx.HTTPError:
        return []
    owned: list[int] = answer.json().get("partitions", [])
    return owned


def resident_bytes(local: Local) -> int:
    """What the owners hold in memory."""
    pids = [part.pid for part in local.stack.status() if part.name.startswith("streams-") and part.pid]
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


def folder_bytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


# --- next fires ---


def wrong_fires(local: Local) -> float:
    """How many of a sample of jobs have another pending occurrence, or another run of it, than the rules of time say.

    What was missed before the owners began is being caught up with, so what is wrong is looked at again for a while.
    """
    until = time.monotonic() + SETTLE_DEADLINE_S
    with psycopg.connect(local.stack.dsn, autocommit=True) as conn:
        row = conn.execute("SELECT reltuples FROM pg_class WHERE relname = 'jobs'").fetchone()
        assert row is not None
        share = min(100.0, 100 * 20 * SAMPLE / max(row[0], 1))  # pages, of which some are taken
        found = [job_id for (job_id,) in conn.execute(SAMPLE_JOBS, (share, QUEUE)).fetchall()]
        sample = random.Random(1).sample(found, min(SAMPLE, len(found)))
        wrong = wrong_of(conn, sample)
        while wrong and time.monotonic() < until:
            time.sleep(1)
            wrong = wrong_of(conn, wrong)
    say(f"scale: of {len(sample):,} jobs that were looked at {len(wrong)} have a wrong next fire")
    return float(len(wrong))


def wrong_of(conn: psycopg.Connection[Any], job_ids: list[UUID]) -> list[UUID]:
    """Those of the jobs."""
    found = conn.execute(READ_JOBS, (job_ids,)).fetchall()
    run_ids = [run_id_for(job_id, fire, partition) for job_id, partition, _, fire, _, _ in found]
    due = dict(conn.execute(DUE_TIMES, (run_ids,)).fetchall())
    wrong = []
    for (job_id, _, created_at, fire, definition, now), run_id in zip(found, run_ids, strict=True):
        schedule = parse_schedule(msgspec.json.decode(definition)["schedule"], job_id=job_id)
        expected = {next_fire(schedule, at, job_id=job_id, created_at=created_at) for at in (now, now - JUST_NOW)}
        # A run that is gone has been executed, which only one that has come can have been.
        is_due_right = due.get(run_id) == due_at(schedule, fire, job_id=job_id) or (run_id not in due and fire <= now)
        if fire not in expected or not is_due_right:
            wrong.append(job_id)
    return wrong


# --- runs ---


def executed(local: Local, seconds: float) -> Figures:
    """What a run costs while one worker executes what comes; once it is not late any more."""
    with worker(local) as process:
        settle(process)
        cpu, began = cpu_seconds(local), time.monotonic()
        time.sleep(seconds)
        late_ms, used = started(process), cpu_seconds(local)
        passed = time.monotonic() - began
    parts = {part: (used[part] - cpu[part]) / len(late_ms) * 1e6 for part in used if part in cpu}
    kafka = parts.pop("kafka", 0.0)
    told = ", ".join(f"{part} {value:,.0f}" for part, value in parts.items())
    say(f"scale: {len(late_ms):,} runs, {sum(parts.values()):,.0f} µs CPU a run: {told}; Kafka {kafka:,.0f}")
    return {
        "runs, runs/s": len(late_ms) / passed,
        "late p50, ms": late_ms[len(late_ms) // 2],
        "late p99, ms": late_ms[int(len(late_ms) * 0.99)],
        "CPU, µs/run": sum(parts.values()),
        **{f"CPU of {part}, µs/run": value for part, value in parts.items()},
        "Kafka's CPU, µs/run": kafka,
    }


@contextmanager
def worker(local: Local) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "bench.steady_worker", local.url, local.token, QUEUE, str(SLOTS)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


def started(process: subprocess.Popen[str]) -> list[float]:
    """How late the runs were that have started since this was asked last, in order."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    late_ms: list[float] = json.loads(process.stdout.readline())["lateness_ms"]
    return sorted(late_ms)


def settle(process: subprocess.Popen[str]) -> None:
    """Until what was missed during the load is caught up with."""
    until = time.monotonic() + SETTLE_DEADLINE_S
    while time.monotonic() < until:
        time.sleep(SETTLE_S)
        late_ms = started(process)
        if late_ms and late_ms[-1] < SETTLED_MS:
            return
    say(f"scale: runs are still late after {SETTLE_DEADLINE_S:.0f} s")


@click.command(help=__doc__)
@click.option("--schedules", default=20_000_000, show_default=True)
@click.option("--lively", default=20_000, show_default=True, help="of these, that fire every minute")
@click.option("--seconds", default=60.0, show_default=True, help="that runs are executed each time")
@click.option("--partitions", default=16, show_default=True)
@click.option("--many", default=256, show_default=True, help="partitions to compare with")
def main(**size: Any) -> None:
    report("scale", measure(**size))


if __name__ == "__main__":
    main()
