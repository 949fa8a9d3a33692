"""`fencepost jobs …`."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any
from uuid import UUID

import click

from fencepost.commandline.connection import UUID_PARAM, Connection, pass_connection
from fencepost.commandline.job_options import changed_spec, job_options, new_spec
from fencepost.commandline.live_set import warn_of_crowded_seconds
from fencepost.commandline.parameters import InstantParam, JsonParam, json_option, key_option
from fencepost.commandline.rendering import print_fields, print_structs
from fencepost.models import BackfillAnswer, BackfilledRun, CommandAnswer


@click.group()
def jobs() -> None:
    """Create jobs, look at them and steer them."""


@jobs.command()
@job_options
@click.option("--warn-per-second", type=click.IntRange(1), metavar="N", help="Warn of seconds with more than N runs.")
@key_option
@json_option
@pass_connection
def create(
    connection: Connection,
    /,
    warn_per_second: int | None,
    idempotency_key: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Create a job, with exactly one of --cron, --every, --at and --in.

    \b
    Examples
      fencepost jobs create --queue mail --cron "0 9 * * mon-fri" --zone Europe/Berlin --payload '{"to": "ops"}'
      fencepost jobs create --queue sync --every 30 --overlap skip --retry-backoff fixed --retry-base 5
      fencepost jobs create --queue bill --cron "0 6 1 * *" --exclude-date 2027-01-01 --catch-up all
      fencepost jobs create --queue mail --at 2026-12-24T18:00:00+01:00
      fencepost jobs create --queue mail --in 90 --idempotency-key order-4711-reminder
      fencepost jobs create --queue mail --cron "0 0 * * *" --warn-per-second 5000

    With --warn-per-second all live schedules are read, and the seconds of the next week in which the new job fires are
    counted; the job is created all the same.
    """
    spec = new_spec(options)
    with connection.client() as client:
        answer = client.create_job(spec, idempotency_key=idempotency_key)
    _print_answer(answer, as_json)
    if warn_per_second is not None and answer.applied:
        asyncio.run(warn_of_crowded_seconds(connection, answer.job_id, warn_per_second))


@jobs.command()
@click.argument("job_id", type=UUID_PARAM)
@job_options
@click.option("--effective-from", type=InstantParam(), help="The new schedule fires only after this instant.")
@key_option
@json_option
@pass_connection
def update(
    connection: Connection,
    /,
    job_id: UUID,
    effective_from: datetime | None,
    idempotency_key: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Change a job: what the options say; the rest stays.

    Its pending run is replaced at once, unless a worker has it already. Nothing fires for the past.

    \b
    Examples
      fencepost jobs update 019a3f6e-7c1b-7d7e-9d0a-3f1f1c6a2b11 --cron "0 10 * * mon-fri"
      fencepost jobs update 019a3f6e-7c1b-7d7e-9d0a-3f1f1c6a2b11 --max-attempts 3 --effective-from 2026-07-01T00:00:00Z
    """
    with connection.client() as client:
        spec = changed_spec(client.job(job_id), options)
        answer = client.update_job(job_id, spec, effective_from=effective_from, idempotency_key=idempotency_key)
    _print_answer(answer, as_json)


@jobs.command()
@click.argument("job_id", type=UUID_PARAM)
@json_option
@pass_connection
def show(connection: Connection, job_id: UUID, as_json: bool) -> None:
    """Show a job: its schedule, its state and its next run.

    \b
    Example
      fencepost jobs show 019a3f6e-7c1b-7d7e-9d0a-3f1f1c6a2b11
    """
    with connection.client() as client:
        print_fields(client.job(job_id), as_json)


@jobs.command()
@click.argument("job_id", type=UUID_PARAM)
@key_option
@json_option
@pass_connection
def pause(connection: Connection, job_id: UUID, idempotency_key: str | None, as_json: bool) -> None:
    """Put a job's pending runs aside, until `resume`."""
    with connection.client() as client:
        _print_answer(client.pause_job(job_id, idempotency_key=idempotency_key), as_json)


@jobs.command()
@click.argument("job_id", type=UUID_PARAM)
@key_option
@json_option
@pass_connection
def resume(connection: Connection, job_id: UUID, idempotency_key: str | None, as_json: bool) -> None:
    """Let a paused job go on. Occurrences that passed meanwhile are skipped."""
    with connection.client() as client:
        _print_answer(client.resume_job(job_id, idempotency_key=idempotency_key), as_json)


@jobs.command()
@click.argument("job_id", type=UUID_PARAM)
@key_option
@json_option
@pass_connection
def delete(connection: Connection, job_id: UUID, idempotency_key: str | None, as_json: bool) -> None:
    """End a job and drop its pending runs. A run that is being executed may finish."""
    with connection.client() as client:
        _print_answer(client.delete_job(job_id, idempotency_key=idempotency_key), as_json)


@jobs.command()
@click.argument("job_id", type=UUID_PARAM)
@click.option("--payload", type=JsonParam(), help="JSON instead of the job's own.")
@key_option
@json_option
@pass_connection
def trigger(connection: Connection, job_id: UUID, payload: Any, idempotency_key: str | None, as_json: bool) -> None:
    """Run a job now, beside its schedule.

    \b
    Example
      fencepost jobs trigger 019a3f6e-7c1b-7d7e-9d0a-3f1f1c6a2b11 --payload '{"to": "me"}'
    """
    with connection.client() as client:
        _print_answer(client.trigger_job(job_id, payload, idempotency_key=idempotency_key), as_json)


@jobs.command()
@click.argument("job_id", type=UUID_PARAM)
@click.option("--from", "after", type=InstantParam(), required=True, help="Occurrences after this instant,")
@click.option("--to", "through", type=InstantParam(), required=True, help="up to and with this one; not in the future.")
@click.option("--payload", type=JsonParam(), help="JSON instead of the job's own.")
@click.option("--dry-run", is_flag=True, help="Only tell which occurrences these are.")
@key_option
@json_option
@pass_connection
def backfill(
    connection: Connection,
    job_id: UUID,
    after: datetime,
    through: datetime,
    payload: Any,
    dry_run: bool,
    idempotency_key: str | None,
    as_json: bool,
) -> None:
    """Run the occurrences of a range again, beside the schedule: at most 1,000.

    They run one after the other, oldest first, unless the job allows overlap.

    \b
    Example
      fencepost jobs backfill 019a3f6e-7c1b-7d7e-9d0a-3f1f1c6a2b11 --from 2026-03-01T00:00:00Z --to 2026-03-02T00:00:00Z
    """
    with connection.client() as client:
        answer = client.backfill(job_id, after, through, payload, dry_run=dry_run, idempotency_key=idempotency_key)
    if as_json or not answer.applied:
        _print_answer(answer, as_json)
        return
    print_structs(answer.runs, BackfilledRun)
    click.echo(f"{answer.count} runs {'would be made' if dry_run else 'were made'}", err=True)


def _print_answer(answer: CommandAnswer | BackfillAnswer, as_json: bool) -> None:
    print_fields(answer, as_json)
    if not answer.applied:
        click.echo("accepted, but not applied yet: look with `fencepost jobs show`", err=True)
