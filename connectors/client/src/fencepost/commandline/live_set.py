"""The live schedules, read from the server page by page; and the warning that a new job makes a second too crowded."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import click

from fencepost.client import FencepostClient
from fencepost.commandline.connection import Connection
from fencepost.forecast.forecast import make_forecast
from fencepost.forecast.schedule_set import ScheduledJob, ScheduleSet
from fencepost.schedules.errors import InvalidSchedule
from fencepost.schedules.zones import TZDATA_VERSION

WARNED_FOR = timedelta(days=7)
TIMES_SHOWN = 3


async def live_jobs(client: FencepostClient) -> AsyncIterator[ScheduledJob]:
    """All active jobs that the token may see, with a progress bar when they are many."""
    page = await client.live_schedules()
    if page.tzdata != TZDATA_VERSION:
        told = f"the server's time zones are {page.tzdata}, those here {TZDATA_VERSION}: times may differ"
        click.echo(told, err=True)
    with click.progressbar(length=0, label="reading", file=sys.stderr, hidden=page.next is None) as bar:
        while True:
            for live in page.schedules:
                schedule = bytes(live.schedule)
                yield ScheduledJob(str(live.job_id), live.queue, schedule, live.created_at, live.next_run_at)
            bar.update(len(page.schedules))
            if page.next is None:
                return
            page = await client.live_schedules(after=page.next)


def add_live(found: ScheduleSet, job: ScheduledJob) -> None:
    """Take it in. A server of another version may have schedules that this client does not know."""
    try:
        found.add(job)
    except InvalidSchedule as error:
        found.refuse(f"job {job.job_id}: {error}")


async def warn_of_crowded_seconds(connection: Connection, job_id: UUID, limit: int) -> None:
    """Say on standard error in which seconds of the next week a live job is one too many."""
    start = datetime.now(UTC).replace(microsecond=0)
    found, own = ScheduleSet(start, start + WARNED_FOR), ScheduleSet(start, start + WARNED_FOR)
    async with connection.async_client() as client:
        async for job in live_jobs(client):
            add_live(found, job)
            if job.job_id == str(job_id):
                add_live(own, job)
    over = make_forecast(found, observed={}, limit=limit, added=own).over_limit
    if over is None or not over.crowded:
        return
    shown = (f"{busy.runs} at {busy.at:%Y-%m-%dT%H:%M:%SZ}" for busy in over.first_crowded[:TIMES_SHOWN])
    more = ", …" if over.crowded > TIMES_SHOWN else ""
    click.echo(
        f"warning: it fires in {over.crowded} second(s) of the next week that have more than {limit} runs: "
        f"{', '.join(shown)}{more}. Spread it with --jitter, or with H for its minute; see `fencepost forecast`",
        err=True,
    )
