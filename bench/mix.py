"""How late runs start in the busiest second of the real schedules, when that second fills the machine.

    python -m bench.mix [--load 0.8] [--drain 10000] [--rounds 1]

The real schedules are those of examples/schedules.jsonl; the forecast finds the second of a week in which most of them
fire, a top of the hour. Crons fire on whole minutes, so the 59 seconds on both sides of it are empty: the peak is one
second, not a minute. Its jobs are scaled, each schedule by its share, until that second holds `load` of what this
machine drains in a second, as measured just before with one-offs that were long due.

No top of the hour is waited for. Each job is one of the peak's crons with its minutes, and its hour unless it has all
of them, moved so that it fires at the next whole minute; its zone stays, its days are all. To the scheduler that is the
load of the peak: jobs that are due in one second, each of which leases one run, and has its next occurrence decided in
its zone at the same time. Schedules that do not fire at the peak cost nothing then, and are left out.

The floor is that of bench.lateness: a bare client that leases the very runs by primary key, while the owners decide.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from bench.benchmark import Benchmark, Stage
from bench.cluster import wait_until
from bench.compare import FLOOR, OURS, Contender, Figures, Lateness
from bench.drain import drain, fill
from bench.lateness import bare_leases, figures_of, worked
from bench.next_fire import CORPUS
from fencepost import CommandProducer, JobSpec, cron, every
from fencepost.forecast.firings import Firing, fire_seconds
from fencepost.forecast.forecast import make_forecast
from fencepost.forecast.schedule_files import add_file
from fencepost.forecast.schedule_set import ScheduleSet
from fencepost.job_spec import Schedule
from fencepost.schedules.schedule_kinds import Cron
from fencepost.schedules.zones import zone
from fencepostd.local import LOCAL_TENANT, Local

WEEK = datetime(2026, 11, 9, tzinfo=UTC), datetime(2026, 11, 16, tzinfo=UTC)  # no clock is changed in it
A_DAY_S = 86_400


class Size(NamedTuple):
    """load: of the second's drain, which is measured with so many runs. notice: seconds at least until the peak.

    step: the peak comes at a multiple of so many seconds; crons take a minute.
    """

    load: float = 0.8
    drain: int = 10_000
    notice: float = 10.0
    step: int = 60


class Peak(NamedTuple):
    """A second, and what fires in it: each firing with how many jobs have it."""

    at: datetime
    firings: Sequence[tuple[Firing, int]]


def contenders(stage: Stage, size: Size) -> dict[str, Contender]:
    peak, numbers = find_peak(), count()

    @cache
    def drained_per_s() -> float:
        queue = f"mix-drain-{next(numbers)}"
        fill(stage.local, queue, size.drain)
        return size.drain / drain(stage.local, queue, size.drain)

    def schedules() -> list[Schedule]:
        moment = next_moment(size.notice, size.step)
        firings = scaled(peak, max(1, round(size.load * drained_per_s())))
        return [moved(firing, peak.at, moment) for firing in firings]

    def ours() -> Figures:
        drained_s = drained_per_s()
        with registered(stage.local, f"mix-{next(numbers)}", schedules()) as (queue, runs):
            figures = of_the_peak(runs, worked(stage.local, queue, runs, size.step + size.notice))
        return {**figures, "drained without schedules, runs/s": drained_s}

    def bare() -> Figures:
        with registered(stage.local, f"mix-floor-{next(numbers)}", schedules()) as (queue, runs):
            return of_the_peak(runs, asyncio.run(bare_leases(stage.dsn, queue)))

    return {OURS: ours, FLOOR: bare}


def of_the_peak(runs: int, lateness_ms: list[float]) -> Figures:
    """The rate is that from the due time, which all have, to the last one's start."""
    return {**figures_of("peak", Lateness(runs, lateness_ms)), "peak, runs/s": runs / max(lateness_ms) * 1000}


def find_peak() -> Peak:
    """The worst second of an ordinary week, were each schedule a job in every file that has it."""
    found = ScheduleSet(*WEEK)
    add_file(found, CORPUS)
    at = make_forecast(found, observed={}).worst_seconds[0].at
    second = int(at.timestamp())
    return Peak(at, [each for each in found.distinct().items() if second in fire_seconds(each[0], second)])


def scaled(peak: Peak, runs: int) -> Iterator[Firing]:
    """So many firings of the peak, each as often as is its share."""
    total, seen, given = sum(jobs for _, jobs in peak.firings), 0, 0
    for firing, jobs in peak.firings:
        seen += jobs
        for _ in range(given, seen * runs // total):
            yield firing
        given = seen * runs // total


def next_moment(notice_s: float, step_s: int) -> datetime:
    return datetime.fromtimestamp(-(-(time.time() + notice_s) // step_s) * step_s, UTC)


def moved(firing: Firing, peak: datetime, moment: datetime) -> Schedule:
    """A schedule that fires first at `moment`, and from then on as often in an hour as the peak's does in its own."""
    assert isinstance(firing.schedule, Cron)
    assert firing.cron is not None
    if moment.second:  # no cron fires then
        return every(A_DAY_S, anchor=moment)
    there = zone(firing.schedule.zone)
    then, now = peak.astimezone(there), moment.astimezone(there)
    old = [minute for minute in range(60) if firing.cron.times >> (then.hour * 60 + minute) & 1]
    minutes = ",".join(str((minute + now.minute - then.minute) % 60) for minute in old)
    hours = "*" if firing.cron.every_hour else now.hour
    return replace(cron(f"{minutes} {hours} * * *", firing.schedule.zone), start_at=moment)


@contextmanager
def registered(local: Local, queue: str, schedules: Sequence[Schedule]) -> Iterator[tuple[str, int]]:
    """Jobs with these schedules, each with its first run pending: the queue, and how many. Deleted afterwards."""
    with CommandProducer(local.stack.bootstrap, tenant=LOCAL_TENANT) as producer:
        jobs = [producer.create_job(JobSpec(queue=queue, schedule=each)) for each in schedules]
    runs = f"SELECT count(*) FROM runs WHERE queue = '{queue}'"
    wait_until(local.stack.dsn, runs, len(jobs))
    wait_until(local.stack.dsn, "SELECT count(*) FROM outbox", 0)
    try:
        yield queue, len(jobs)
    finally:
        with CommandProducer(local.stack.bootstrap, tenant=LOCAL_TENANT) as producer:
            for job in jobs:
                producer.delete(job)
        wait_until(local.stack.dsn, runs, 0)
        wait_until(local.stack.dsn, "SELECT count(*) FROM outbox", 0)


BENCH = Benchmark("mix", "The real schedules' busiest second, as large as the machine.", Size(), contenders, rounds=1)

if __name__ == "__main__":
    BENCH.main()
