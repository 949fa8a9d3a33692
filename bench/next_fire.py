"""How many next fires a core computes a second: on the real corpus, for sparse schedules, and for refusals.

    python -m bench.next_fire [--seconds 3]

The corpus is examples/schedules.jsonl; lines in other dialects, which Fencepost refuses, are left out of the rate.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from time import perf_counter, process_time

import click

from schemas.cron import cron_expression
from schemas.errors import InvalidSchedule
from schemas.schedule import Schedule, next_fire, parse_schedule

CORPUS = Path(__file__).parent.parent / "examples" / "schedules.jsonl"
SPARSE = ("0 0 29 2 *", "* * 29 2 *", "0 0 * 2 1#5", "59 23 31 12 *", "0 0 L 2 5#5")
NEVER = ("0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31 2,4,6,9,11 ?", "* * 30-31 2 *", "*/7 */5 31 2 *")
START = datetime(2024, 1, 1, tzinfo=UTC)
JOB_ID = "0190a6c8-0000-7000-8000-000000000001"


def corpus(path: Path = CORPUS) -> tuple[list[Schedule], int]:
    """The corpus's schedules, and how many lines are no schedules of ours."""
    schedules: list[Schedule] = []
    refused = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        try:
            schedules.append(parse_schedule({"cron": entry["expr"], "zone": entry["zone"]}, job_id=JOB_ID))
        except InvalidSchedule:
            refused += 1
    return schedules, refused


def fires_per_s(schedules: list[Schedule], seconds: float) -> float:
    """Walk every schedule along from fire to fire, round and round, for about that long."""
    cursors = [START] * len(schedules)
    began = perf_counter()
    for rounds in count(1):
        for index, schedule in enumerate(schedules):
            fire = next_fire(schedule, cursors[index], job_id=JOB_ID, created_at=START)
            cursors[index] = fire or START
        elapsed = perf_counter() - began
        if elapsed >= seconds:
            return rounds * len(schedules) / elapsed
    raise AssertionError("count() does not end")


def slowest_ms(check: Callable[[str], object], exprs: tuple[str, ...]) -> float:
    return max(_elapsed_ms(check, expr) for expr in exprs)


def _elapsed_ms(check: Callable[[str], object], expr: str) -> float:
    began = process_time()  # other processes on the machine do not count
    check(expr)
    return (process_time() - began) * 1000


def refuse(expr: str) -> None:
    try:
        cron_expression(expr, JOB_ID)
    except InvalidSchedule:
        return
    raise AssertionError(f"{expr} was accepted")


@click.command()
@click.option("--seconds", default=3.0, show_default=True, help="How long to measure each rate.")
def main(seconds: float) -> None:
    """Print the rates."""
    refused_ms = slowest_ms(refuse, NEVER)
    schedules, refused = corpus()
    fires_per_s(schedules, 0)  # fills the caches: a zone costs some milliseconds once
    click.echo(f"corpus: {fires_per_s(schedules, seconds):,.0f} next fires/s ({len(schedules)} schedules)")
    click.echo(f"refused lines of other dialects: {refused}")
    for expr in SPARSE:
        schedule = parse_schedule({"cron": expr, "zone": "America/New_York"}, job_id=JOB_ID)
        click.echo(f"sparse {expr!r}: {fires_per_s([schedule], seconds / len(SPARSE)):,.0f} next fires/s")
    click.echo(f"never firing: refused in {refused_ms:.2f} ms at most")


if __name__ == "__main__":
    main()
