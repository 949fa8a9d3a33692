"""`fencepostd`: the server's command line."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from connectors.stack import PartStatus
from fencepostd import backup_check
from fencepostd.installation_options import installation, prefix_option
from fencepostd.kafka_options import kafka_options
from fencepostd.local import Local
from fencepostd.local import init as init_installation
from fencepostd.refusals import refusals
from fencepostd.role_commands import run
from fencepostd.settings import DEFAULT_PARTITIONS
from fencepostd.shard_commands import ranges, shard
from fencepostd.token_commands import token
from ledger.connection import ledger_pool, session
from ledger.partitions import PartitionStatus
from ledger.restoration import Restoration, declare_restored
from streams.kafka_security import KafkaSecurity
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


main.add_command(run)
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
@prefix_option
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
