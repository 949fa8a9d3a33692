"""`fencepost queues …` and `fencepost tenant …`: what waits, and pauses."""

from __future__ import annotations

import click

from fencepost.commandline.connection import Connection, pass_connection
from fencepost.commandline.parameters import json_option
from fencepost.commandline.rendering import print_fields


@click.group()
def queues() -> None:
    """Look at queues, pause and resume them."""


@queues.command()
@click.argument("queue")
@json_option
@pass_connection
def show(connection: Connection, queue: str, as_json: bool) -> None:
    """Show whether a queue is paused, and how many of its runs are due, by lane.

    \b
    Example
      fencepost queues show mail
    """
    with connection.client() as client:
        print_fields(client.queue(queue), as_json)


@queues.command()
@click.argument("queue")
@json_option
@pass_connection
def pause(connection: Connection, queue: str, as_json: bool) -> None:
    """Let workers get nothing of a queue. Waiting runs stay, leased ones go on.

    \b
    Example
      fencepost queues pause mail
    """
    with connection.client() as client:
        print_fields(client.pause_queue(queue), as_json)


@queues.command()
@click.argument("queue")
@json_option
@pass_connection
def resume(connection: Connection, queue: str, as_json: bool) -> None:
    """Let a paused queue go on, with all that waits in it.

    \b
    Example
      fencepost queues resume mail
    """
    with connection.client() as client:
        print_fields(client.resume_queue(queue), as_json)


@click.group()
def tenant() -> None:
    """Look at the token's tenant, pause and resume it as a whole."""


@tenant.command("show")
@json_option
@pass_connection
def show_tenant(connection: Connection, as_json: bool) -> None:
    """Show what is paused.

    \b
    Example
      fencepost tenant show
    """
    with connection.client() as client:
        print_fields(client.tenant(), as_json)


@tenant.command("pause")
@json_option
@pass_connection
def pause_tenant(connection: Connection, as_json: bool) -> None:
    """Let workers get nothing of the tenant. Waiting runs stay, leased ones go on.

    \b
    Example
      fencepost tenant pause
    """
    with connection.client() as client:
        print_fields(client.pause_tenant(), as_json)


@tenant.command("resume")
@json_option
@pass_connection
def resume_tenant(connection: Connection, as_json: bool) -> None:
    """End the tenant's pause. Queues that are paused by themselves stay so.

    \b
    Example
      fencepost tenant resume
    """
    with connection.client() as client:
        print_fields(client.resume_tenant(), as_json)
