"""What the commands that are workers have in common: their options, and how they run and end."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from fencepost.commandline.connection import Connection
from fencepost.commandline.payload_codecs import codec_option
from fencepost.sealing import PayloadCodec
from fencepost.worker import Handler, Worker
from fencepost.worker_stats import WorkerStats


class WorkerOptions(NamedTuple):
    """What --queue, --slots, --visibility, --drain and --payload-codec say."""

    queue: str
    slots: int
    visibility_s: float
    drain_s: float
    payload_codec: PayloadCodec | None = None


def worker_options(things: str, *, slots: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the options to a command, which gets them as `options`. things: what it executes, for the help."""
    declared = (
        click.option("--queue", required=True, help="Whose runs to execute."),
        click.option(
            "--slots",
            type=click.IntRange(1, 1000),
            default=slots,
            show_default=True,
            help=f"{things.capitalize()} at once.",
        ),
        click.option(
            "--visibility",
            "visibility_s",
            type=click.FloatRange(1, 3600),
            default=30,
            show_default=True,
            metavar="SECONDS",
            help="After so long without a sign of life another worker gets the run.",
        ),
        click.option(
            "--drain",
            "drain_s",
            type=click.FloatRange(min=0),
            default=30,
            show_default=True,
            metavar="SECONDS",
            help=f"How long {things} may go on after SIGTERM.",
        ),
        codec_option("Opens payloads and seals results; a run whose payload it cannot open is dead."),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathered(*args: Any, **given: Any) -> Any:
            options = WorkerOptions(**{name: given.pop(name) for name in WorkerOptions._fields})
            return command(*args, options=options, **given)

        return functools.reduce(lambda inner, option: option(inner), reversed(declared), gathered)

    return decorate


def work_until_told(connection: Connection, options: WorkerOptions, handler: Handler) -> None:
    """Execute runs until SIGTERM or Ctrl-C; what was done is told on standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    stats = asyncio.run(_work(connection, options, handler))
    click.echo(f"{stats.completed} completed, {stats.failed} failed, {stats.abandoned} abandoned", err=True)


async def _work(connection: Connection, options: WorkerOptions, handler: Handler) -> WorkerStats:
    queue, slots, visibility_s, drain_s, codec = options
    async with connection.async_client() as client:
        worker = Worker(
            client, queue, handler, slots=slots, visibility_s=visibility_s, drain_s=drain_s, payload_codec=codec
        )
        await worker.run()
        return worker.stats
