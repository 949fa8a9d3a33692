"""Whether anything grows: recurring jobs at a share of what the machine can do, for an hour, watched minute by minute.

    python -m bench.soak [--minutes 60] [--load 0.7] [--rate RUNS_A_SECOND] [--period 60]

The load is jobs that fire every minute, spread evenly over it, executed by one worker process. Their number is raised
until the stack and the worker use that share of the machine's CPU time: a run takes the less the more there are, so
what one takes at a small rate does not tell where that is. Then the rate is held. Each minute is a sample: how late
runs started, the sizes of the ledger's hot tables and of their indexes, and of each role the memory that is its own and
its open files. What is told is the median of the last quarter beside that of the second; the first quarter is warming
up. The history and the topics grow, for that is what they are for.
"""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import click
import psutil
import psycopg

from bench.cluster import cluster, cpu_seconds, report, say, scalar, wait_until
from bench.compare import Figures
from bench.cpu import with_children_s
from bench.steady_worker import SteadyWorker, steady_worker
from fencepost import CommandProducer, JobSpec, every
from fencepostd.local import LOCAL_TENANT, Local

QUEUE = "soak"
SAMPLE_S = 60.0
FIRST_RATE = 100.0  # runs a second
STEP = 1.5  # at most so many times as much
NEAR = 0.95  # of the share is near enough
WARM_UP_S, SETTLE_S, LOOK_S = 30.0, 10.0, 20.0
TABLES = ("runs", "jobs", "outbox", "applied_commands", "lease_requests", "partitions")
APART = ("kafka",)  # whose files grow with the topics


class Load:
    """The recurring jobs, of which there may be made more."""

    def __init__(self, local: Local, period_s: int) -> None:
        self._local, self._period_s, self._jobs = local, period_s, 0

    def raise_to(self, rate_per_s: float) -> None:
        """So many runs a second from now on. The new jobs lie evenly between the old ones."""
        wanted = round(rate_per_s * self._period_s)
        more, anchor = wanted - self._jobs, datetime(2026, 1, 1, tzinfo=UTC)
        step = timedelta(seconds=self._period_s) / max(more, 1)
        with CommandProducer(self._local.stack.bootstrap, tenant=LOCAL_TENANT) as producer:
            for number in range(more):
                schedule = every(self._period_s, anchor=anchor + number * step)
                producer.create_job(JobSpec(queue=QUEUE, schedule=schedule))
        self._jobs = wanted
        wait_until(self._local.stack.dsn, f"SELECT count(*) FROM jobs WHERE queue = '{QUEUE}'", wanted, 600)


class Watch:
    """What there is to see meanwhile."""

    def __init__(self, local: Local, worker: SteadyWorker) -> None:
        self._local, self._worker = local, worker

    def sample(self, seconds: float) -> Figures:
        """What the next seconds bring."""
        began = time.monotonic()
        self._worker.lateness_ms()
        time.sleep(seconds)
        late = self._worker.lateness_ms()
        figures = {"runs/s": len(late) / (time.monotonic() - began)}
        for name, at in (("min", 0.0), ("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            figures[f"lateness {name}, ms"] = late[int(at * (len(late) - 1))] if late else float("nan")
        return {**figures, **self._sizes(), **self._processes()}

    def busy_s(self) -> float:
        """The CPU time that the stack and the worker have used so far, whatever else this machine does."""
        return sum(cpu_seconds(self._local).values()) + with_children_s(self._worker.pid)

    def _sizes(self) -> Figures:
        with psycopg.connect(self._local.stack.dsn, autocommit=True) as conn:
            return {
                f"{what} of {table}, MB": scalar(conn, f"SELECT {function}('{table}')") / 1e6
                for table in TABLES
                for what, function in (("rows", "pg_table_size"), ("indexes", "pg_indexes_size"))
            }

    def _processes(self) -> Figures:
        figures: Figures = {}
        for part in self._local.stack.status():
            if part.pid is None or part.name in APART:
                continue
            process = psutil.Process(part.pid)
            family = [process, *process.children(recursive=True)]
            figures[f"memory of {part.name}, MB"] = sum(map(_own_bytes, family)) / 1e6
            figures[f"files of {part.name}, open"] = float(sum(map(_open_files, family)))
        return figures


def _own_bytes(process: psutil.Process) -> float:
    """What it has for itself: Postgres's sessions share most of what they are resident with."""
    with suppress(psutil.NoSuchProcess):
        return float(process.memory_full_info().uss)
    return 0.0


def _open_files(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):
        return int(process.num_fds())
    return 0


def measure(local: Local, minutes: int, share: float, rate: float | None, period_s: int) -> Figures:
    load = Load(local, period_s)
    with steady_worker(local, QUEUE) as worker:
        watch = Watch(local, worker)
        if rate is None:
            rate = rate_that_uses(share, load, watch)
        load.raise_to(rate)
        return {"asked for, runs/s": rate, "watched, minutes": float(minutes), **soak(watch, minutes)}


def rate_that_uses(share: float, load: Load, watch: Watch) -> float:
    """The runs a second at which the stack and the worker use that share of all processors."""
    rate, settle_s = FIRST_RATE, WARM_UP_S
    while True:
        load.raise_to(rate)
        watch.sample(settle_s)
        busy, began = watch.busy_s(), time.monotonic()
        runs = watch.sample(LOOK_S)["runs/s"]
        used = (watch.busy_s() - busy) / (time.monotonic() - began) / (psutil.cpu_count() or 1)
        say(f"soak: {runs:,.0f} runs/s use {used:.0%} of this machine")
        if used >= NEAR * share:
            return rate
        rate, settle_s = rate * min(STEP, share / used), SETTLE_S


def soak(watch: Watch, minutes: int) -> Figures:
    samples = []
    for minute in range(minutes):
        samples.append(sample := watch.sample(SAMPLE_S))
        hot = ("runs/s", "lateness p50, ms", "lateness p99, ms", "lateness max, ms", "rows of runs, MB")
        told = ", ".join(f"{name} {sample[name]:,.1f}" for name in hot)
        say(f"soak, minute {minute + 1}: {told}")
    quarter = max(1, minutes // 4)
    early, late = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    figures: Figures = {"earliest of all, ms": min(each["lateness min, ms"] for each in samples)}
    for name in samples[0]:
        before, after = (statistics.median(each[name] for each in part) for part in (early, late))
        figures |= {name: after, f"{name}, ratio to the second quarter": after / before if before else 1.0}
    return figures


@click.command(help=__doc__)
@click.option("--minutes", default=60, show_default=True)
@click.option("--load", "share", default=0.7, show_default=True, help="of the machine's CPU time")
@click.option("--rate", type=float, help="runs a second, instead of that share")
@click.option("--period", default=60, show_default=True, help="seconds after which each job fires again")
def main(minutes: int, share: float, rate: float | None, period: int) -> None:
    with cluster() as local:
        report("soak", measure(local, minutes, share, rate, period))


if __name__ == "__main__":
    main()
