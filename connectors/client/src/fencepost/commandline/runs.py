"""`fencepost runs …`."""

from __future__ import annotations

from uuid import UUID

import click

from fencepost.commandline.connection import UUID_PARAM, Connection, pass_connection
from fencepost.commandline.parameters import json_option, key_option
from fencepost.commandline.rendering import print_fields
from fencepost.models import RunAnswer


@click.group()
def runs() -> None:
    """Look at runs, cancel and replay them. Lists and statistics come from `fencepost query`."""


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


@runs.command()
@click.argument("run_id", type=UUID_PARAM)
@key_option
@json_option
@pass_connection
def cancel(connection: Connection, run_id: UUID, idempotency_key: str | None, as_json: bool) -> None:
    """Cancel a run: at once, or when a worker has it through the answer to its next heartbeat.

    \b
    Example
      fencepost runs cancel 019a3f6e-7c1b-8003-9d0a-3f1f1c6a2b11
    """
    with connection.client() as client:
        _print_answer(client.cancel_run(run_id, idempotency_key=idempotency_key), as_json)


@runs.command()
@click.argument("run_id", type=UUID_PARAM)
@key_option
@json_option
@pass_connection
def replay(connection: Connection, run_id: UUID, idempotency_key: str | None, as_json: bool) -> None:
    """Give a dead run all its attempts again. Many at once: `fencepost dead replay`.

    \b
    Example
      fencepost runs replay 019a3f6e-7c1b-8003-9d0a-3f1f1c6a2b11
    """
    with connection.client() as client:
        _print_answer(client.replay_run(run_id, idempotency_key=idempotency_key), as_json)


def _print_answer(answer: RunAnswer, as_json: bool) -> None:
    print_fields(answer, as_json)
    if not answer.applied:
        click.echo("accepted, but not applied yet: look with `fencepost runs show`", err=True)
