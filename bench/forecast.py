"""How fast `fencepost forecast` counts: the real schedules, repeated over many queues, and every tenth of them with H.

    python -m bench.forecast [--jobs 1000000] [--queues 5000] [--days 7]

By CPU time. Taking jobs in (they are made up meanwhile) is paid for each of them, counting for each distinct schedule
and each queue that has it.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle
from time import process_time
from typing import Any

import click

from bench.cluster import report
from bench.next_fire import CORPUS
from fencepost.forecast.forecast import make_forecast
from fencepost.forecast.schedule_set import ScheduledJob, ScheduleSet
from fencepost.ids import new_id
from fencepost.schedules.errors import InvalidSchedule
from fencepost.schedules.schedule import parse_schedule

START = datetime(2026, 10, 22, tzinfo=UTC)  # clocks are changed on the 25th
H_OF_EVERY = 10


def jobs(count: int, queues: int) -> Iterator[ScheduledJob]:
    """By how often each schedule is seen. Neighbours share a queue."""
    texts = cycle(schedules())
    for number in range(count):
        text = b'{"cron": "H H * * *", "zone": "Europe/Paris"}' if number % H_OF_EVERY == 0 else next(texts)
        yield ScheduledJob(str(new_id()), f"queue-{number * queues // count}", text, START)


def schedules() -> list[bytes]:
    found = []
    for line in map(json.loads, CORPUS.read_text(encoding="utf-8").splitlines()):
        form = {"cron": line["expr"], "zone": line["zone"] or "UTC"}
        try:
            parse_schedule(form, job_id=None)
        except InvalidSchedule:
            continue
        found += [json.dumps(form).encode()] * line["count"]
    return found


@click.command()
@click.option("--jobs", "count", default=1_000_000, show_default=True)
@click.option("--queues", default=5_000, show_default=True)
@click.option("--days", default=7, show_default=True)
def main(count: int, queues: int, days: int) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = ScheduleSet(START, START + timedelta(days=days))
    started = process_time()
    for job in jobs(count, queues):
        found.add(job)
    taken = process_time()
    made = make_forecast(found, observed={}, limit=1_000)
    counted = process_time()
    figures: dict[str, Any] = {"jobs": count, "queues": queues, "days": days, "runs": made.runs}
    figures |= {"distinct schedules": made.distinct, "taken in, jobs/s": count / (taken - started)}
    figures |= {"counted, jobs/s": count / (counted - taken), "all of it, jobs/s": count / (counted - started)}
    figures["memory, MB"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    report("forecast", figures)


if __name__ == "__main__":
    main()
