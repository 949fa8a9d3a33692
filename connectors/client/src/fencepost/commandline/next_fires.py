"""`fencepost next …`: what a schedule will do, without a server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, BinaryIO, NoReturn

import click
import msgspec

from fencepost.commandline.fire_requests import (
    MOST_FIRES,
    USUAL_FIRES,
    FireRequest,
    Refusal,
    Refused,
    answer_line,
    fires_json,
)
from fencepost.schedules.cron_fields import uses_hash
from fencepost.schedules.schedule_preview import ComingFire, SchedulePreview

EXIT_REFUSED = 2
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
JSON_NAMES = {"start": "from", "job_id": "jobId", "every": "everySeconds"}


class _Next(click.Command):
    """Refuses in JSON when JSON is asked for, also what click itself finds wrong with the options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        as_json = "--json" in args
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if not as_json:
                raise
            param = error.param.name if isinstance(error, click.BadParameter) and error.param else None
            _refuse(Refusal(error.format_message(), param and JSON_NAMES.get(param, param)), as_json)


@click.command(cls=_Next)
@click.argument("expr", required=False)
@click.option("--zone", metavar="NAME", help="The IANA time zone that EXPR is read in.  [default: UTC]")
@click.option("--from", "start", metavar="INSTANT", help="Fires strictly after it, in RFC 3339.  [default: now]")
@click.option("--count", type=click.IntRange(1, MOST_FIRES), default=USUAL_FIRES, show_default=True)
@click.option("--job-id", metavar="ID", help="The job whose fires they are, which is what H hashes.")
@click.option("--every", type=int, metavar="SECONDS", help="Instead of EXPR: every so many seconds,")
@click.option("--anchor", metavar="INSTANT", help="counted from here.  [default: from --from]")
@click.option("--json", "as_json", is_flag=True, help='Print {"fires": […]}, or {"error", "field"}.')
@click.option("--batch", is_flag=True, help="Answer lines of JSON on standard input, a line each.")
def next(
    expr: str | None,
    zone: str | None,
    start: str | None,
    count: int,
    job_id: str | None,
    every: int | None,
    anchor: str | None,
    as_json: bool,
    batch: bool,
) -> None:
    """Show when a schedule fires next, on its own clock and in UTC. Needs no server.

    Nights on which the clock is changed are pointed out. A schedule that cannot be right is refused with the
    reason, and the exit code is 2.

    \b
    Examples
      fencepost next "0 9 * * MON-FRI" --zone America/New_York
      fencepost next "30 2 * * *" --zone Europe/Paris --from 2026-03-28T00:00:00Z --count 2
      fencepost next "H H * * *" --job-id 0190a6c8-0000-7000-8000-000000000001 --json
      fencepost next --every 90 --anchor 2026-01-01T00:00:00Z
      fencepost next --batch < questions.jsonl > fires.jsonl

    A line of a batch is {"expr", "zone", "from", "count", "jobId"}, of which only expr must be there; it may also be
    a schedule as POST /v1/jobs takes it. The answers come in the same order: {"fires": […]} or {"error", "field"}.
    """
    if batch:
        if any(given is not None for given in (expr, zone, start, job_id, every, anchor)):
            raise click.UsageError("--batch takes all of it from the lines on standard input")
        _answer_lines(sys.stdin.buffer, sys.stdout.buffer)
        return
    try:
        schedule = _schedule(expr, zone, every, anchor)
        request = FireRequest(expr=schedule, zone=zone, start=start, count=count, job_id=job_id)
        preview, after = request.answer()
    except Refused as refused:
        _refuse(refused.refusal, as_json)
    if as_json:
        click.echo(fires_json(preview.fires(after, count)))
        return
    if expr and uses_hash(expr) and not job_id:
        click.echo("H is another time for every job: give --job-id to see the times of yours", err=True)
    _print(preview, list(preview.coming(after, count)), count)


def _schedule(expr: str | None, zone: str | None, every: int | None, anchor: str | None) -> str | dict[str, Any]:
    if every is None:
        if expr is None:
            raise Refused("give a cron expression, such as '0 9 * * MON-FRI', or --every", "expr")
        if anchor is not None:
            raise Refused("an anchor goes with --every", "anchor")
        return expr
    if expr is not None:
        raise Refused("give either a cron expression or --every", "expr")
    if zone is not None:
        raise Refused("an interval is the same in every zone", "zone")
    return {"everySeconds": every, "anchor": anchor}


def _refuse(refusal: Refusal, as_json: bool) -> NoReturn:
    """The fields of an interval are options of their own here."""
    refusal.field = refusal.field and refusal.field.removeprefix("expr.")
    if as_json:
        click.echo(msgspec.json.encode(refusal))
    else:
        place = f"{refusal.field}: " if refusal.field else ""
        click.echo(f"fencepost: {place}{refusal.error}", err=True)
    raise click.exceptions.Exit(EXIT_REFUSED)


def _answer_lines(questions: BinaryIO, answers: BinaryIO) -> None:
    """A program may wait for each answer before it asks on."""
    for line in questions:
        answers.write(answer_line(line) + b"\n")
        answers.flush()


def _print(preview: SchedulePreview, fires: Sequence[ComingFire], wanted: int) -> None:
    rows = [(_local(fire), _utc(fire), _remark(fire, preview.every_hour)) for fire in fires]
    width = max(len(preview.zone), *(len(local) for local, _, _ in rows), 0)
    click.echo(f"{preview.zone:<{width}}  UTC")
    for local, utc, remark in rows:
        click.echo(f"{local:<{width}}  {utc}  {remark}".rstrip())
    if len(rows) < wanted:
        click.echo("then never again" if rows else "never", err=True)


def _local(fire: ComingFire) -> str:
    return f"{WEEKDAYS[fire.local.weekday()]} {fire.local.isoformat(sep=' ')}"


def _utc(fire: ComingFire) -> str:
    return fire.scheduled_for.isoformat().replace("+00:00", "Z")


def _remark(fire: ComingFire, every_hour: bool) -> str:
    """What is odd about the night; see the zone rule in fencepost/schedules/zone_rule.py."""
    if fire.skipped is not None:
        if fire.skipped.date() != fire.local.date():
            return f"moved: {fire.skipped:%Y-%m-%d %H:%M} does not exist"
        return f"moved: {fire.skipped:%H:%M} does not exist that night"
    if fire.mark == "fold":
        taken = f"this is the {'second' if fire.local.fold else 'first'}" if every_hour else "the first is taken"
        return f"{fire.local:%H:%M} occurs twice, {taken}"
    return ""
