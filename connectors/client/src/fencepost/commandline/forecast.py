"""`fencepost forecast`: what the schedules will ask for in the next days, second by second."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from fencepost.client import FencepostClient
from fencepost.commandline.connection import Connection, pass_connection
from fencepost.commandline.declared_jobs import HorizonParam
from fencepost.commandline.forecast_text import forecast_lines
from fencepost.commandline.live_set import add_live, live_jobs
from fencepost.commandline.parameters import InstantParam, json_option
from fencepost.declarations.application import found_jobs
from fencepost.declarations.job_file import read_job_file
from fencepost.errors import FencepostError
from fencepost.forecast.forecast import Forecast, make_forecast
from fencepost.forecast.schedule_files import add_file, declared_jobs
from fencepost.forecast.schedule_set import ScheduledJob, ScheduleSet

EXIT_OVER_LIMIT = 4
LONGEST_HORIZON = timedelta(days=31)  # 42 MB of seconds
MANY_QUEUES = 50  # from which on there is a progress bar

# Of first attempts: from the lease to the end, no time-outs and no waiting for a retry in between.
OBSERVED = """
SELECT queue, avg((epoch_us(finished_at) - epoch_us(first_leased_at)) / 1000000.0) AS seconds
FROM runs WHERE state = 'completed' AND attempt = 1 AND finished_at > now() - INTERVAL 7 DAY
GROUP BY queue
"""
MOST_QUEUES = 10_000

file_path = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("file", required=False, type=file_path)
@click.option("--with", "added", type=file_path, help="A jobs.yaml to add to the server's jobs, before it is applied.")
@click.option("--horizon", type=HorizonParam(), default="7d", show_default=True, help="How far to look, 31d at most.")
@click.option("--from", "start", type=InstantParam(), help="Where the horizon starts.  [default: now]")
@click.option(
    *("--seconds-per-run", "usual_s"),
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="How long a run takes, of a queue whose history says nothing.",
)
@click.option("--limit-per-second", "limit", type=click.IntRange(1), help="Warn of seconds with more runs than that.")
@click.option("--fail", is_flag=True, help=f"Exit with {EXIT_OVER_LIMIT} when a second is over the limit.")
@json_option
@pass_connection
def forecast(
    connection: Connection,
    file: Path | None,
    added: Path | None,
    horizon: timedelta,
    start: datetime | None,
    usual_s: float,
    limit: int | None,
    fail: bool,
    as_json: bool,
) -> None:
    """Count the occurrences of the live schedules, or of a FILE's, in every second of the next days.

    Without FILE it asks the server: for all active jobs that the token may see, and for how long runs of each queue
    took in the last week. With FILE it needs no server. FILE is a jobs.yaml, or has a line of JSON a schedule: {"expr",
    "zone", "queue", "count"}, or {"schedule", "queue"} as POST /v1/jobs takes them.

    \b
    It tells
      the load, by second, minute and hour of the day; the worst seconds, and whose they are
      the nights on which clocks are changed, and the runs that they move
      the slots that each queue's workers need, on average and at the worst moment
      what `H` or jitter on the heaviest schedules of the worst second would save
      the seconds over --limit-per-second, and with --with those of them in which the file's jobs fire

    \b
    Examples
      fencepost forecast
      fencepost forecast --horizon 14d --limit-per-second 5000 --fail
      fencepost forecast --with jobs.yaml --limit-per-second 5000
      fencepost forecast examples/jobs.yaml --from 2026-10-24T00:00:00Z --horizon 2d
      fencepost forecast examples/schedules.jsonl --seconds-per-run 30 --json | jq .worstSeconds

    Retries, triggers and backfills are not in it, nor what jobs will be created.
    """
    if horizon > LONGEST_HORIZON:
        raise click.BadParameter("must be at most 31d", param_hint="--horizon")
    if fail and limit is None:
        raise click.UsageError("--fail goes with --limit-per-second")
    begin = (start or datetime.now(UTC)).astimezone(UTC).replace(microsecond=0)
    found, extra, observed = ScheduleSet(begin, begin + horizon), ScheduleSet(begin, begin + horizon), {}
    if file is None:
        observed = asyncio.run(_ask(connection, found, extra, added))
    elif added is not None:
        raise click.UsageError("--with adds to the server's jobs; FILE stands for them")
    else:
        add_file(found, file)
    queues = len(found.queues())
    with click.progressbar(length=queues, label="counting", file=sys.stderr, hidden=queues < MANY_QUEUES) as bar:
        made = make_forecast(
            found, observed=observed, usual_s=usual_s, limit=limit, added=extra, on_queue=lambda: bar.update(1)
        )
    click.echo(msgspec.json.format(msgspec.json.encode(made)) if as_json else "\n".join(forecast_lines(made)))
    _end(made, fail)


def _end(made: Forecast, fail: bool) -> None:
    if fail and made.over_limit is not None and made.over_limit.seconds:
        raise click.exceptions.Exit(EXIT_OVER_LIMIT)


async def _ask(connection: Connection, found: ScheduleSet, extra: ScheduleSet, added: Path | None) -> dict[str, float]:
    """Take in the server's jobs and those that a file adds; returns how long the runs of each queue take."""
    async with connection.async_client() as client:
        declared = [] if added is None else await _declared(client, found.start, added)
        replaced = {job.job_id for job in declared}
        async for job in live_jobs(client):
            if job.job_id not in replaced:
                add_live(found, job)
        for job in declared:
            found.add(job)
            extra.add(job)
        return await _observed(client)


async def _declared(client: FencepostClient, start: datetime, file: Path) -> list[ScheduledJob]:
    """The jobs of a file, under the ids that the server knows them by."""
    tenant = (await client.whoami()).tenant
    declared = read_job_file(file, tenant=tenant)
    known, _ = await found_jobs(client, declared.name)
    ids = {job.declared_as: str(job.job_id) for job in known if job.state != "deleted"}
    jobs = declared_jobs(declared, start, tenant)
    names = (f"{declared.name}/{name}" for name in declared.jobs)
    return [job._replace(job_id=ids.get(name, job.job_id)) for name, job in zip(names, jobs, strict=True)]


async def _observed(client: FencepostClient) -> dict[str, float]:
    try:
        answer = await client.query(OBSERVED, limit=MOST_QUEUES)
    except FencepostError as error:
        click.echo(f"how long runs take is not known, so --seconds-per-run it is: {error}", err=True)
        return {}
    rows: Any = answer.rows
    return {queue: float(seconds) for queue, seconds in rows if seconds is not None and float(seconds) > 0}
