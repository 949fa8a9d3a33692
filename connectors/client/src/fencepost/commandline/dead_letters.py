"""`fencepost dead …`: runs that failed for good."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fencepost.commandline.connection import UUID_PARAM, Connection, pass_connection
from fencepost.commandline.parameters import InstantParam, json_option
from fencepost.commandline.rendering import print_structs
from fencepost.models import DeadFilter, DeadReplayAnswer, DeadRun

if TYPE_CHECKING:
    from fencepost.sync_client import SyncClient

PAGE = 1000

_FILTER = (
    click.option("--queue", help="Of this queue."),
    click.option("--job-id", type=UUID_PARAM, help="Of this job."),
    click.option("--since", type=InstantParam(), help="Died at or after this instant."),
    click.option("--until", type=InstantParam(), help="Died before this instant."),
    click.option("--reason", metavar="TEXT", help="Its last failure has this in it, in any case."),
)


def dead_filter(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_FILTER):
        command = option(command)
    return command


@click.group()
def dead() -> None:
    """List runs that failed for good, and replay them."""


@dead.command("list")
@dead_filter
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Rows at most.")
@json_option
@pass_connection
def list_(connection: Connection, /, limit: int, as_json: bool, **which: Any) -> None:
    """List dead runs, those that died first.

    \b
    Examples
      fencepost dead list --queue mail --since 2026-03-01T00:00:00Z
      fencepost dead list --reason timeout --json
    """
    with connection.client() as client:
        found, more = _pages(client, DeadFilter(**which), limit)
    if as_json:
        for run in found:
            click.echo(msgspec.json.encode(run).decode())
    else:
        print_structs(found, DeadRun)
    if more:
        click.echo(f"only the first {limit}: raise --limit, or narrow the filter", err=True)


def _pages(client: SyncClient, which: DeadFilter, limit: int) -> tuple[list[DeadRun], bool]:
    """Up to `limit` runs, and whether there are more."""
    found: list[DeadRun] = []
    after = None
    while True:
        page = client.dead_letters(which, limit=min(PAGE, limit - len(found)), after=after)
        found += page.runs
        after = page.next
        if after is None or len(found) >= limit:
            return found, after is not None


@dead.command()
@dead_filter
@click.option("--limit", type=click.IntRange(1), help="At most so many, those that died first; all unless given.")
@click.option("--dry-run", is_flag=True, help="Only tell how many, and the first of them.")
@click.option("--per-second", type=float, metavar="N", help="Their pace: they become due one after the other.")
@json_option
@pass_connection
def replay(
    connection: Connection,
    /,
    limit: int | None,
    dry_run: bool,
    per_second: float | None,
    as_json: bool,
    **which: Any,
) -> None:
    """Give dead runs all their attempts again: those that the filter matches now.

    \b
    Examples
      fencepost dead replay --queue mail --reason timeout --dry-run
      fencepost dead replay --queue mail --reason timeout --per-second 5
    """
    began = datetime.now(UTC)
    # What dies again while we are at it is not replayed once more.
    chosen = DeadFilter(**{**which, "until": which["until"] or began})
    with connection.client() as client:
        if dry_run:
            answer = client.replay_dead(chosen, dry_run=True)
        else:
            answer = _replay_all(client, chosen, limit, per_second, began)
    _print_answer(answer, as_json)


def _replay_all(
    client: SyncClient, which: DeadFilter, limit: int | None, per_second: float | None, began: datetime
) -> DeadReplayAnswer:
    """Page by page; returns the first answer with the sum of all."""
    first = client.replay_dead(which, dry_run=True, limit=1)
    wanted = first.matched if limit is None else min(limit, first.matched)
    replayed, seen, applied, after = 0, 0, True, None
    answer = first
    with click.progressbar(length=wanted, label="replaying", file=sys.stderr) as progress:
        while seen < wanted:
            count = min(PAGE, wanted - seen)
            page = client.replay_dead(
                which,
                limit=count,
                per_second=per_second,
                start_at=_start(began, seen, per_second),
                after=after,
            )
            if seen == 0:
                answer = page
            replayed, seen, applied, after = replayed + page.replayed, seen + count, applied and page.applied, page.next
            progress.update(count)
            if after is None:
                break
    return msgspec.structs.replace(answer, matched=first.matched, replayed=replayed, applied=applied, dry_run=False)


def _start(began: datetime, seen: int, per_second: float | None) -> datetime | None:
    """When the first run of a page is due, so that the pace goes on from page to page."""
    if per_second is None:
        return None
    return datetime.fromtimestamp(began.timestamp() + seen / per_second, UTC)


def _print_answer(answer: DeadReplayAnswer, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())
    else:
        print_structs(answer.sample, DeadRun)
        done = "would be replayed" if answer.dry_run else "are dead and match"
        click.echo(f"{answer.matched} {done}" + ("" if answer.dry_run else f", {answer.replayed} replayed"))
    if not answer.applied:
        click.echo("some are not applied yet: look with `fencepost dead list`", err=True)
