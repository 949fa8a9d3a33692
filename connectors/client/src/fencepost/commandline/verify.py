"""`fencepost verify`: a certificate that the promises were kept in a time, or what broke them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import click
import msgspec

from fencepost.commandline.bulk_send import SettingParam
from fencepost.commandline.certificate_text import certificate_lines, violation_lines
from fencepost.commandline.connection import Connection, pass_connection
from fencepost.commandline.parameters import InstantParam, SpanParam, json_option
from fencepost.errors import Refused, ServerFault, TryAgain
from fencepost.shutdown import Shutdown
from fencepost.verification.certificate import Certificate, Violation
from fencepost.verification.examination import Examination
from fencepost.verification.history_pages import HistoryPages
from fencepost.verification.inquiries import ON_ITS_WAY, NobodyToAsk, ServerInquiry
from fencepost.verification.topic_pages import RUN_EVENTS_ID, TopicPages
from fencepost.verification.verifier import Verifier

EXITS = {"holds": 0, "violated": 1, "not judged": 2}
EXIT_INTERRUPTED = 130


class Asked(NamedTuple):
    """What is to be verified, and how it is told. bootstrap: of Kafka; None: by the API. until: None to follow."""

    since: datetime
    until: datetime | None
    lost_after: timedelta
    bootstrap: str | None
    tenant: str | None
    topic: str
    kafka_config: dict[str, str]
    schema_id: int
    as_json: bool
    shown: int


@click.command()
@click.option("--from", "since", type=InstantParam(), help="Where the range begins.")
@click.option("--to", "until", type=InstantParam(), help="Where it ends.  [default: a minute ago]")
@click.option("--last", type=SpanParam(), help="Instead of --from: that long before the end.  [default: 1h]")
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C; tell violations at once.")
@click.option(
    "--lost-after",
    type=SpanParam(),
    default="15m",
    show_default=True,
    help="How long a due run or an occurrence may wait before it is asked about.",
)
@click.option("--show", type=click.IntRange(0, 1000), default=10, show_default=True, help="Violations told at most.")
@click.option("--bootstrap", help="Read the topic of the broker at host:port, instead of the API's history.")
@click.option("--tenant", help="With --bootstrap: only this tenant's.  [default: everybody's]")
@click.option("--topic-prefix", default="fencepost", show_default=True, help="With --bootstrap.")
@click.option("--kafka", "kafka_settings", type=SettingParam(), multiple=True, help="A librdkafka setting: TLS, SASL.")
@click.option(
    "--schema-id", type=int, default=RUN_EVENTS_ID, show_default=True, help="Of RunEvents, where a registry gave it."
)
@json_option
@pass_connection
def verify(
    connection: Connection,
    since: datetime | None,
    until: datetime | None,
    last: timedelta | None,
    follow: bool,
    lost_after: timedelta,
    show: int,
    bootstrap: str | None,
    tenant: str | None,
    topic_prefix: str,
    kafka_settings: tuple[tuple[str, str], ...],
    schema_id: int,
    as_json: bool,
) -> None:
    """Hold the scheduler's promises against what it did: a certificate, or the runs that break them.

    Every event of the range is judged by rules of their own, which share nothing with the server but the rules of time:
    one accepted completion a run, one lease at a time, nothing early, tokens that grow, events without gaps, every
    occurrence decided once and none missing, no run lost. The certificate tells on how many facts each rule was held,
    and what could not be checked. What is overdue is asked about.

    Reads the history of the token's tenant, an operator's or an admin's; or with --bootstrap the topic, as far as it
    goes back.

    \b
    Examples
      fencepost verify
      fencepost verify --last 24h
      fencepost verify --from 2026-10-25T00:00:00Z --to 2026-10-26T00:00:00Z --json
      fencepost verify --follow
      fencepost verify --bootstrap 127.0.0.1:9092 --tenant acme --last 7d

    \b
    Exit codes
      0  all that could be checked holds
      1  a rule is broken
      2  it cannot be judged: nothing is there, the history is behind, the token may not; or the command line is wrong
      3  the server or the broker cannot be reached
    """
    if since is not None and last is not None:
        raise click.UsageError("--from and --last both say where the range begins")
    if follow and until is not None:
        raise click.UsageError("--follow has no end: leave --to away")
    if tenant is not None and bootstrap is None:
        raise click.UsageError("--tenant goes with --bootstrap: a token has its tenant")
    end = until or datetime.now(UTC) - (timedelta(0) if follow else ON_ITS_WAY)
    begin = since or end - (last or timedelta(hours=1))
    if begin >= end:
        raise click.BadParameter("must be before the end of the range", param_hint="--from")
    asked = Asked(
        *(begin, None if follow else end, lost_after, bootstrap, tenant, f"{topic_prefix}.run-events"),
        *(dict(kafka_settings), schema_id, as_json, show),
    )
    try:
        made = asyncio.run(_verify(connection, asked))
    except (Refused, ServerFault) as error:
        click.echo(f"fencepost: {error}", err=True)
        raise click.exceptions.Exit(EXITS["not judged"]) from error
    except KeyboardInterrupt:
        click.echo("interrupted: nothing was judged", err=True)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    _print(made, asked)
    raise click.exceptions.Exit(EXITS[made.verdict])


async def _verify(connection: Connection, asked: Asked) -> Certificate:
    async with _examination(connection, asked) as examination:
        size = await examination.begin()
        bar: Any = click.progressbar(length=size, label="verifying", file=sys.stderr, hidden=not size)
        with bar:
            await examination.read(bar.update)
        if asked.until is not None:
            return await examination.conclude(asked.until)
        click.echo(f"{examination.verifier.events:,} events verified, following; Ctrl-C ends it", err=True)
        ending = Shutdown(0)
        with ending.on_signals():
            await examination.follow(ending.asked, lambda found: _tell(found, asked.as_json), _tell_trouble)
        return await examination.conclude(datetime.now(UTC))


@asynccontextmanager
async def _examination(connection: Connection, asked: Asked) -> AsyncIterator[Examination]:
    verifier = Verifier(lost_after=asked.lost_after)
    if asked.bootstrap is not None:
        topic = TopicPages(
            *(asked.bootstrap, asked.topic, asked.since, asked.until),
            tenant=asked.tenant,
            kafka_config=asked.kafka_config,
            schema_id=asked.schema_id,
        )
        name = f"{asked.topic} of {asked.bootstrap}"
        try:
            yield Examination(topic, NobodyToAsk(), verifier, since=asked.since, name=name, tenant=asked.tenant)
        finally:
            await topic.close()
        return
    async with connection.async_client() as client:
        tenant = (await client.whoami()).tenant
        pages = HistoryPages(client, asked.since, asked.until)
        name = f"the history of {connection.url}"
        yield Examination(pages, ServerInquiry(client), verifier, since=asked.since, name=name, tenant=tenant)


def _tell_trouble(error: TryAgain) -> None:
    click.echo(f"{error}: trying again", err=True)


def _tell(found: Sequence[Violation], as_json: bool) -> None:
    for violation in found:
        click.echo(msgspec.json.encode(violation).decode() if as_json else "\n".join(violation_lines(violation)))


def _print(made: Certificate, asked: Asked) -> None:
    if not asked.as_json:
        click.echo("\n".join(certificate_lines(made, asked.shown)))
        return
    encoded = msgspec.json.encode(made)  # when following the last of many lines, each JSON
    click.echo((encoded if asked.until is None else msgspec.json.format(encoded)).decode())
