"""`fencepostd`: the server's command line."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import click

from api.access_log import AccessLog, Logged, to_standard_output
from api.budgets import ShedAt
from api.issuer import IssuerSettings
from connectors.stack import PartStatus
from fencepostd import backup_check, roles
from fencepostd.issuer_options import issuer_options
from fencepostd.kafka_options import kafka_options
from fencepostd.local import Local
from fencepostd.local import init as init_installation
from fencepostd.refusals import Command, refusals
from fencepostd.settings import DEFAULT_PARTITIONS, Settings
from fencepostd.shard_commands import ranges, shard
from fencepostd.token_commands import token
from ledger.connection import ledger_pool, session
from ledger.partitions import PartitionStatus
from ledger.restoration import Restoration, declare_restored
from streams.kafka_security import KafkaSecurity
from streams.ledger_upkeep import JOBS_KEPT
from streams.topics import Topics


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="fencepost-server")
def main() -> None:
    """Run Fencepost, a distributed job scheduler.

    \b
    A look at it on this machine, with real Kafka and real Postgres:
        fencepostd up
        fencepostd status
        fencepostd down

    \b
    An installation of your own, once and then one process a role (as many of each as you like):
        fencepostd init --kafka broker:9092 --postgres postgresql://… --partitions 256
        fencepostd run streams --name streams-1 …
        fencepostd run api …        fencepostd run relay …        fencepostd run history …
    """


main.add_command(shard)
main.add_command(token)


# --- the local stack ---

state_option = click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("state"),
    envvar="FENCEPOST_STATE_DIR",
    show_default=True,
    help="The folder that holds all data, logs and the register of what runs.",
)


@main.command()
@state_option
@click.option("--kafka", help="Use this running broker (host:port) instead of starting one.")
@click.option("--postgres", help="Use this running server (a DSN) instead of starting one.")
@click.option("--partitions", default=DEFAULT_PARTITIONS, show_default=True, help="Fixed at the first start.")
@click.option("--owners", default=2, show_default=True, help="Streams processes, which share the partitions.")
@click.option("--apis", default=1, show_default=True, help="API processes.")
@click.option(
    "--shards", type=click.IntRange(1), help="Postgres servers, over which the partitions are spread; for ever."
)
@click.option("--standby", is_flag=True, help="Give each Postgres a synchronous standby; for good.")
@refusals
def up(
    state: Path,
    kafka: str | None,
    postgres: str | None,
    partitions: int,
    owners: int,
    apis: int,
    shards: int | None,
    standby: bool,
) -> None:
    """Start everything on this machine: Kafka, Postgres, and every role as a process.

    The first time, this fetches Kafka's jars with Maven (about 110 MB). Where Java or Maven is missing it falls
    back to a small broker that keeps its topics in memory only, and says so. Starting again finds the data.
    """
    local = Local(
        state,
        click.echo,
        kafka=kafka,
        postgres=postgres,
        shards=shards,
        standby=standby,
        partitions=partitions,
        owners=owners,
        apis=apis,
    )
    local.up()
    click.echo(f"\nexport FENCEPOST_URL={local.url}\nexport FENCEPOST_TOKEN={local.token}\n")
    click.echo('Try: fencepost jobs create --queue default --every 10     fencepost query "SELECT * FROM runs"')


@main.command()
@state_option
@refusals
def down(state: Path) -> None:
    """Stop everything that `up` started. The data stays."""
    Local(state, click.echo).stack.down()


@main.command()
@state_option
@refusals
def status(state: Path) -> None:
    """Show each part's pid, port and health, and the partitions that each owner holds. Exit code 1 unless all is ok."""
    local = Local(state, click.echo)
    parts, now = local.stack.status(), datetime.now(UTC)
    for part in parts:
        click.echo(_line(part, now))
    if any(part.name == "postgres" and part.health == "ok" for part in parts):
        for owner, held in _by_owner(local.partitions()).items():
            click.echo(f"  {owner or 'nobody'} owns {len(held)}: {ranges(held)}")
    if any(part.health != "ok" for part in parts):
        sys.exit(1)


def _line(part: PartStatus, now: datetime) -> str:
    since = f"{(now - part.since).total_seconds():.0f} s" if part.since else "-"
    where = f"pid {part.pid or '-':<8} port {part.port or '-':<6} up {since:<8}"
    return f"{part.name:<16} {part.health:<8} {where} {part.detail}"


def _by_owner(partitions: list[PartitionStatus]) -> dict[str | None, list[int]]:
    held: dict[str | None, list[int]] = {}
    for partition in partitions:
        held.setdefault(partition.owner and partition.owner.partition("/")[0], []).append(partition.partition)
    return held


@main.command()
@state_option
@click.argument("part", default="postgres")
@refusals
def promote(state: Path, part: str) -> None:
    """Make the standby of a Postgres, started with `up --standby`, its primary: to see what a failover is like.

    The old primary may be dead or go on; `up` makes it the standby of the new one, as a copy of it.
    """
    Local(state, click.echo).stack.promote(part)


@main.command()
@state_option
@click.argument("part")
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until interrupted.")
@refusals
def logs(state: Path, part: str, follow: bool) -> None:
    """Print the log of a part: kafka, postgres, or a role by the name that `status` shows."""
    for line in Local(state, click.echo).stack.logs(part, follow):
        click.echo(line.rstrip("\n"))


# --- an installation ---


prefix_option = click.option("--topic-prefix", default="fencepost", envvar="FENCEPOST_TOPIC_PREFIX", show_default=True)


def installation(command: Command) -> Command:
    """The options that say where Kafka and Postgres are."""
    for option in (
        prefix_option,
        kafka_options,
        click.option("--postgres", required=True, envvar="FENCEPOST_POSTGRES", show_envvar=True, help="A DSN."),
    ):
        command = option(command)
    return command


@main.command()
@installation
@click.option("--partitions", default=DEFAULT_PARTITIONS, show_default=True, help="For ever; 256 is a good number.")
@click.option("--shard", "shards", multiple=True, metavar="DSN", help="A further Postgres; once for each of them.")
@click.option("--replication-factor", default=3, show_default=True, help="Of the topics, at most one a broker.")
@click.option("--pre-only", is_flag=True, help="Only what processes of the last version live with; repeat without.")
@refusals
def init(
    kafka: str,
    security: KafkaSecurity,
    postgres: str,
    topic_prefix: str,
    partitions: int,
    shards: tuple[str, ...],
    replication_factor: int,
    pre_only: bool,
) -> None:
    """Prepare Kafka and Postgres: topics, tables, the number of partitions. Safe to repeat; run it on every upgrade.

    With --shard the partitions are spread over several databases, of which the one of --postgres is home: roles and
    commands are given its address alone. A later `init` knows the others, and need not be told of them.

    For an upgrade without a stop: `init --pre-only`, replace the processes one by one, then `init`.
    """
    init_installation(
        kafka,
        postgres,
        Topics(topic_prefix),
        partitions,
        click.echo,
        shards=shards,
        replication_factor=replication_factor,
        post=not pre_only,
        kafka_config=security.librdkafka(),
    )
    click.echo(f"ready: {partitions} partitions")


@main.command()
@click.option("--postgres", required=True, envvar="FENCEPOST_POSTGRES", show_envvar=True, help="A DSN.")
@refusals
def restored(postgres: str) -> None:
    """Say that the ledger was restored from a backup: run it once, before any role is started again.

    Where there are several shards: for each one that was restored, with its own address.

    Workers and receivers have seen lease tokens, and owners epochs, that the restored ledger would give out again. From
    here on all of them are larger than whatever was given since the backup was made, by the server's clock; leases of
    the backup are over. See "After restoring a backup" in the README for what happens then. Safe to repeat.

    \b
        pg_restore …                    with all roles stopped
        fencepostd restored --postgres postgresql://…
        fencepostd run streams …        and the others
    """
    done = asyncio.run(_declare_restored(postgres))
    click.echo(f"restored: {done.partitions} partitions; epochs, lease tokens and event ids go on above {done.floor}")
    click.echo(f"{done.leases} leases of the backup are over; their runs are retried once the roles are back")


@main.command("backup-check")
@kafka_options
@click.option("--postgres", required=True, envvar="FENCEPOST_POSTGRES", show_envvar=True, help="A DSN, home's.")
@click.option("--topic-prefix", default="fencepost", envvar="FENCEPOST_TOPIC_PREFIX", show_default=True)
@click.option(
    "--backup-age-hours",
    type=click.FloatRange(min=0, min_open=True),
    default=24.0,
    show_default=True,
    help="How old the backup may be from which you would restore.",
)
@refusals
def check_backup(
    kafka: str, security: KafkaSecurity, postgres: str, topic_prefix: str, backup_age_hours: float
) -> None:
    """Explain what to back up, and check whether a ledger restored from it would be whole.

    The ledger is all there is to back up: the Postgres database of every shard, each by itself. Timing state and
    history are made anew from it and from Kafka. What was commanded since the backup comes back from the commands
    topic, so that must keep commands for longer than backups are old.

    Looks and changes nothing. Run it after an installation, after a change of Postgres or Kafka, and by a timer.

    \b
    Exit code 0   nothing fails; warnings may be there
              1   it could not look: a part is away
              3   something fails: a restored ledger would not be whole

    \b
        fencepostd backup-check --backup-age-hours 26
        pg_dump --format=custom …               or a base backup and its WAL, of each shard
        fencepostd restored --postgres …        after restoring one, before any role starts
    """
    found = asyncio.run(backup_check.look(postgres, kafka, Topics(topic_prefix), security.librdkafka()))
    checks = list(backup_check.findings(found, timedelta(hours=backup_age_hours)))
    for line in (*backup_check.explanation(found), "", *backup_check.lines(checks)):
        click.echo(line)
    if any(each.status == "fail" for each in checks):
        sys.exit(3)


async def _declare_restored(dsn: str) -> Restoration:
    async with ledger_pool(dsn, size=1) as pool, session(pool) as conn:
        return await declare_restored(conn)


@main.group()
def run() -> None:
    """Run one role in the foreground, until SIGTERM."""


def process_options(command: Command) -> Command:
    """Where a role listens, and who knows its schemas."""
    for option in (
        click.option("--host", default="127.0.0.1", envvar="FENCEPOST_HOST", show_default=True),
        click.option("--port", default=8080, envvar="FENCEPOST_PORT", show_default=True, help="HTTP, health, metrics."),
        click.option("--schema-registry", envvar="FENCEPOST_SCHEMA_REGISTRY", help="URL; built-in schema ids without."),
    ):
        command = option(command)
    return command


def role_options(command: Command) -> Command:
    """The same, where it keeps its state, and where Kafka and Postgres are."""
    state = click.option("--state", type=click.Path(path_type=Path), default=Path("state"), envvar="FENCEPOST_STATE")
    return installation(state(process_options(command)))


class TenantParam(click.ParamType):
    """A tenant whose name can be a part of a topic's."""

    name = "tenant"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", str(value), re.ASCII):
            self.fail(f"{value!r} has other characters than letters, digits, dots, dashes and underscores", param, ctx)
        return str(value)


def _settings(
    kafka: str,
    security: KafkaSecurity,
    postgres: str,
    topic_prefix: str,
    state: Path,
    host: str,
    port: int,
    schema_registry: str | None,
) -> Settings:
    return Settings(postgres, kafka, Topics(topic_prefix), state, host, port, schema_registry, security)


@run.command()
@role_options
@click.option("--name", required=True, envvar="FENCEPOST_NAME", help="Tells this owner from the others.")
@refusals
def streams(name: str, **options: Any) -> None:
    """Own partitions: apply commands, keep time, hint due runs, end expired leases.

    Run two or more. --state must be a folder of this process alone; losing it loses nothing.
    """
    roles.run_until_signalled(lambda stop: roles.run_streams(_settings(**options), name, stop))


@run.command()
@role_options
@click.option(
    "--keep-jobs-days",
    type=click.FloatRange(min=2),  # longer than outcomes of commands are remembered
    default=JOBS_KEPT.days,
    envvar="FENCEPOST_KEEP_JOBS_DAYS",
    show_default=True,
    help="How long the ledger keeps deleted jobs, and one-offs that are over.",
)
@refusals
def relay(keep_jobs_days: float, **options: Any) -> None:
    """Publish the ledger's outbox to Kafka, and keep the ledger tidy.

    One publishes at a time, any others stand by. Give all of them the same --keep-jobs-days: the shortest counts.
    """
    kept = timedelta(days=keep_jobs_days)
    roles.run_until_signalled(lambda stop: roles.run_relay(_settings(**options), stop, kept))


@run.command()
@prefix_option
@kafka_options
@process_options
@click.option("--tenant", "tenants", type=TenantParam(), multiple=True, required=True, help="One of those it is for.")
@refusals
def gate(tenants: tuple[str, ...], **options: Any) -> None:
    """Let commands of tenants' own topics through to the commands topic, unless they name another tenant.

    For producers that must not be trusted with other tenants' jobs: let Kafka's ACLs give those of tenant acme the
    topic fencepost.tenant.acme.commands, which this makes, and nobody but Fencepost the topic fencepost.commands. It
    takes no Postgres. Run two or more, all of the same tenants. See docs/operating.md, Tenants' own producers.
    """
    settings = _settings(postgres="", state=Path(), **options)
    roles.run_until_signalled(lambda stop: roles.run_gate(settings, tenants, stop))


@run.command()
@role_options
@click.option(
    "--keep-days",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    envvar="FENCEPOST_HISTORY_DAYS",
    help="How far back the history goes: older events are dropped, a day at a time, with the runs that ended then.",
)
@refusals
def history(keep_days: int, **options: Any) -> None:
    """Fold run events into the history store and answer its queries, for the API.

    A history that is lost is read again from the topic fencepost.run-events, as far back as that is kept.
    """
    roles.run_until_signalled(lambda stop: roles.run_history(_settings(**options), keep_days, stop))


def shedding_options(command: Command) -> Command:
    """From how many calls in hand on each class is shed; leases are last."""
    for name, number in reversed(dataclasses.asdict(ShedAt()).items()):
        command = click.option(
            f"--shed-{name}-at",
            type=click.IntRange(1),
            default=number,
            envvar=f"FENCEPOST_SHED_{name.upper()}_AT",
            show_default=True,
            help=f"Answer {name} with 503 while so many calls are in hand.",
        )(command)
    return command


@run.command()
@role_options
@click.option("--history-url", required=True, envvar="FENCEPOST_HISTORY_URL", help="Where the history role answers.")
@shedding_options
@issuer_options
@click.option(
    "--notice-seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    envvar="FENCEPOST_NOTICE_SECONDS",
    show_default=True,
    help="How long it serves on after SIGTERM while /readyz answers 503: until every balancer has seen that.",
)
@click.option(
    "--access-log",
    type=click.Choice(get_args(Logged)),
    default="failures",
    envvar="FENCEPOST_ACCESS_LOG",
    show_default=True,
    help="Which calls get a line of JSON on standard output; a failure is a status of 400 and more.",
)
@click.option(
    "--access-log-probes",
    is_flag=True,
    envvar="FENCEPOST_ACCESS_LOG_PROBES",
    show_envvar=True,
    help="Log calls of /healthz, /readyz, /metrics and /openapi.json, too.",
)
@refusals
def api(
    history_url: str,
    notice_seconds: float,
    access_log: Logged,
    access_log_probes: bool,
    issuer: IssuerSettings | None,
    **options: Any,
) -> None:
    """Serve the lease, job and query API over HTTP. Run as many as you like, behind any balancer.

    Under stress a process sheds reads first, then creates, outcomes, and leases last; see docs/operating.md, Overload.
    """
    try:
        shed_at = ShedAt(**{name: options.pop(f"shed_{name}_at") for name in dataclasses.asdict(ShedAt())})
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    settings, logged = _settings(**options), AccessLog(access_log, to_standard_output, probes=access_log_probes)
    roles.run_until_signalled(
        lambda stop: roles.run_api(settings, history_url, stop, shed_at, notice_seconds, logged, issuer)
    )
