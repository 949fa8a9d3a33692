"""`fencepostd token`: bearer tokens for the API, made, replaced, listed and ended."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import get_args

import click

from fencepostd.refusals import refusals
from ledger.connection import Connection, ledger_pool, session
from ledger.shard_map import prove_home
from ledger.tokens import Role, TokenView, create_token, list_tokens, revoke_token, rotate_token

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class DurationParam(click.ParamType):
    """A whole number with its unit: 30s, 15m, 1h, 90d."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d{1,6})([smhd])", str(value), re.ASCII)
        if found is None:
            self.fail(f"{value!r} is no time such as 30s, 15m, 1h or 90d", param, ctx)
        return timedelta(**{_UNITS[found[2]]: int(found[1])})


postgres_option = click.option(
    "--postgres", required=True, envvar="FENCEPOST_POSTGRES", show_envvar=True, help="A DSN, home's."
)
expiry_option = click.option(
    "--expires-in", type=DurationParam(), metavar="TIME", help="Such as 90d or 12h. Default: good until revoked."
)


@click.group()
def token() -> None:
    """Bearer tokens for the API.

    A token is `fp_<id>_<secret>`; the other commands take the id. To replace one without a stop: rotate it, and
    give the new one to whoever has the old one, before the overlap is over.

    \b
        fencepostd token create --tenant acme --role worker --queue mail --expires-in 90d
        fencepostd token rotate 4f2a90c1b7de --overlap 1h
        fencepostd token list --tenant acme
        fencepostd token revoke 4f2a90c1b7de
    """


@token.command("create")
@postgres_option
@click.option("--tenant", required=True, help="The team that the token speaks for.")
@click.option("--role", type=click.Choice(get_args(Role)), required=True)
@click.option("--queue", "queues", multiple=True, help="Limit it to this queue; may be repeated. Default: all.")
@expiry_option
@refusals
def create(postgres: str, tenant: str, role: Role, queues: tuple[str, ...], expires_in: timedelta | None) -> None:
    """Make a token and print it, this once: the ledger keeps only its hash."""

    async def work() -> str:
        async with _home(postgres) as conn:
            return await create_token(conn, tenant, role, list(queues) or None, expires_in)

    click.echo(asyncio.run(work()))


@token.command("rotate")
@postgres_option
@click.argument("token_id")
@click.option(
    "--overlap", type=DurationParam(), default="1h", show_default=True, help="How long the old one stays good."
)
@expiry_option
@refusals
def rotate(postgres: str, token_id: str, overlap: timedelta, expires_in: timedelta | None) -> None:
    """Make another token for the same tenant, role and queues, and print it, this once.

    The old one ends when the overlap is over, or at its own expiry if that is earlier. Each token is rotated once.
    """

    async def work() -> str | None:
        async with _home(postgres) as conn:
            return await rotate_token(conn, token_id, overlap, expires_in)

    made = asyncio.run(work())
    if made is None:
        raise click.ClickException(f"there is no token {token_id} in force that was not rotated before")
    click.echo(made)


@token.command("list")
@postgres_option
@click.option("--tenant", help="Of this one. Default: of all.")
@refusals
def list_all(postgres: str, tenant: str | None) -> None:
    """Show tokens, without their secrets: also those that have ended, until they are forgotten 90 days later.

    When one was last used is told a minute or two late.
    """

    async def work() -> list[TokenView]:
        async with _home(postgres) as conn:
            return await list_tokens(conn, tenant)

    row = "{:<12}  {:<16}  {:<8}  {:<20}  {:<20}  {:<20}  {:<20}  {}"
    click.echo(row.format("ID", "TENANT", "ROLE", "QUEUES", "CREATED", "EXPIRES", "LAST USED", "STATE"))
    for each in asyncio.run(work()):
        queues = "all" if each.queues is None else ",".join(each.queues)
        instants = map(_instant, (each.created_at, each.expires_at, each.last_used_at))
        state = each.state + (f", replaced by {each.replaced_by}" if each.replaced_by else "")
        click.echo(row.format(each.token_id, each.tenant, each.role, queues, *instants, state))


def _instant(at: datetime | None) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}" if at else "never"


@token.command("revoke")
@postgres_option
@click.argument("token_id")
@refusals
def revoke(postgres: str, token_id: str) -> None:
    """End a token, by its id: the part between `fp_` and the next underscore. Within 5 s no API knows it any more."""

    async def work() -> bool:
        async with _home(postgres) as conn:
            return await revoke_token(conn, token_id)

    if not asyncio.run(work()):
        raise click.ClickException(f"there is no token {token_id} in force")
    click.echo(f"revoked {token_id}")


@asynccontextmanager
async def _home(dsn: str) -> AsyncIterator[Connection]:
    """A session with home, which alone has tokens."""
    async with ledger_pool(dsn, size=1) as pool, session(pool) as conn:
        await prove_home(conn)
        yield conn
