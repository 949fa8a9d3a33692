"""`fencepost jobs …`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import click
import msgspec

from fencepost.commandline.connection import UUID_PARAM, Connection, pass_connection
from fencepost.commandline.rendering import print_fields
from fencepost.job_spec import JobSpec, Schedule
from fencepost.models import CommandAnswer

Command = Callable[..., Any]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
key_option = click.option("--idempotency-key", metavar="KEY", help="The same key has the effect once.")


class InstantParam(click.ParamType):
    name = "instant"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            instant = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no instant such as 2026-03-01T09:00:00Z", param, ctx)
        if instant.tzinfo is None:
            self.fail(f"{value!r} needs an offset: which 09:00 is meant? Add Z or +01:00", param, ctx)
        return instant


class JsonParam(click.ParamType):
    name = "json"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return msgspec.json.decode(str(value))
        except (msgspec.DecodeError, UnicodeError) as error:
            self.fail(f"{value!r} is no JSON: {error}", param, ctx)


@click.group()
def jobs() -> None:
    """Create jobs, look at them and steer them."""


@jobs.command()
@click.option("--queue", required=True, help="Whose workers execute it.")
@click.option("--cron", metavar="FIELDS", help='Five cron fields or an alias: "*/15 * * * *", @daily.')
@click.option("--zone", help="The IANA zone that --cron is read in; UTC unless given.")
@click.option("--every", "every_seconds", type=int, metavar="SECONDS", help="Repeat at a fixed distance.")
@click.option("--at", "run_at", type=InstantParam(), help="Once, at an instant with an offset.")
@click.option("--in", "delay_seconds", type=float, metavar="SECONDS", help="Once, so long from now.")
@click.option("--payload", type=JsonParam(), help="JSON that the handler gets.")
@click.option("--name", help="For people.")
@click.option("--lane", type=click.Choice(["high", "normal", "low"]), default="normal", show_default=True)
@click.option("--max-attempts", type=int, default=5, show_default=True)
@click.option("--timeout", "timeout_seconds", type=float, metavar="SECONDS", help="Bound of one attempt.")
@click.option("--catch-up", type=click.Choice(["latest", "all", "none"]), default="latest", show_default=True)
@click.option("--overlap", type=click.Choice(["allow", "skip", "replace"]), default="allow", show_default=True)
@click.option(
    "--start-deadline", "start_deadline_seconds", type=float, metavar="SECONDS", help="Skip a run later than this."
)
@key_option
@json_option
@pass_connection
def create(
    connection: Connection,
    /,
    cron: str | None,
    zone: str | None,
    every_seconds: int | None,
    run_at: datetime | None,
    delay_seconds: float | None,
    idempotency_key: str | None,
    as_json: bool,
    **spec: Any,
) -> None:
    """Create a job, with exactly one of --cron, --every, --at and --in.

    \b
    Examples
      fencepost jobs create --queue mail --cron "0 9 * * mon-fri" --zone Europe/Berlin --payload '{"to": "ops"}'
      fencepost jobs create --queue sync --every 30 --overlap skip
      fencepost jobs create --queue mail --at 2026-12-24T18:00:00+01:00
      fencepost jobs create --queue mail --in 90 --idempotency-key order-4711-reminder
    """
    schedule = Schedule(cron=cron, zone=zone, every_seconds=every_seconds, run_at=run_at, delay_seconds=delay_seconds)
    with connection.client() as client:
        answer = client.create_job(JobSpec(schedule=schedule, **spec), idempotency_key=idempotency_key)
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


def _print_answer(answer: CommandAnswer, as_json: bool) -> None:
    print_fields(answer, as_json)
    if not answer.applied:
        click.echo("accepted, but not applied yet: look with `fencepost jobs show`", err=True)
