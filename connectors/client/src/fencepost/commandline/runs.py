"""`fencepost runs …`."""

from __future__ import annotations

from uuid import UUID

import click

from fencepost.commandline.connection import UUID_PARAM, Connection, pass_connection
from fencepost.commandline.jobs import json_option
from fencepost.commandline.rendering import print_fields


@click.group()
def runs() -> None:
    """Look at runs. Lists and statistics come from `fencepost query`."""


@runs.command()
@click.argument("run_id", type=UUID_PARAM)
@json_option
@pass_connection
def show(connection: Connection, run_id: UUID, as_json: bool) -> None:
    """Show where a run is in its life, living or ended.

    \b
    Example
      fencepost runs show 019a3f6e-7c1b-8003-9d0a-3f1f1c6a2b11
    """
    with connection.client() as client:
        print_fields(client.run(run_id), as_json)
