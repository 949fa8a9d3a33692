"""`fencepost why …`: where a run's time went, and what became of an occurrence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

import click

from fencepost.commandline.connection import UUID_PARAM, Connection, pass_connection
from fencepost.commandline.parameters import InstantParam, json_option
from fencepost.commandline.rendering import print_fields

if TYPE_CHECKING:
    from fencepost.explanation_client import OccurrenceExplanation, RunExplanation, WaitInterval


@click.command()
@click.argument("run_id", type=UUID_PARAM, required=False)
@click.option("--job", "job_id", type=UUID_PARAM, help="Instead of a run: the occurrence of this job")
@click.option("--at", type=InstantParam(), help="at this instant, its nominal time.")
@json_option
@pass_connection
def why(connection: Connection, run_id: UUID | None, job_id: UUID | None, at: datetime | None, as_json: bool) -> None:
    """Tell why a run waited, or what became of an occurrence that made none.

    The intervals follow each other without a gap; those marked late sum up to the run's lateness.

    \b
    Examples
      fencepost why 019a3f6e-7c1b-8003-9d0a-3f1f1c6a2b11
      fencepost why --job 019a3f6e-0000-7000-8000-000000000001 --at 2026-03-01T09:00:00Z
    """
    if run_id is not None and job_id is None and at is None:
        with connection.client() as client:
            run = client.why_run(run_id)
        print_fields(run, as_json) if as_json else _print_run(run)
    elif run_id is None and job_id is not None and at is not None:
        with connection.client() as client:
            occurrence = client.why_occurrence(job_id, at)
        print_fields(occurrence, as_json) if as_json else _print_occurrence(occurrence)
    else:
        raise click.UsageError("Give the id of a run, or --job with --at.")


def _print_occurrence(found: OccurrenceExplanation) -> None:
    click.echo(f"{_utc(found.at)}  {found.decision.replace('_', ' ')}: {found.detail}")
    if found.skipped_range is not None:
        skipped = found.skipped_range
        count = "" if skipped.count is None else f"{skipped.count} occurrences, "
        click.echo(f"skipped with it: {count}{_utc(skipped.first)} to {_utc(skipped.last)}")
    for name, instant in (("before", found.before), ("after", found.after)):
        if instant is not None:
            click.echo(f"the occurrence {name}: {_utc(instant)}")
    for other in found.other_run_ids:
        click.echo(f"made for the same time beside the schedule: run {other}")
    if found.incomplete:
        click.echo("the history is behind: this may not be the last word", err=True)
    if found.run is not None:
        _print_run(found.run)


def _print_run(run: RunExplanation) -> None:
    click.echo(f"run {run.run_id}, {run.state}: {run.summary}")
    if run.intervals:
        _print_intervals(run.intervals)
    if run.incomplete:
        click.echo("the history is behind: the newest is missing", err=True)


def _print_intervals(intervals: Sequence[WaitInterval]) -> None:
    rows = [
        (_utc(each.start), f"{each.ms / 1000:.3f}", "late" if each.late else "", each.cause, each.detail)
        for each in intervals
    ]
    head = ("from", "seconds", "", "cause", "")
    start, seconds, late, cause, _ = (max(map(len, column)) for column in zip(head, *rows, strict=True))
    for row in (head, *rows):
        line = (
            f"{row[0]:<{start}}  {row[1]:>{seconds}}  {row[2]:<{late}}  {row[3].replace('_', ' '):<{cause}}  {row[4]}"
        )
        click.echo(line.rstrip())


def _utc(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
