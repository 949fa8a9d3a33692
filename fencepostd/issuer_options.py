"""The options of `fencepostd run api` that name an issuer whose tokens are believed."""

from __future__ import annotations

from functools import wraps
from typing import Any

import click

from api.issuer import IssuerSettings
from fencepostd.refusals import Command


def issuer_options(command: Command) -> Command:
    """Give a command `issuer`: IssuerSettings, or None."""

    @wraps(command)
    def with_issuer(*args: Any, **options: Any) -> Any:
        issuer, audience, keys, claim = (options.pop(f"jwt_{each}") for each in ("issuer", "audience", "keys", "claim"))
        if len({bool(issuer), bool(audience), bool(keys)}) > 1:
            raise click.UsageError("an issuer's tokens take --jwt-issuer, --jwt-audience and --jwt-keys, all three")
        settings = IssuerSettings(issuer, audience, keys, claim) if issuer else None
        return command(*args, issuer=settings, **options)

    for option in reversed(
        (
            _option("issuer", "Believe this issuer's JWTs (their iss), beside the ledger's own tokens."),
            _option("audience", "Whom they must be made for (their aud)."),
            _option("keys", "The issuer's keys, a JWK Set: an https URL, or a file."),
            _option("claim", "Their claim that has tenant, role and maybe queues.", "fencepost"),
        )
    ):
        with_issuer = option(with_issuer)
    return with_issuer


def _option(name: str, text: str, default: str | None = None) -> Any:
    variable = f"FENCEPOST_JWT_{name.upper()}"
    return click.option(f"--jwt-{name}", default=default, envvar=variable, show_default=default is not None, help=text)
