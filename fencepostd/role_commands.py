"""`fencepostd run`: one role in the foreground."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import click

from api.access_log import AccessLog, Logged, to_standard_output
from api.budgets import ShedAt
from api.issuer import IssuerSettings
from fencepostd import roles
from fencepostd.installation_options import installation, prefix_option
from fencepostd.issuer_options import issuer_options
from fencepostd.kafka_options import kafka_options
from fencepostd.refusals import Command, refusals
from fencepostd.settings import Settings
from streams.kafka_security import KafkaSecurity
from streams.ledger_upkeep import JOBS_KEPT
from streams.topics import Topics


@click.group()
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
