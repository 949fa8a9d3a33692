"""`fencepost plan …` and `fencepost apply …`: jobs that a file declares, seen before they are changed."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from fencepost.client import FencepostClient
from fencepost.commandline.connection import Connection, pass_connection
from fencepost.commandline.parameters import InstantParam
from fencepost.commandline.payload_codecs import codec_option
from fencepost.commandline.plan_text import TIMES_SHOWN, plan_lines
from fencepost.declarations.application import Application, apply_plan, found_jobs
from fencepost.declarations.errors import PlanMoved
from fencepost.declarations.job_file import DeclaredSet, read_job_file
from fencepost.declarations.plan import Plan, make_plan
from fencepost.declarations.plan_hash import moved_since
from fencepost.errors import InvalidInput
from fencepost.schedules.zones import TZDATA_VERSION
from fencepost.sealing import PayloadCodec

MANY = 200  # jobs, from which on there is a progress bar
LONGEST_HORIZON = timedelta(days=366)
UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


class HorizonParam(click.ParamType):
    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"([0-9]{1,4})([hdw])", str(value))
        horizon = int(found[1]) * UNITS[found[2]] if found else timedelta(0)
        if not timedelta(0) < horizon <= LONGEST_HORIZON:
            self.fail(f"{value!r} is no time such as 36h, 7d or 4w, of at most 366 days", param, ctx)
        return horizon


class PlanOptions(NamedTuple):
    """What a plan is made of besides the file and the server."""

    horizon: timedelta
    set_name: str | None
    prune: bool
    start: datetime | None
    payload_codec: PayloadCodec | None = None


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        codec_option("Seals the jobs' payloads; the plan has them as the file does."),
        click.option("--from", "start", type=InstantParam(), help="Where the horizon starts.  [default: now]"),
        click.option("--prune", is_flag=True, help="Delete jobs of the set that are not in the file."),
        click.option("--set", "set_name", metavar="NAME", help="The set.  [default: the file's `set`, or its name]"),
        click.option("--horizon", type=HorizonParam(), default="7d", show_default=True, help="How far to look."),
    ):
        command = option(command)
    return command


file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.command()
@file_argument
@plan_options
@click.option("--all", "every", is_flag=True, help="Name every occurrence that changes, not the first few.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON, which names every one.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Keep the plan, for `fencepost apply`.")
@pass_connection
def plan(connection: Connection, /, file: Path, every: bool, as_json: bool, out: Path | None, **options: Any) -> None:
    """Show what applying a FILE of jobs would change, over a horizon: jobs, occurrences, runs and load.

    The file is YAML. Its `jobs` are named bodies of POST /v1/jobs; they are a set, which owns what it has created.
    Nothing is changed.

    \b
    Examples
      fencepost plan jobs.yaml
      fencepost plan jobs.yaml --prune --horizon 4w --out plan.json
    """
    made = asyncio.run(_with_client(connection, lambda client: _make_plan(client, file, PlanOptions(**options))))
    if out is not None:
        out.write_bytes(_json(made))
    if as_json:
        click.echo(_json(made))
        return
    _print_plan(made, None if every else TIMES_SHOWN)
    if made.actions():
        click.echo(f"\nApply it with\n  fencepost apply {out or file}{_apply_options(made, out, options)}")


@click.command()
@file_argument
@plan_options
@click.option("--plan", "told", metavar="HASH", help="The plan that was agreed on: apply nothing else.")
@click.option("--yes", is_flag=True, help="Without --plan: do not ask.")
@pass_connection
def apply(connection: Connection, /, file: Path, told: str | None, yes: bool, **options: Any) -> None:
    """Make the server's jobs as a FILE says, which is a file of jobs or a plan that `fencepost plan --out` kept.

    A plan holds for a day, and only while the file and the server's jobs are as they were: else nothing is done, and
    the exit code is 1. Applying a plan once more does only what is missing. Without one, it is shown and you are asked.

    \b
    Examples
      fencepost apply jobs.yaml --plan 6a0f…
      fencepost apply plan.json
      fencepost apply jobs.yaml --yes
    """
    kept = _kept_plan(file)
    if kept is not None and (told or any(options[name] for name in ("prune", "set_name", "start"))):
        raise click.UsageError(f"{file} is a plan, which has all of it settled")
    asyncio.run(_with_client(connection, lambda client: _apply(client, file, kept, told, yes, PlanOptions(**options))))


async def _apply(
    client: FencepostClient, file: Path, kept: Plan | None, told: str | None, yes: bool, options: PlanOptions
) -> None:
    if kept is None:
        kept = await (_agreed_plan(client, file, told, options) if told else _asked_plan(client, file, yes, options))
    if kept.sealed != (options.payload_codec is not None):
        raise click.UsageError(f"the plan was made with{'' if kept.sealed else 'out'} --payload-codec: apply it so")
    await _check_tenant(client, kept)
    steps = kept.actions()
    if not steps:
        click.echo("nothing to do: the server's jobs are as the file says")
        return
    with _progress(len(steps), "applying") as bar:
        application = await apply_plan(client, kept, codec=options.payload_codec, on_step=lambda: bar.update(1))
    _report(application)


async def _agreed_plan(client: FencepostClient, file: Path, told: str, options: PlanOptions) -> Plan:
    """The plan of that hash, made again. Raises PlanMoved, unless there is nothing left to do."""
    made = await _make_plan(client, file, options)
    declared = _declared(file, made.tenant, options)
    moved = moved_since(told, made.tenant, declared, made.base, prune=made.prune, start=made.start)
    if moved and made.actions():
        raise PlanMoved(moved)
    return made if moved else msgspec.structs.replace(made, hash=told)


async def _asked_plan(client: FencepostClient, file: Path, yes: bool, options: PlanOptions) -> Plan:
    made = await _make_plan(client, file, options)
    _print_plan(made)
    if made.actions() and not yes:
        click.confirm("\nApply it?", abort=True)
    return made


async def _make_plan(client: FencepostClient, file: Path, options: PlanOptions) -> Plan:
    tenant = (await client.whoami()).tenant
    declared = _declared(file, tenant, options)
    found, tzdata = await found_jobs(client, declared.name, options.payload_codec)
    if tzdata != TZDATA_VERSION:
        click.echo(f"the server's time zones are {tzdata}, those here {TZDATA_VERSION}: times may differ", err=True)
    with _progress(len({*declared.jobs, *(job.job_id for job in found)}), "planning") as bar:
        return make_plan(
            declared,
            found,
            tenant=tenant,
            start=(options.start or datetime.now(UTC)).astimezone(UTC),
            horizon=options.horizon,
            prune=options.prune,
            on_job=lambda: bar.update(1),
        )


def _declared(file: Path, tenant: str, options: PlanOptions) -> DeclaredSet:
    declared = read_job_file(file, tenant=tenant, set_name=options.set_name)
    return declared._replace(sealed=options.payload_codec is not None)


async def _check_tenant(client: FencepostClient, kept: Plan) -> None:
    tenant = (await client.whoami()).tenant
    if tenant != kept.tenant:
        raise PlanMoved([f"it is for tenant {kept.tenant}, and the token is of {tenant}"])


def _kept_plan(file: Path) -> Plan | None:
    """The plan in a file; None when it is a file of jobs."""
    content = file.read_bytes()
    if not content.lstrip().startswith(b"{") or b'"loadAfter"' not in content:
        return None
    try:
        return msgspec.json.decode(content, type=Plan)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"{file} is no plan of this version: {error}") from error


def _report(application: Application) -> None:
    for name, reason in sorted(application.refused.items()):
        click.echo(f"{name}: {reason}", err=True)
    for name in sorted(application.waiting):
        click.echo(f"{name}: accepted, but not seen applied yet; apply the plan again to see it through", err=True)
    already = f", {len(application.already)} had been before" if application.already else ""
    click.echo(f"{len(application.done)} applied{already}")
    if not application.complete:
        raise click.exceptions.Exit(1)


def _print_plan(made: Plan, most: int | None = TIMES_SHOWN) -> None:
    click.echo("\n".join(plan_lines(made, most)))


def _apply_options(made: Plan, out: Path | None, options: dict[str, Any]) -> str:
    """What leads `apply` to the same plan."""
    codec = " --payload-codec …" if made.sealed else ""
    if out is not None:
        return codec
    given = codec + (f" --set {made.set}" if options["set_name"] else "")
    given += f" --from {options['start'].isoformat()}" if options["start"] else ""
    return f"{given}{' --prune' if made.prune else ''} --plan {made.hash}"


def _progress(length: int, label: str) -> Any:
    return click.progressbar(length=length, label=label, file=sys.stderr, hidden=length < MANY)


def _json(made: Plan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(made))


async def _with_client(connection: Connection, call: Callable[[FencepostClient], Any]) -> Any:
    async with connection.async_client() as client:
        return await call(client)
