"""`fencepost doctor`: what is wrong with the installation, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fencepost.commandline.connection import Connection, pass_connection
from fencepost.commandline.parameters import json_option
from fencepost.commandline.rendering import print_fields
from fencepost.errors import TryAgain

if TYPE_CHECKING:
    from fencepost.explanation_client import Diagnosis

EXIT_SICK = 1


@click.command()
@json_option
@pass_connection
def doctor(connection: Connection, as_json: bool) -> None:
    """Check the server and all that it needs: a line for each check, with the remedy when it is not ok.

    Takes an operator's or an admin's token. The exit code is 1 when a check fails; a warning alone leaves it 0.

    \b
    Example
      fencepost doctor
    """
    diagnosis = _diagnosis(connection)
    print_fields(diagnosis, as_json) if as_json else _print(diagnosis)
    if diagnosis.status == "fail":
        raise click.exceptions.Exit(EXIT_SICK)


def _diagnosis(connection: Connection) -> Diagnosis:
    """What the server finds; when it does not answer, that."""
    from fencepost.explanation_client import Diagnosis, Finding

    with connection.client() as client:
        try:
            return client.doctor()
        except TryAgain as error:
            remedy = "start the API and the ledger, or mend the way to them"
            return Diagnosis(
                status="fail", findings=[Finding(check="server", status="fail", detail=str(error), remedy=remedy)]
            )


def _print(diagnosis: Diagnosis) -> None:
    width = max(len(finding.check) for finding in diagnosis.findings)
    for finding in diagnosis.findings:
        remedy = f" → {finding.remedy}" if finding.remedy else ""
        click.echo(f"{finding.status:<4}  {finding.check:<{width}}  {finding.detail}{remedy}")
