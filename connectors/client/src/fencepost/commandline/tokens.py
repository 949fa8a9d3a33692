"""`fencepost token …`: the tenant's tokens, for its administrators."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, get_args

import click
import msgspec

from fencepost.commandline.connection import Connection, pass_connection
from fencepost.commandline.parameters import SpanParam, json_option
from fencepost.commandline.rendering import print_fields, print_structs
from fencepost.token_client import MadeToken, Role, Token

if TYPE_CHECKING:
    from fencepost.sync_client import SyncClient

PAGE = 1000

expiry_option = click.option(
    "--expires-in", type=SpanParam(), metavar="TIME", help="Such as 90d or 12h.  [default: good until revoked]"
)


@click.group()
def token() -> None:
    """Make, rotate, list and revoke the tenant's tokens, with an admin's token.

    A token is `fp_<id>_<secret>`; the other commands take the id. To replace one without a stop: rotate it, and give
    the new one to whoever has the old one before the overlap is over.

    None of them is about a token that may more than yours: where yours is scoped to queues, theirs are too.
    """


@token.command("list")
@json_option
@pass_connection
def list_(connection: Connection, as_json: bool) -> None:
    """List tokens, the oldest first, without their secrets; those that have ended for 90 days.

    \b
    Example
      fencepost token list
    """
    with connection.client() as client:
        found = sorted(_all(client), key=lambda each: each.created_at)
    if as_json:
        for each in found:
            click.echo(msgspec.json.encode(each).decode())
    else:
        print_structs(found, Token)


def _all(client: SyncClient) -> list[Token]:
    page = client.tokens(limit=PAGE)
    found = page.tokens
    while page.next is not None:
        page = client.tokens(limit=PAGE, after=page.next)
        found += page.tokens
    return found


@token.command()
@click.option("--role", type=click.Choice(get_args(Role)), required=True)
@click.option("--queue", "queues", multiple=True, help="Limit it to this queue; may be repeated.  [default: as yours]")
@expiry_option
@json_option
@pass_connection
def create(
    connection: Connection, role: Role, queues: tuple[str, ...], expires_in: timedelta | None, as_json: bool
) -> None:
    """Make a token and print it, this once: the server keeps only its hash.

    \b
    Examples
      fencepost token create --role worker --queue mail --expires-in 90d
      export FENCEPOST_TOKEN=$(fencepost token create --role producer)
    """
    with connection.client() as client:
        _print_made(client.create_token(role, queues=queues or None, expires_in=expires_in), as_json)


@token.command()
@click.argument("token_id")
@click.option("--overlap", type=SpanParam(), default="1h", show_default=True, help="How long the old one stays good.")
@expiry_option
@json_option
@pass_connection
def rotate(
    connection: Connection, token_id: str, overlap: timedelta, expires_in: timedelta | None, as_json: bool
) -> None:
    """Make another token for the same role and queues, and print it, this once.

    The old one ends when the overlap is over, or at its own expiry if that is earlier. Each token is rotated once.

    \b
    Example
      fencepost token rotate 4f2a90c1b7de --overlap 1d --expires-in 90d
    """
    with connection.client() as client:
        _print_made(client.rotate_token(token_id, overlap=overlap, expires_in=expires_in), as_json)


@token.command()
@click.argument("token_id")
@json_option
@pass_connection
def revoke(connection: Connection, token_id: str, as_json: bool) -> None:
    """End a token. Within 5 s no server knows it any more; one that has ended stays as it is.

    \b
    Example
      fencepost token revoke 4f2a90c1b7de
    """
    with connection.client() as client:
        print_fields(client.revoke_token(token_id), as_json)


def _print_made(made: MadeToken, as_json: bool) -> None:
    click.echo(msgspec.json.encode(made).decode() if as_json else made.token)
