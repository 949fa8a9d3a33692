"""Five million runs that are due and that nobody executes: what they cost whoever works beside them.

    python -m bench.backlog [--runs 5000000] [--queues 5000] [--tenants 1000] [--drain 20000]

One-offs of a thousand tenants in five thousand queues, due since a minute ago, written past the topic as bench.scale
does. Before they are there and beside them, of another queue: one-offs over 20 s from due to the handler's start, and
a drain with its CPU time a run. Owners start anew on the backlog; how long they hint what is due is told too, and what
it costs from then on that nobody works on it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import click
import httpx

from bench.cluster import cluster, cpu_seconds, report, say
from bench.compare import Figures, Lateness
from bench.drain import drained
from bench.lateness import figures_of, schedule, worked
from bench.scale import owners, resident_bytes, start_owners, stop_owners, vacuum
from fencepostd.local import Local
from ledger.bulk_load import copy_jobs
from ledger.connection import ledger_pool
from ledger.fence import owner_transaction, release_partition, take_over
from ledger.jobs import NewJob
from schemas.commands import CreateJob, JobSpec
from schemas.ids import new_id, partition_of_job, run_id_for
from streams.job_commands import new_job

PARTITIONS = 16
A_TRANSACTION = 1_000
TELL_EVERY = 500_000
ONE_OFFS, SPREAD_S, NOTICE_S = 200, 20.0, 6.0
LOOK_S = 60.0  # so long is looked at what it costs that the backlog is there
HINTED_DEADLINE_S = 900.0
_COUNTED = re.compile(r"^fencepost_(hints_sent|hints_dropped|runs_rehinted)_total (\S+)$", re.MULTILINE)


def measure(local: Local, runs: int, queues: int, tenants: int, drain: int) -> Figures:
    numbers = count()
    alone = beside(local, f"backlog-{next(numbers)}", drain)
    empty_bytes = resident_bytes(local)
    stop_owners(local)
    began = time.monotonic()
    asyncio.run(write(local.stack.dsn, runs, queues, tenants))
    written_s = time.monotonic() - began
    vacuum(local.stack.dsn, "runs")
    vacuum(local.stack.dsn, "jobs")
    owned_s = start_owners(local, PARTITIONS)
    hinted_s = await_hinted(local, runs)
    idle = idling(local)
    loaded = beside(local, f"backlog-{next(numbers)}", drain)
    return {
        "backlog, runs": float(runs),
        "written, runs/s": runs / written_s,
        "owned after, s": owned_s,
        "hinted after, s": hinted_s,
        "memory of the owners, bytes/run": (resident_bytes(local) - empty_bytes) / runs,
        **idle,
        **{f"alone: {name}": value for name, value in alone.items()},
        **{f"beside the backlog: {name}": value for name, value in loaded.items()},
    }


def beside(local: Local, queue: str, drain: int) -> Figures:
    schedule(local, f"{queue}-late", ONE_OFFS, SPREAD_S, NOTICE_S)
    late = Lateness(ONE_OFFS, worked(local, f"{queue}-late", ONE_OFFS, SPREAD_S))
    return figures_of("spread", late) | drained(local, f"{queue}-drain", drain)


async def write(dsn: str, runs: int, queues: int, tenants: int) -> None:
    waiting: defaultdict[int, list[NewJob]] = defaultdict(list)
    async with ledger_pool(dsn, size=1) as pool:
        fences = [(await take_over(pool, partition, "bulk load")).fence for partition in range(PARTITIONS)]

        async def flush(partition: int) -> None:
            async with owner_transaction(pool, fences[partition]) as tx:
                await copy_jobs(tx, waiting.pop(partition))

        for number, (partition, job) in enumerate(due_jobs(runs, queues, tenants), 1):
            waiting[partition].append(job)
            if len(waiting[partition]) == A_TRANSACTION:
                await flush(partition)
            if number % TELL_EVERY == 0:
                say(f"backlog: {number:,} of {runs:,} runs written")
        for partition in list(waiting):
            await flush(partition)
        for fence in fences:
            await release_partition(pool, fence)


def due_jobs(runs: int, queues: int, tenants: int) -> Iterator[tuple[int, NewJob]]:
    """The queues take turns, each belongs to one tenant."""
    due = datetime.now(UTC) - timedelta(minutes=1)
    first = [_job(f"backlog-{number}", f"tenant-{number % tenants}", due) for number in range(queues)]
    for number in range(runs):
        job_id = new_id()
        partition = partition_of_job(job_id, PARTITIONS)
        yield partition, first[number % queues]._replace(job_id=job_id, run_id=run_id_for(job_id, due, partition))


def _job(queue: str, tenant: str, due: datetime) -> NewJob:
    spec, job_id = JobSpec(queue=queue, schedule={"runAt": due.isoformat()}), new_id()
    command = CreateJob(command_id=job_id, tenant=tenant, job_id=job_id, issued_at=due, spec=spec)
    return new_job(command, 0, due)


def await_hinted(local: Local, runs: int) -> float:
    """Until the owners, who have just started, have hinted so many runs; the seconds."""
    began = time.monotonic()
    while sum(first_hints(local, owner) for owner in owners(local)) < runs:
        if time.monotonic() - began > HINTED_DEADLINE_S:
            raise TimeoutError(f"not all of {runs} runs are hinted after {HINTED_DEADLINE_S:.0f} s")
        time.sleep(0.5)
    return time.monotonic() - began


def first_hints(local: Local, owner: str) -> float:
    """How many runs the owner has hinted, each counted once."""
    answer = httpx.get(f"http://127.0.0.1:{local.stack.port_for(owner)}/metrics", timeout=30)
    counted = {name: float(value) for name, value in _COUNTED.findall(answer.text)}
    return counted["hints_sent"] + counted["hints_dropped"] - counted["runs_rehinted"]


def idling(local: Local) -> Figures:
    """What each part uses while nothing is to be done but to have the backlog."""
    before = cpu_seconds(local)
    time.sleep(LOOK_S)
    used = cpu_seconds(local)
    return {f"CPU of {part} once hinted, % of a core": (used[part] - before[part]) / LOOK_S * 100 for part in used}


@click.command(help=__doc__)
@click.option("--runs", default=5_000_000, show_default=True)
@click.option("--queues", default=5_000, show_default=True)
@click.option("--tenants", default=1_000, show_default=True)
@click.option("--drain", default=20_000, show_default=True, help="runs that are executed, each time")
def main(**size: Any) -> None:
    with cluster(partitions=PARTITIONS) as local:
        report("backlog", measure(local, **size))


if __name__ == "__main__":
    main()
