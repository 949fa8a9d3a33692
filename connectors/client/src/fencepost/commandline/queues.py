"""`fencepost queues …` and `fencepost tenant …`: what waits, settings, limits, and pauses."""

from __future__ import annotations

from typing import Any

import click

from fencepost.commandline.connection import Connection, pass_connection
from fencepost.commandline.parameters import json_option
from fencepost.commandline.rendering import print_fields

LIVE_RUNS = click.IntRange(1, 1_000_000)


@click.group()
def queues() -> None:
    """Look at queues, set their rate and limits, pause and resume them."""


@queues.command()
@click.argument("queue")
@json_option
@pass_connection
def show(connection: Connection, queue: str, as_json: bool) -> None:
    """Show whether a queue is paused, its rate and limits, and how many of its runs are due, by lane.

    \b
    Example
      fencepost queues show mail
    """
    with connection.client() as client:
        print_fields(client.queue(queue), as_json)


@queues.command("set")
@click.argument("queue")
@click.option("--rate", type=click.FloatRange(0, 1_000_000, min_open=True), metavar="RUNS", help="Runs a second.")
@click.option("--no-rate", is_flag=True, help="No rate any more.")
@click.option("--live", type=LIVE_RUNS, metavar="RUNS", help="Runs that may be leased at once.")
@click.option("--no-live", is_flag=True, help="Any number of them.")
@click.option("--live-per-key", type=LIVE_RUNS, metavar="RUNS", help="The same, of each concurrency key.")
@click.option("--no-live-per-key", is_flag=True, help="Any number of them.")
@json_option
@pass_connection
def set_queue(connection: Connection, /, queue: str, as_json: bool, **given: Any) -> None:
    """Set the rate of a queue, and how many of its runs may be leased at once.

    By its rate the made-up runs of jobs with catchUp all come due; no other run is held back by it. The limits hold
    over all workers; --live-per-key among the runs of jobs with the same --concurrency-key. A lower limit takes no
    lease away. Settings hold within seconds.

    \b
    Examples
      fencepost queues set mail --rate 50
      fencepost queues set mail --no-rate
      fencepost queues set mail --live 20 --live-per-key 1
      fencepost queues set mail --no-live
    """
    fields = {"rate": "rate_per_second", "live": "max_live_runs", "live_per_key": "max_live_runs_per_key"}
    changes: dict[str, Any] = {}
    for option, field in fields.items():
        value, is_none = given[option], given[f"no_{option}"]
        if is_none and value is not None:
            name = option.replace("_", "-")
            raise click.UsageError(f"give either --{name} or --no-{name}")
        if is_none or value is not None:
            changes[field] = value
    if not changes:
        raise click.UsageError("give at least one of --rate, --live and --live-per-key, or its --no-…")
    with connection.client() as client:
        print_fields(client.set_queue(queue, **changes), as_json)


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
    """Look at the token's tenant, set its limits, pause and resume it as a whole."""


@tenant.command("show")
@json_option
@pass_connection
def show_tenant(connection: Connection, as_json: bool) -> None:
    """Show the limits, and what is paused.

    \b
    Example
      fencepost tenant show
    """
    with connection.client() as client:
        print_fields(client.tenant(), as_json)


@tenant.command("set")
@click.option("--leases", type=click.FloatRange(0, 1_000_000, min_open=True), metavar="RUNS", help="Leases a second.")
@click.option("--burst", type=click.IntRange(1, 1_000_000), metavar="RUNS", help="Leases at once, after a while.")
@click.option("--no-leases", is_flag=True, help="No limit of leases any more.")
@click.option("--pending", type=click.IntRange(1, 1_000_000_000), metavar="RUNS", help="Runs that wait or are leased.")
@click.option("--no-pending", is_flag=True, help="No limit of pending runs any more.")
@click.option("--weight", type=click.IntRange(1, 1_000), metavar="N", help="Its share beside others; 1 at first.")
@json_option
@pass_connection
def set_tenant(
    connection: Connection,
    leases: float | None,
    burst: int | None,
    no_leases: bool,
    pending: int | None,
    no_pending: bool,
    weight: int | None,
    as_json: bool,
) -> None:
    """Set limits of the tenant, over all of its queues, with an admin's token. They hold within seconds.

    Of leases: workers that ask for more wait, and get fewer at a time. Without --burst that stays as it is: as many as
    in a second, unless it was ever set. Of pending runs: from so many on, no job is created.
    The weight: where tenants compete, one of weight 3 has three times the runs of one of weight 1.

    \b
    Examples
      fencepost tenant set --leases 100 --burst 300
      fencepost tenant set --pending 100000
      fencepost tenant set --no-leases
      fencepost tenant set --weight 3
    """
    if (no_leases and leases is not None) or (no_pending and pending is not None):
        raise click.UsageError("give either a limit or its --no-…")
    changes: dict[str, Any] = {
        "leases_per_second": leases, "lease_burst": burst, "max_pending_runs": pending, "weight": weight,
    }  # fmt: skip
    named = {name: value for name, value in changes.items() if value is not None}
    if no_leases:
        named |= {"leases_per_second": None, "lease_burst": burst}
    if no_pending:
        named["max_pending_runs"] = None
    if not named:
        raise click.UsageError("give at least one: --leases, --burst, --pending, or its --no-…, --weight")
    with connection.client() as client:
        print_fields(client.set_tenant(**named), as_json)


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
