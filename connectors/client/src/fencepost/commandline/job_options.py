"""The options that say what a job is: all of them to create one, those that change to update it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec

from fencepost.commandline.parameters import InstantParam, JsonParam
from fencepost.job_spec import JobSpec, Schedule, convert
from fencepost.models import Job

# Exactly one of these says when.
KINDS = ("cron", "every_seconds", "run_at", "delay_seconds")

_OPTIONS = (
    click.option("--queue", help="Whose workers execute it."),
    click.option("--cron", metavar="FIELDS", help='Five cron fields or an alias: "*/15 * * * *", @daily.'),
    click.option("--zone", help="The IANA zone that --cron is read in; UTC unless given."),
    click.option("--every", "every_seconds", type=int, metavar="SECONDS", help="Repeat at a fixed distance."),
    click.option("--at", "run_at", type=InstantParam(), help="Once, at an instant with an offset."),
    click.option("--in", "delay_seconds", type=float, metavar="SECONDS", help="Once, so long from now."),
    click.option("--start-at", type=InstantParam(), help="No occurrence before this instant."),
    click.option("--end-at", type=InstantParam(), help="No occurrence at or after this instant."),
    click.option(
        "--exclude-date",
        "exclude_dates",
        multiple=True,
        metavar="DATE",
        help="No occurrence on this day, as 2026-12-25.",
    ),
    click.option("--jitter", "jitter_seconds", type=float, metavar="SECONDS", help="Spread runs over so long."),
    click.option("--payload", type=JsonParam(), help="JSON that the handler gets."),
    click.option("--name", help="For people."),
    click.option("--lane", type=click.Choice(["high", "normal", "low"]), show_default="normal"),
    click.option("--max-attempts", type=int, show_default="5"),
    click.option("--timeout", "timeout_seconds", type=float, metavar="SECONDS", help="Bound of one attempt."),
    click.option(
        "--concurrency-key",
        metavar="KEY",
        help="Its queue may limit how many runs with the same key are leased at once, see `fencepost queues set`.",
    ),
    click.option(
        "--catch-up",
        type=click.Choice(["latest", "all", "none"]),
        show_default="latest",
        help="Of what passed while no scheduler ran.",
    ),
    click.option(
        "--catch-up-limit", type=int, metavar="N", show_default="1000", help="How many `all` makes up for: the newest."
    ),
    click.option(
        "--overlap",
        type=click.Choice(["allow", "skip", "replace"]),
        show_default="allow",
        help="When the run before is not over.",
    ),
    click.option(
        "--start-deadline", "start_deadline_seconds", type=float, metavar="SECONDS", help="Skip a run later than this."
    ),
    click.option(
        "--retry-backoff",
        type=click.Choice(["exponential", "linear", "fixed"]),
        show_default="exponential",
        help="How the delay before a retry grows.",
    ),
    click.option(
        "--retry-base",
        "retry_base_seconds",
        type=float,
        metavar="SECONDS",
        show_default="1",
        help="What it grows from.",
    ),
    click.option(
        "--retry-max", "retry_max_seconds", type=float, metavar="SECONDS", show_default="600", help="Its bound."
    ),
)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options, each None (or empty) when it is not given."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def new_spec(options: Mapping[str, Any]) -> JobSpec:
    """The job that the options describe. Raises InvalidInput when they do not say when."""
    schedule, rest = _split(options)
    if "queue" not in rest:
        raise click.UsageError("Whose workers shall execute it? Give --queue.")
    return JobSpec(schedule=Schedule(**schedule), **rest)


def changed_spec(job: Job, options: Mapping[str, Any]) -> JobSpec:
    """The job as it is, but for what the options say. Another kind of schedule replaces the old one as a whole."""
    schedule, rest = _split(options)
    if not schedule and not rest:
        raise click.UsageError("What shall change? Give at least one option of `fencepost jobs create`.")
    old = convert(job.schedule, Schedule)
    if any(kind in schedule and getattr(old, kind) is None for kind in KINDS):
        old = Schedule()
    told = (name for name in JobSpec.__struct_fields__ if name in job.__struct_fields__)
    own = {name: getattr(job, name) for name in told if getattr(job, name) is not None}
    return JobSpec(**{**own, **rest, "schedule": msgspec.structs.replace(old, **schedule)})


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was given, of the schedule and of the rest."""
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    schedule = {name: given.pop(name) for name in Schedule.__struct_fields__ if name in given}
    return schedule, given
